//! Hints from the runtime that a container changed.
//!
//! One task owns the stream. It prefers CRI events; if the runtime has none, it subscribes to containerd's own event
//! service on the same socket. If there is none either, or if the runtime closes every stream immediately, the PLEG
//! depends on relists, and the task retries every few minutes. After every (re)connect it requests a resync, because
//! events may have been missed. A hint only names an item to read again; the content of an event is not used.

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

/// Returns the task that receives the events of `runtime`, to be spawned, and the reader of its hints.
pub fn event_stream(runtime: RuntimeClient, metrics: EventMetrics) -> (EventStream, HintReader) {
    let (writer, reader) = hints::hint_channel();
    (EventStream::new(runtime, writer, metrics), reader)
}
