//! The loop: mutate an input, run the target, keep the input if the behaviour is new.
//!
//! Without instrumentation of the code the target itself says where an input led: with a number that is
//! equal for inputs that were treated alike, such as a hash of the error. That keeps the search moving
//! into what is accepted instead of around what is refused at once.

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Longest input, bytes.
const LONGEST: usize = 16 * 1024;
/// An input that takes longer than this has found something.
const SLOW: Duration = Duration::from_secs(5);
/// Most inputs that are kept.
const KEPT: usize = 4000;
/// How often a finding is tried to be made shorter.
const SHORTENINGS: usize = 3000;

/// What is fuzzed.
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    /// Inputs to begin with.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Words of the format.
    pub(crate) words: &'a [&'a str],
    /// Panics on a finding; else says where the input led.
    pub(crate) run: &'a dyn Fn(&[u8]) -> u64,
}

/// A number for where an input led.
pub(crate) fn path(led: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    led.hash(&mut hasher);
    hasher.finish()
}

/// Runs a target for the time that the environment gives; panics with the input on a finding.
pub(crate) fn fuzz(target: &Target<'_>) {
    let seconds = std::env::var("FUZZ_SECONDS")
        .ok()
        .map_or(2.0, |text| text.parse::<f64>().expect("FUZZ_SECONDS is a number"));
    let seed = std::env::var("FUZZ_SEED")
        .ok()
        .map_or(0, |text| text.parse::<u64>().expect("FUZZ_SEED is a number"));
    fuzz_for(target, Duration::from_secs_f64(seconds), seed);
}

fn fuzz_for(target: &Target<'_>, time: Duration, seed: u64) {
    quiet_panics();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut seen = HashSet::new();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for seed in &target.seeds {
        seen.insert(try_input(target, seed));
        kept.push(seed.clone());
    }
    let end = Instant::now() + time;
    let mut runs = 0_u64;
    while Instant::now() < end {
        let input = mangle(&kept, target.words, &mut random);
        runs += 1;
        if seen.insert(try_input(target, &input)) {
            if kept.len() < KEPT {
                kept.push(input)
            } else {
                let at = random.usize(target.seeds.len()..KEPT);
                kept[at] = input;
            }
        }
    }
    println!("{}: {runs} inputs in {time:?}, {} paths, seed {seed}", target.name, seen.len());
}

// -- trying -------------------------------------------------------------------------------------------

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Shortening a finding panics over and over; once is enough to report it.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                default_hook(info);
            }
        }));
    });
}

fn try_input(target: &Target<'_>, input: &[u8]) -> u64 {
    let start = Instant::now();
    let led = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let mut took = start.elapsed();
    let Ok(led) = led else {
        let quiet = QUIET.replace(true);
        let shortest = shorten(target, input);
        QUIET.set(quiet);
        panic!("{}: found with\nb\"{}\"", target.name, shortest.escape_ascii());
    };
    if took >= SLOW {
        // The machine may have been busy with something else.
        let before = cpu_time();
        let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        took = cpu_time() - before;
    }
    assert!(took < SLOW, "{}: it took {took:?} for\nb\"{}\"", target.name, input.escape_ascii());
    led
}

/// What this thread has used of the CPU.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    let nanoseconds = text.split(' ').next().expect("its first field");
    Duration::from_nanos(nanoseconds.parse().expect("a number"))
}

/// Takes pieces away as long as what is left still shows the finding.
fn shorten(target: &Target<'_>, input: &[u8]) -> Vec<u8> {
    let fails = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    let mut best = input.to_vec();
    let mut tries = 0;
    let mut size = best.len().div_ceil(2);
    while size > 0 && tries < SHORTENINGS {
        let mut at = 0;
        while at < best.len() && tries < SHORTENINGS {
            tries += 1;
            let mut shorter = best.clone();
            shorter.drain(at..(at + size).min(best.len()));
            if fails(&shorter) { best = shorter } else { at += size }
        }
        size /= 2;
    }
    best
}

// -- mangling -----------------------------------------------------------------------------------------

const ODD_BYTES: &[u8] =
    b"\0\n\r\t \"'\\/:;,.{}[]()-+_@#%&*!?<>=~^0189azAZ\x7f\x80\xc3\xe2\xf0\xff";

fn mangle(kept: &[Vec<u8>], words: &[&str], random: &mut fastrand::Rng) -> Vec<u8> {
    let pick = |random: &mut fastrand::Rng| match kept {
        [] => &[][..],
        kept => &kept[random.usize(..kept.len())],
    };
    let mut input = pick(random).to_vec();
    // Mostly one or two changes: what is changed all over is refused at its beginning.
    let changes = 1 << random.usize(..4);
    for _ in 0..=random.usize(..changes) {
        let at = random.usize(..=input.len());
        let some = |random: &mut fastrand::Rng, input: &[u8]| {
            let longest = (input.len() - at).min(1 << random.usize(..10));
            at..at + random.usize(..=longest)
        };
        match random.usize(..10) {
            0 if at < input.len() => input[at] ^= 1 << random.usize(..8),
            1 if at < input.len() => input[at] = ODD_BYTES[random.usize(..ODD_BYTES.len())],
            2 => input.insert(at, ODD_BYTES[random.usize(..ODD_BYTES.len())]),
            3 => drop(input.drain(some(random, &input))),
            4 => {
                let copied = input[some(random, &input)].to_vec();
                let to = random.usize(..=input.len());
                drop(input.splice(to..to, copied));
            }
            5 => {
                let other = pick(random);
                let from = random.usize(..=other.len());
                let to = random.usize(from..=other.len());
                drop(input.splice(at..at, other[from..to].iter().copied()));
            }
            6 if !words.is_empty() => {
                let word = words[random.usize(..words.len())];
                let replaced = some(random, &input);
                let replaced = if random.bool() { at..at } else { replaced };
                drop(input.splice(replaced, word.bytes()));
            }
            7 => input.truncate(at),
            8 => {
                let byte = ODD_BYTES[random.usize(..ODD_BYTES.len())];
                let many = 1 << random.usize(..12);
                drop(input.splice(at..at, std::iter::repeat_n(byte, many)));
            }
            _ => {
                let bytes: Vec<u8> = (0..random.usize(..8)).map(|_| random.u8(..)).collect();
                drop(input.splice(at..at, bytes));
            }
        }
        input.truncate(LONGEST);
    }
    input
}

// -- it finds things ------------------------------------------------------------------------------------

#[test]
fn a_defect_is_found_and_its_input_made_short() {
    let run = |input: &[u8]| {
        let text = String::from_utf8_lossy(input).into_owned();
        assert!(!text.contains("[[x"), "three in a row");
        path(&(text.contains('['), text.contains("[["), text.contains('x')))
    };
    let target = Target {
        name: "sample",
        seeds: vec![b"some text around it".to_vec()],
        words: &["x"],
        run: &run,
    };
    quiet_panics();
    QUIET.set(true);
    let found = catch_unwind(AssertUnwindSafe(|| {
        fuzz_for(&target, Duration::from_secs(60), 0);
    }));
    QUIET.set(false);
    let message = *found.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, "sample: found with\nb\"[[x\"");
}
