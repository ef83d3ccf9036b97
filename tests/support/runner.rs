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

use super::panics;
use super::scripts::Missing;

/// A scenario takes as long as its deadlines add up to; this only ends what hangs altogether.
/// `SCENARIO_SECONDS` is for those that can be made longer.
fn longest() -> Duration {
    let given = std::env::var("SCENARIO_SECONDS").ok();
    let given = given.map(|text| text.parse().expect("SCENARIO_SECONDS is a number"));
    Duration::from_secs(given.unwrap_or(900))
}

/// What scenarios are run on, in several kinds: a containerd, a kubelet.
pub trait Flavour: Copy + Eq + Send + 'static {
    const ALL: &'static [Self];

    /// The first part of a test's name.
    fn name(self) -> &'static str;

    /// Makes this the one of the scenario of this thread.
    fn make_current(self);

    /// Why it cannot be used on this machine, if so.
    fn missing(self) -> Option<Missing>;
}

/// All tests of one binary.
pub struct Suite<F> {
    /// What all of them need, for the message that it is missing.
    pub needs: &'static str,
    /// Why none of them can run, if so.
    pub prepare: fn() -> Result<(), String>,
    /// Scenarios at once, unless the command line says otherwise. `RUST_TEST_THREADS` can only lower it.
    pub lanes: usize,
    pub tests: Vec<Test<F>>,
}

pub type Scenario = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// A list of scenarios, which are called as their functions are.
#[allow(unused_macros)]
macro_rules! scenarios {
    ($list:ident: $($module:ident::$name:ident),* $(,)?) => {
        const $list: &[$crate::support::runner::Scenario] =
            &[$((stringify!($name), || Box::pin($module::$name()))),*];
    };
}
pub(crate) use scenarios;

/// Every scenario on every one of the flavours.
pub fn on<F: Flavour>(flavours: &[F], scenarios: &[Scenario]) -> Vec<Test<F>> {
    let pairs = scenarios.iter().flat_map(|scenario| {
        let tests = flavours.iter().map(|flavour| Test::new(*flavour, *scenario));
        tests.collect::<Vec<_>>()
    });
    pairs.collect()
}

/// Leaves a scenario out on one flavour, for a reason that is printed.
pub fn leave_out<F: Flavour>(tests: &mut [Test<F>], flavour: F, scenario: &str, why: &'static str) {
    let name = format!("{}::{scenario}", flavour.name());
    let test = tests.iter_mut().find(|test| test.name == name);
    test.expect("a scenario that is left out exists").left_out = Some(why);
}

/// A scenario on one flavour.
pub struct Test<F> {
    name: String,
    flavour: F,
    /// Why it is not run although every other one is.
    left_out: Option<&'static str>,
    run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
}

impl<F: Flavour> Test<F> {
    fn new(flavour: F, (name, run): Scenario) -> Test<F> {
        Test { name: format!("{}::{name}", flavour.name()), flavour, left_out: None, run }
    }

    /// The same test, which is not run, for a reason that is printed.
    pub fn left_out(self, why: &'static str) -> Test<F> {
        Test { left_out: Some(why), ..self }
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

/// What the command line selects, as far as it concerns us.
struct Wanted {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    lanes: usize,
}

impl Wanted {
    /// `most`: scenarios at once, unless the command line says otherwise.
    fn parse(most: usize) -> Wanted {
        let mut wanted = Wanted {
            filters: vec![],
            skip: vec![],
            exact: false,
            list: false,
            lanes: std::env::var("RUST_TEST_THREADS")
                .ok()
                .and_then(|n| n.parse().ok())
                .map_or(most, |n: usize| n.min(most)),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => wanted.exact = true,
                "--list" => wanted.list = true,
                "--skip" => wanted.skip.extend(args.next()),
                "--test-threads" => {
                    wanted.lanes = args.next().and_then(|n| n.parse().ok()).unwrap_or(most)
                }
                // Those of libtest's options that take a value in the next word.
                "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
                other => match other.strip_prefix("--test-threads=") {
                    Some(n) => wanted.lanes = n.parse().unwrap_or(most),
                    None if other.starts_with('-') => {}
                    None => wanted.filters.push(other.to_owned()),
                },
            }
        }
        wanted
    }

    fn includes(&self, name: &str) -> bool {
        let hit = |filter: &String| {
            if self.exact { name == filter } else { name.contains(filter.as_str()) }
        };
        (self.filters.is_empty() || self.filters.iter().any(hit)) && !self.skip.iter().any(hit)
    }
}

/// Runs what the command line selects.
pub fn run<F: Flavour>(suite: Suite<F>) -> ExitCode {
    let wanted = Wanted::parse(suite.lanes);
    let total = suite.tests.len();
    let chosen =
        suite.tests.into_iter().filter(|test| wanted.includes(&test.name)).collect::<VecDeque<_>>();
    if wanted.list {
        chosen.iter().for_each(|test| println!("{}: test", test.name));
        return ExitCode::SUCCESS;
    }
    let mut counts = Counts { filtered: total - chosen.len(), ..Counts::default() };
    let start = Instant::now();
    panics::keep();
    println!("\nrunning {} tests", chosen.len());
    if let Err(why) = (suite.prepare)() {
        return cannot_run(suite.needs, &why, chosen, counts);
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
fn without_left_out<F>(mut tests: VecDeque<Test<F>>, counts: &mut Counts) -> VecDeque<Test<F>> {
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
fn without_missing<F: Flavour>(
    mut tests: VecDeque<Test<F>>,
    counts: &mut Counts,
) -> VecDeque<Test<F>> {
    for flavour in F::ALL.iter().copied() {
        let here = |test: &Test<F>| test.flavour == flavour;
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
            counts.failed.extend(missing.into_iter().map(|test| test.name));
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
pub fn strict() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Runs one scenario on a thread of its own, whose name is in its panic message.
fn passes<F: Flavour>(test: &Test<F>) -> bool {
    let Test { name, flavour, run, .. } = test;
    let (flavour, scenario) = (*flavour, *run);
    let start = Instant::now();
    let body = move || {
        flavour.make_current();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
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
    println!("test {name} ... {word} ({:.1} s)", start.elapsed().as_secs_f64());
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
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cannot_run<F>(
    needs: &str,
    why: &str,
    chosen: VecDeque<Test<F>>,
    mut counts: Counts,
) -> ExitCode {
    let strict = strict();
    let verb = if strict { "CANNOT RUN" } else { "SKIPPED" };
    println!(
        "\n!!!! the tests against {needs} are {verb}: {why}\n!!!! hack/install-deps.sh installs what is missing\n"
    );
    if strict {
        counts.failed = chosen.into_iter().map(|test| test.name).collect();
    } else {
        counts.ignored = chosen.len();
    }
    report(&counts, Duration::ZERO)
}
