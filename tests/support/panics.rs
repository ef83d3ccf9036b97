//! Panics of scenarios, printed when they happen and once more at the end: between the two lie the last
//! lines of a kubelet, and all that the other lanes say.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;
use std::sync::Mutex;

/// A message longer than this is printed without its middle at the end.
const LONGEST: usize = 4000;

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps what panics from now on. A thread is called after its scenario.
pub fn keep() {
    std::panic::set_hook(Box::new(|info| {
        let text = reported(info, &Backtrace::force_capture().to_string());
        eprintln!("\n{text}");
        if let Ok(mut kept) = KEPT.lock() {
            kept.push(shortened(&text));
        }
    }));
}

/// What was kept, in the order in which it happened.
pub fn kept() -> String {
    let kept = KEPT.lock().unwrap();
    kept.iter().map(|text| format!("{text}\n\n")).collect()
}

/// With the text of the standard library, so that a search of a log finds it, and with those lines of
/// the backtrace that are ours: waiting panics in a place that all scenarios share.
fn reported(info: &PanicHookInfo<'_>, backtrace: &str) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("<unnamed>").to_owned();
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let message = info.payload_as_str().unwrap_or("no message");
    let frames = backtrace.lines().filter_map(|line| {
        let at = line.trim().strip_prefix("at ")?;
        let ours = at.contains("tests/") && !at.contains("/panics.rs");
        (ours && !at.contains("/runner.rs")).then(|| format!("\n    at {at}"))
    });
    let frames: String = frames.collect();
    format!("thread '{name}' panicked at {place}:\n{message}{frames}")
}

fn shortened(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    match letters.len() {
        length if length > LONGEST => {
            let head: String = letters[..LONGEST / 2].iter().collect();
            let tail: String = letters[length - LONGEST / 2..].iter().collect();
            format!("{head}\n[...]\n{tail}")
        }
        _ => text.to_owned(),
    }
}
