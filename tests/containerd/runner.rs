//! Runs scenarios in a few lanes and reports as cargo's own harness does.
//!
//! The own harness is needed because a scenario's cleanup must also happen when it fails, and
//! because "skipped" must be seen.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::flavour::Flavour;
use crate::panics;
use crate::runtime::{self, Missing};

/// A scenario takes as long as its deadlines add up to; this only ends what hangs altogether.
/// `SCENARIO_SECONDS` is for those that can be made longer.
fn longest() -> Duration {
    let given = std::env::var("SCENARIO_SECONDS").ok();
    let given = given.map(|text| text.parse().expect("SCENARIO_SECONDS is a number"));
    Duration::from_secs(given.unwrap_or(600))
}

/// Scenarios at once, unless the command line says otherwise; they mostly wait. `RUST_TEST_THREADS` can
/// only lower it: each lane is a runtime, and more of them keep one another from making progress.
const LANES: usize = 5;

pub type Scenario = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// A scenario on one flavour of runtime.
pub struct Test {
    name: String,
    flavour: Flavour,
    /// Why it is not run although every other one is.
    left_out: Option<&'static str>,
    run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

impl Test {
    pub fn new(flavour: Flavour, (name, run): Scenario, left_out: Option<&'static str>) -> Test {
        Test {
            name: format!("{}::{name}", flavour.name()),
            flavour,
            left_out,
            run,
        }
    }
}

/// How it went, for the summary.
#[derive(Default)]
struct Counts {
    passed: usize,
    ignored: usize,
    filtered: usize,
    failed: Vec<String>,
}

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
            lanes: std::env::var("RUST_TEST_THREADS")
                .ok()
                .and_then(|n| n.parse().ok())
                .map_or(LANES, |n: usize| n.min(LANES)),
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
pub fn run(all: Vec<Test>) -> ExitCode {
    let wanted = Wanted::parse();
    let total = all.len();
    let chosen = all
        .into_iter()
        .filter(|test| wanted.includes(&test.name))
        .collect::<VecDeque<_>>();
    if wanted.list {
        chosen
            .iter()
            .for_each(|test| println!("{}: test", test.name));
        return ExitCode::SUCCESS;
    }
    let mut counts = Counts {
        filtered: total - chosen.len(),
        ..Counts::default()
    };
    let start = Instant::now();
    panics::keep();
    println!("\nrunning {} tests", chosen.len());
    if let Err(why) = runtime::prepare() {
        return cannot_run(&why, chosen, counts);
    }
    let chosen = without_left_out(chosen, &mut counts);
    let chosen = without_missing(chosen, &mut counts);
    let (lanes, total) = (wanted.lanes.clamp(1, chosen.len().max(1)), chosen.len());
    let queue = Mutex::new(chosen);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().pop_front();
                    let Some(test) = next else { return };
                    if !passes(&test) {
                        failed.lock().unwrap().push(test.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    counts.passed = total - failed.len();
    counts.failed.extend(failed);
    report(&counts, start.elapsed())
}

/// Reports the scenarios that are left out on a flavour, each with its reason.
fn without_left_out(mut tests: VecDeque<Test>, counts: &mut Counts) -> VecDeque<Test> {
    tests.retain(|test| {
        if let Some(why) = test.left_out {
            println!("test {} ... ignored, {why}", test.name);
            counts.ignored += 1;
        }
        test.left_out.is_none()
    });
    tests
}

/// Reports every flavour that is not there: its tests are skipped, and fail where `CI=true` unless this machine
/// cannot make it.
fn without_missing(mut tests: VecDeque<Test>, counts: &mut Counts) -> VecDeque<Test> {
    for flavour in Flavour::ALL.iter().copied() {
        let here = |test: &Test| test.flavour == flavour;
        if !tests.iter().any(here) {
            continue;
        }
        let Some(Missing { why, excused }) = flavour.missing() else {
            continue;
        };
        let (name, fails) = (flavour.name(), strict() && !excused);
        let verb = if fails { "CANNOT RUN" } else { "SKIPPED" };
        println!("\n!!!! the tests on {name} are {verb}: {why}\n");
        let (missing, others) = tests.into_iter().partition::<VecDeque<_>, _>(here);
        tests = others;
        if fails {
            counts
                .failed
                .extend(missing.into_iter().map(|test| test.name));
            continue;
        }
        for test in missing {
            println!("test {} ... ignored, {name} is missing", test.name);
            counts.ignored += 1;
        }
    }
    tests
}

/// Whether what cannot be tested is a failure.
fn strict() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Runs one scenario on a thread of its own, whose name is in its panic message.
fn passes(test: &Test) -> bool {
    let Test {
        name, flavour, run, ..
    } = test;
    let (flavour, scenario) = (*flavour, *run);
    let start = Instant::now();
    let body = move || {
        flavour.make_current();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let limited = async {
            let longest = longest();
            let ended = tokio::time::timeout(longest, scenario()).await;
            assert!(ended.is_ok(), "the scenario did not end within {longest:?}");
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

fn report(counts: &Counts, took: Duration) -> ExitCode {
    let failed = &counts.failed;
    if !failed.is_empty() {
        println!("\nfailures:\n\n{}", panics::kept());
        println!("failures:\n    {}", failed.join("\n    "));
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        counts.passed,
        failed.len(),
        counts.ignored,
        counts.filtered,
        took.as_secs_f64()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn cannot_run(why: &str, chosen: VecDeque<Test>, mut counts: Counts) -> ExitCode {
    let strict = strict();
    let verb = if strict { "CANNOT RUN" } else { "SKIPPED" };
    println!(
        "\n!!!! the tests against real runtimes are {verb}: {why}\n!!!! hack/install-deps.sh installs what is missing\n"
    );
    if strict {
        counts.failed = chosen.into_iter().map(|test| test.name).collect();
    } else {
        counts.ignored = chosen.len();
    }
    report(&counts, Duration::ZERO)
}
