//! Catching, logging and counting of panics.
//!
//! A panic is a bug in this program. [`catch_panic`] turns it into the failure of one unit of work (a sync, a probe, a
//! request), so that it does not end the process. This requires a build with `panic = "unwind"`.

use futures::FutureExt as _;
use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(panic = "unwind"))]
compile_error!("a panic must end one item of work, not the process: build with panic = \"unwind\"");

/// The unit of work that a panic ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicScope {
    /// A sync of a pod worker.
    Sync,
    /// The stop of a container.
    ContainerStop,
    /// A write of the pod state store.
    StateWrite,
    /// A probe.
    Probe,
    /// An HTTP request.
    HttpRequest,
    /// A client's connection.
    Connection,
    /// A read of the runtime status.
    Inspection,
    /// The cleanup of a pod.
    CleanUp,
    /// The background part of housekeeping.
    Housekeeping,
    /// The prefetch of an image.
    ImagePrefetch,
    /// The parsing of a manifest.
    Manifest,
    /// The rotation of a log.
    LogRotation,
    /// A read of statistics.
    Stats,
    /// A named task, whose panic ends the process.
    Task(&'static str),
    /// Anything else; only its own task or thread ends.
    Other,
}

impl PanicScope {
    /// All scopes, each once.
    const ALL: [Self; 15] = [
        Self::Sync,
        Self::ContainerStop,
        Self::StateWrite,
        Self::Probe,
        Self::HttpRequest,
        Self::Connection,
        Self::Inspection,
        Self::CleanUp,
        Self::Housekeeping,
        Self::ImagePrefetch,
        Self::Manifest,
        Self::LogRotation,
        Self::Stats,
        Self::Task(""),
        Self::Other,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::ContainerStop => "container_stop",
            Self::StateWrite => "state_write",
            Self::Probe => "probe",
            Self::HttpRequest => "http_request",
            Self::Connection => "connection",
            Self::Inspection => "inspection",
            Self::CleanUp => "clean_up",
            Self::Housekeeping => "housekeeping",
            Self::ImagePrefetch => "image_prefetch",
            Self::Manifest => "manifest",
            Self::LogRotation => "log_rotation",
            Self::Stats => "stats",
            Self::Task(_) => "task",
            Self::Other => "other",
        }
    }

    fn count(self) {
        let labels = Self::ALL.iter().map(|scope| scope.label());
        for (label, count) in labels.zip(&COUNTS) {
            if label == self.label() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Display for PanicScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(name) => f.write_str(name),
            scope => f.write_str(scope.label()),
        }
    }
}

/// Global, like the panic hook.
static COUNTS: [AtomicU64; PanicScope::ALL.len()] =
    [const { AtomicU64::new(0) }; PanicScope::ALL.len()];

/// The number of panics by scope.
pub fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    let labels = PanicScope::ALL.iter().map(|scope| scope.label());
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
    labels.zip(counts)
}

tokio::task_local! {
    static SCOPE: PanicScope;
}

/// The error for work that panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {message}")]
pub struct Panicked {
    /// The message without values.
    message: String,
}

/// Runs work and turns a panic into an error, which is counted. The work was dropped by then: invariants that a panic
/// must not break belong into a `Drop`.
///
/// Not an `async fn`, which would store the work twice.
pub fn catch_panic<F: Future>(
    scope: PanicScope,
    work: F,
) -> impl Future<Output = Result<F::Output, Panicked>> {
    let done = SCOPE.scope(scope, AssertUnwindSafe(work).catch_unwind());
    done.map(move |done| {
        done.map_err(|payload| {
            scope.count();
            Panicked { message: message(payload.as_ref()) }
        })
    })
}

/// [`catch_panic`] for synchronous work.
///
/// # Errors
/// The work panicked.
pub fn catch_panic_sync<T>(scope: PanicScope, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let ready = catch_panic(scope, async { work() }).now_or_never();
    ready.unwrap_or_else(|| Err(Panicked { message: "blocking work returned Pending".to_owned() }))
}

/// Installs the panic hook: logs every panic with its source location and scope, and counts those that are not
/// caught.
pub fn install_hook() {
    panic::set_hook(Box::new(report));
}

fn report(info: &PanicHookInfo<'_>) {
    let caught = SCOPE.try_with(|scope| *scope);
    let scope = caught.unwrap_or_else(|_| {
        PanicScope::Other.count();
        PanicScope::Other
    });
    let location = info.location().map(ToString::to_string);
    tracing::error!(
        panic = message(info.payload()),
        location = location.unwrap_or_default(),
        thread = std::thread::current().name().unwrap_or_default(),
        scope = %scope,
        "Observed a panic"
    );
}

/// The part of the message that cannot contain a value: a literal as it is; of a formatted message the text before
/// the first quote or colon, because values follow these in the standard library's messages.
fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(literal) = payload.downcast_ref::<&str>() {
        return (*literal).to_owned();
    }
    let Some(formatted) = payload.downcast_ref::<String>() else {
        return "no message".to_owned();
    };
    if let Some(numbers) = formatted.strip_prefix("index out of bounds: ")
        && !numbers.contains(['"', '`', '\''])
    {
        return formatted.clone();
    }
    let known = UNWRAPPED.iter().find(|known| formatted.starts_with(**known));
    let (kept, rest) = formatted.split_at(known.map_or(0, |known| known.len()));
    let end = rest.find(['"', '`', '\'', ':', '\n']).unwrap_or(rest.len());
    let shown = rest.get(..end).unwrap_or_default();
    if end < rest.len() { format!("{kept}{}…", shown) } else { format!("{kept}{shown}") }
}

/// Prefixes with quotes that do not enclose values.
const UNWRAPPED: [&str; 1] = ["called `Result::unwrap()` on an `Err` value"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;
    use std::sync::Arc;

    fn count(wanted: PanicScope) -> u64 {
        let found = counts().find(|(label, _)| *label == wanted.label());
        found.unwrap().1
    }

    #[tokio::test]
    async fn work_that_panics_is_counted_and_gives_back_what_it_holds() {
        let held = Arc::new(());
        let (before, holds) = (count(PanicScope::Stats), held.clone());
        let work = async move {
            let _holds = holds;
            tokio::task::yield_now().await;
            panic!("injected");
        };
        let ended: Result<(), _> = catch_panic(PanicScope::Stats, work).await;
        assert_eq!(ended.unwrap_err().to_string(), "panicked: injected");
        assert!(count(PanicScope::Stats) > before);
        assert_eq!(Arc::strong_count(&held), 1);
        assert_eq!(catch_panic(PanicScope::Stats, async { 1 }).await, Ok(1));
        assert_eq!(catch_panic_sync(PanicScope::Stats, || 1), Ok(1));
    }

    #[test]
    fn the_message_of_a_panic_shows_no_value() {
        const TEXT: &str = "password";
        fn failed() -> Result<(), String> {
            Err(TEXT.to_owned())
        }
        let table: [(fn(), &str); 7] = [
            (
                || {
                    panic!("a literal: `as` it is");
                },
                "a literal: `as` it is",
            ),
            (|| failed().unwrap(), "called `Result::unwrap()` on an `Err` value…"),
            (|| failed().expect("read the key"), "read the key…"),
            (|| assert_eq!(TEXT, "other"), "assertion …"),
            (
                || {
                    panic!("cannot read the key: {TEXT}");
                },
                "cannot read the key…",
            ),
            (
                || drop(vec![vec![0_u8]; 2][TEXT.len()].clone()),
                "index out of bounds: the len is 2 but the index is 8",
            ),
            (|| panic_any(7), "no message"),
        ];
        for (panics, shown) in table {
            let payload = panic::catch_unwind(panics).unwrap_err();
            assert_eq!(message(payload.as_ref()), shown);
        }
        // Newer standard libraries say the length in place of the text.
        let sliced = panic::catch_unwind(|| drop(TEXT[..TEXT.len() + 1].to_owned()));
        let shown = message(sliced.unwrap_err().as_ref());
        assert!(shown.starts_with("end byte index 9 is out of bounds"), "{shown}");
        assert!(!shown.contains(TEXT), "{shown}");
    }
}
