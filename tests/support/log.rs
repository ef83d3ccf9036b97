//! The kubelet's log: on the test's own output, which is shown when the test fails, or kept for it.

use std::fmt::Write as _;
use std::sync::Arc;

use kubelet::base::clock::{self, Instant};
use parking_lot::Mutex;
use tracing::dispatcher::{self, DefaultGuard};
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

struct Printer<W> {
    start: Instant,
    write: W,
}

/// Lines of one or several kubelets, one after the other.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// One for all threads: a span may be closed on another thread than it was opened on.
    dispatch: Dispatch,
}

impl Log {
    pub fn new() -> Log {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = lines.clone();
        let dispatch = printer(move |line| kept.lock().push(line));
        Log { lines, dispatch }
    }

    /// Shows it if the test fails.
    pub fn shown_on_panic(&self) -> ShownOnPanic {
        ShownOnPanic(self.clone())
    }

    /// Shows it.
    pub fn print(&self) {
        for line in self.lines.lock().iter() {
            println!("{line}");
        }
    }
}

/// Shows a log when its test fails.
pub struct ShownOnPanic(Log);

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.print();
        }
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber, W: Fn(String) + 'static> Layer<S> for Printer<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > Level::DEBUG || !metadata.target().starts_with("kubelet") {
            return;
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        let seconds = clock::since(self.start).as_secs_f64();
        let (level, target) = (metadata.level(), metadata.target());
        (self.write)(format!("{seconds:7.3} {level} {target}:{}", line.0));
    }
}

/// Until dropped, what happens on this thread is printed.
pub fn print_on_this_thread() -> DefaultGuard {
    dispatcher::set_default(&printer(|line| println!("{line}")))
}

/// Until dropped, what happens on this thread is kept.
pub fn keep(log: &Log) -> DefaultGuard {
    dispatcher::set_default(&log.dispatch)
}

fn printer(write: impl Fn(String) + Send + Sync + 'static) -> Dispatch {
    let start = clock::instant();
    Dispatch::new(tracing_subscriber::registry().with(Printer { start, write }))
}
