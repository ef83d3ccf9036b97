//! Hints from the runtime that a container changed.
//!
//! One task owns the stream. It prefers CRI events; where the runtime has none it listens to
//! containerd's own event service on the same socket; where there is none either, or where the runtime
//! closes every stream at once, readers have their relist alone, and the task tries again every few
//! minutes. After every (re)connect it requests a resync, because events may have been missed.
//! A hint only names what to read again: nothing of an event's content is used as state.

mod containerd;
mod exits;
mod hints;
mod metrics;
mod retry;
mod task;

#[cfg(test)]
mod tests;

pub use hints::{EventsMode, HintReader, Hints};
pub use metrics::EventMetrics;
pub use task::EventStream;

use super::runtime::RuntimeClient;

/// The task that listens to `runtime`, to be spawned, and the reader of its hints.
pub fn event_stream(runtime: RuntimeClient, metrics: EventMetrics) -> (EventStream, HintReader) {
    let (writer, reader) = hints::hint_channel();
    (EventStream::new(runtime, writer, metrics), reader)
}
