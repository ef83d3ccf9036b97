//! The kubelet's log on the test's own output, which is shown when the test fails.

use std::fmt::Write as _;
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

struct Printer {
    start: Instant,
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

impl<S: Subscriber> Layer<S> for Printer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > Level::DEBUG || !metadata.target().starts_with("kubelet") {
            return;
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        let seconds = self.start.elapsed().as_secs_f64();
        let (level, target) = (metadata.level(), metadata.target());
        println!("{seconds:7.3} {level} {target}:{}", line.0);
    }
}

/// Until dropped, what happens on this thread is printed.
pub(crate) fn print_on_this_thread() -> tracing::subscriber::DefaultGuard {
    let printer = Printer {
        start: Instant::now(),
    };
    tracing::subscriber::set_default(tracing_subscriber::registry().with(printer))
}
