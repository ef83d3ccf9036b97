//! The runtime's events: which containers and sandboxes changed.
//!
//! One task owns the stream. It prefers CRI events; if the runtime has none, or delivers each to only one subscriber as
//! containerd 1.7 does, it subscribes to containerd's own event service on the same socket. If there is none either, or
//! if the runtime closes every stream immediately, the PLEG depends on relists, and the task retries every few minutes.
//! After every (re)connect it requests a relist, because events may have been missed. A change names an item to read
//! again, and its pod if the event has it; of the rest of an event, only its time is used, for a metric.

mod containerd;
mod exits;
mod changes;
mod metrics;
mod retry;
mod task;

#[cfg(test)]
mod tests;

pub use changes::{ChangeReader, RuntimeChanges, RuntimeEventSource};
pub use metrics::EventMetrics;
pub use task::EventStream;

use super::runtime::RuntimeClient;

/// Returns the task that receives the events of `runtime`, to be spawned, and the reader of its changes.
pub fn event_stream(runtime: RuntimeClient, metrics: EventMetrics) -> (EventStream, ChangeReader) {
    let (changes, reader) = changes::change_channel();
    let stream = EventStream { runtime, changes, metrics };
    (stream, reader)
}
