//! Runs scenarios in a few lanes and reports as cargo's own harness does.
//!
//! The own harness is needed because a scenario's cleanup must also happen when it fails, and
//! because "skipped" must be seen.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::runtime;

/// A scenario takes as long as its deadlines add up to; this only ends what hangs altogether.
const LONGEST: Duration = Duration::from_secs(180);

/// Scenarios at once; they mostly wait.
const LANES: usize = 4;

pub type Scenario = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// What the command line asks for, as far as it concerns us.
struct Wanted {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    lanes: usize,
}

impl Wanted {
    fn parse() -> Wanted {
        let mut wanted = Wanted {
            filters: vec![],
            skip: vec![],
            exact: false,
            list: false,
            lanes: LANES,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => wanted.exact = true,
                "--list" => wanted.list = true,
                "--skip" => wanted.skip.extend(args.next()),
                "--test-threads" => {
                    wanted.lanes = args.next().and_then(|n| n.parse().ok()).unwrap_or(LANES)
                }
                // Those of libtest's options that take a value in the next word.
                "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
                other => match other.strip_prefix("--test-threads=") {
                    Some(n) => wanted.lanes = n.parse().unwrap_or(LANES),
                    None if other.starts_with('-') => {}
                    None => wanted.filters.push(other.to_owned()),
                },
            }
        }
        wanted
    }

    fn includes(&self, name: &str) -> bool {
        let hit = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        (self.filters.is_empty() || self.filters.iter().any(hit)) && !self.skip.iter().any(hit)
    }
}

/// Runs what the command line selects.
pub fn run(all: &[Scenario]) -> ExitCode {
    let wanted = Wanted::parse();
    let chosen = all
        .iter()
        .filter(|(name, _)| wanted.includes(name))
        .copied()
        .collect::<VecDeque<_>>();
    if wanted.list {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let (total, filtered) = (chosen.len(), all.len() - chosen.len());
    println!("\nrunning {total} tests");
    if let Err(why) = runtime::prepare() {
        return cannot_run(&why, total, filtered);
    }
    let start = Instant::now();
    let queue = Arc::new(Mutex::new(chosen));
    let failed = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..wanted.lanes.clamp(1, total.max(1)) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().pop_front();
                    let Some((name, scenario)) = next else { return };
                    if !passes(name, scenario) {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    report(total, filtered, &failed.lock().unwrap(), start.elapsed())
}

/// Runs one scenario on a thread of its own, whose name is in its panic message.
fn passes(name: &'static str, scenario: fn() -> Pin<Box<dyn Future<Output = ()>>>) -> bool {
    let start = Instant::now();
    let body = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let limited = async {
            let ended = tokio::time::timeout(LONGEST, scenario()).await;
            assert!(ended.is_ok(), "the scenario did not end within {LONGEST:?}");
        };
        // Dropping what a scenario holds is its cleanup, so it happens inside.
        runtime.block_on(limited);
    };
    let thread = std::thread::Builder::new().name(name.to_owned());
    let thread = thread.spawn(move || std::panic::catch_unwind(AssertUnwindSafe(body)).is_ok());
    let passed = thread.unwrap().join().unwrap_or(false);
    let word = if passed { "ok" } else { "FAILED" };
    println!(
        "test {name} ... {word} ({:.1} s)",
        start.elapsed().as_secs_f64()
    );
    passed
}

fn report(total: usize, filtered: usize, failed: &[&str], took: Duration) -> ExitCode {
    if !failed.is_empty() {
        println!("\nfailures:\n    {}", failed.join("\n    "));
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {filtered} filtered out; \
         finished in {:.2}s\n",
        total - failed.len(),
        failed.len(),
        took.as_secs_f64()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn cannot_run(why: &str, total: usize, filtered: usize) -> ExitCode {
    let strict = std::env::var("CI").is_ok_and(|value| value == "true");
    let verb = if strict { "CANNOT RUN" } else { "SKIPPED" };
    println!(
        "\n!!!! the tests against a real containerd are {verb}: {why}\n!!!! hack/install-deps.sh installs what is missing\n"
    );
    let (word, ignored, failed) = if strict {
        ("FAILED", 0, total)
    } else {
        ("ok", total, 0)
    };
    println!(
        "test result: {word}. 0 passed; {failed} failed; {ignored} ignored; 0 measured; {filtered} filtered out; \
         finished in 0.00s\n"
    );
    if strict {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
