//! Histories of a node in virtual time: the whole kubelet, a container runtime and an API server in one thread, whose
//! scheduling, faults, kills and users all follow from a seed.
//!
//! `HISTORIES` is how many (default 30), `SEED` the first one; with `SEED` alone that one is lived and printed. Each is a
//! process of its own. A seed gives the same history to the last call, which is checked with the first one.
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
            let lived = in_process(seed);
            print!("{}", String::from_utf8_lossy(&lived.stdout));
            eprint!("{}", String::from_utf8_lossy(&lived.stderr));
            if lived.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        (seed, number) => live_all(seed.unwrap_or(1), number.unwrap_or(USUAL)),
    }
}

fn in_process(seed: u64) -> Output {
    let this = std::env::current_exe().expect("this program");
    let child = Command::new(this).env(LIVE, seed.to_string()).output();
    child.expect("a process")
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
    let mut end = story::live(seed);
    drop(log);
    let panics = PANICS.load(Ordering::Relaxed);
    if panics > 0 {
        end.findings.push(format!("{panics} panics"));
    }
    if let Some(path) = std::env::var_os("TRACE") {
        // The path is one outside of the own directory.
        std::fs::write(path, &end.trace).expect("write the trace");
    }
    print!("{}", end.notes);
    let hash = crc32fast::hash(end.trace.as_bytes());
    println!("seed {seed}: {} lines, {hash:08x}", end.trace.lines().count());
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
                    let lived = in_process(seed);
                    let is_same = seed != first || in_process(seed).stdout == lived.stdout;
                    if lived.status.success() && is_same {
                        continue;
                    }
                    let text = String::from_utf8_lossy(&lived.stdout);
                    println!("---- SEED={seed}, the same again: {is_same}\n{text}");
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
