//! Histories of a node in virtual time: the whole kubelet, a container runtime and an API server in one thread, whose
//! scheduling, faults, kills and users all follow from a seed.
//!
//! `HISTORIES` is how many (default 30), `SEED` the first one; with `SEED` alone that one is lived and printed, its first
//! `ACTIONS` if these are given, and with `LOG=1` the kubelet's log. Each is a process of its own. A seed gives the same
//! history to the last call, which is checked with the first one. Of one that fails the shortest beginning is printed
//! that still fails, if it is followed by the end of all histories.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub,
    unsafe_code
)]

mod checks;
mod loopback;
mod machine;
mod pods;
mod seed;
mod story;
#[allow(dead_code, unused_imports)]
#[path = "../support/mod.rs"]
mod support;

use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// Histories in a plain run of the tests.
const USUAL: u64 = 30;
/// The variable by which a process knows the history that it is to live.
const LIVE: &str = "LIVE_HISTORY";
/// Stands before the trace in what such a process prints.
const TRACE: &str = "---- trace\n";

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let Ok(value) = text.parse() else { panic!("{name} is not a number: {text}") };
    Some(value)
}

fn main() -> ExitCode {
    if let Some(seed) = variable(LIVE) {
        return live(seed);
    }
    let words = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let words: Vec<_> = words.collect();
    if !words.is_empty() && !words.iter().any(|word| "histories".contains(&**word)) {
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("histories are skipped: they need root");
        return if std::env::var_os("CI").is_some() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        };
    }
    match (variable("SEED"), variable("HISTORIES")) {
        (Some(seed), None) => {
            let lived = in_process(seed, variable("ACTIONS").unwrap_or(u64::MAX));
            print!("{}", notes(&lived));
            eprint!("{}", String::from_utf8_lossy(&lived.stderr));
            if lived.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        (seed, number) => live_all(seed.unwrap_or(1), number.unwrap_or(USUAL)),
    }
}

fn in_process(seed: u64, actions: u64) -> Output {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this);
    child.env(LIVE, seed.to_string()).env("ACTIONS", actions.to_string());
    child.output().expect("a process")
}

/// What a process says of its history, without the trace after it.
fn notes(lived: &Output) -> String {
    let text = String::from_utf8_lossy(&lived.stdout);
    text.split(TRACE).next().unwrap_or_default().to_owned()
}

/// The first lines that differ, if anything does.
fn difference(one: &Output, other: &Output) -> Option<String> {
    let text = |lived: &Output| String::from_utf8_lossy(&lived.stdout).into_owned();
    let (one, other) = (text(one), text(other));
    if one == other {
        return None;
    }
    let mut both = one.lines().zip(other.lines());
    let found = both.find(|(one, other)| one != other);
    Some(found.map_or("one is longer".to_owned(), |(one, other)| format!("\n{one}\n{other}")))
}

/// With how few of its first actions a history still fails.
fn shrink(seed: u64) -> u64 {
    let (mut succeeds, mut fails) = (0_u64, 1024);
    while fails - succeeds > 1 {
        let half = succeeds.midpoint(fails);
        let has_failed = !in_process(seed, half).status.success();
        *(if has_failed { &mut fails } else { &mut succeeds }) = half;
    }
    fails
}

/// Lives one history here and prints it.
fn live(seed: u64) -> ExitCode {
    seed::plant(seed);
    seed::with_own_directory().expect("an own directory");
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        print(panic);
    }));
    let log = std::env::var_os("LOG").map(|_| support::log::print_on_this_thread());
    let mut end = story::live(seed, variable("ACTIONS").unwrap_or(u64::MAX));
    drop(log);
    let panics = PANICS.load(Ordering::Relaxed);
    if panics > 0 {
        end.findings.push(format!("{panics} panics"));
    }
    print!("{}", end.notes);
    let hash = crc32fast::hash(end.trace.as_bytes());
    println!("seed {seed}: {} lines, {hash:08x}", end.trace.lines().count());
    print!("{TRACE}{}", end.trace);
    if end.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn live_all(first: u64, number: u64) -> ExitCode {
    let begin = Instant::now();
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + number {
                        return;
                    }
                    let mut lived = in_process(seed, u64::MAX);
                    let is_first = seed == first;
                    let again = is_first.then(|| in_process(seed, u64::MAX));
                    let differs = again.and_then(|again| difference(&lived, &again));
                    if lived.status.success() && differs.is_none() {
                        continue;
                    }
                    let mut actions = u64::MAX;
                    if !lived.status.success() {
                        actions = shrink(seed);
                        lived = in_process(seed, actions);
                    }
                    println!("---- SEED={seed} ACTIONS={actions}\n{}", notes(&lived));
                    if let Some(lines) = differs {
                        println!("it was not the same again: {lines}");
                    }
                    println!("{}", String::from_utf8_lossy(&lived.stderr));
                    failed.lock().push(seed);
                }
            });
        }
    });
    let failed = failed.into_inner();
    let took = begin.elapsed().as_secs();
    println!("{number} histories from seed {first} in {took} s; failed: {failed:?}");
    println!("{} passed, {} failed", number - failed.len() as u64, failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
