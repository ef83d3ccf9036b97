//! The containers and sandboxes that changed, as the event stream passes them to the PLEG: repeated changes of one
//! coalesce, and the stream never waits.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::PodUid;

/// More pending containers and sandboxes than this are replaced by one relist.
const MAX_ITEMS: usize = 10_000;

/// A source of events of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuntimeEventSource {
    /// None: not connected, or the runtime has no events. Only relists find changes.
    #[default]
    None,
    /// The CRI's GetContainerEvents. The runtime sends an event after it has changed its state.
    Cri,
    /// containerd's task events. Exits only; each is delayed until the CRI reports it as well.
    Containerd,
}

/// What changed since the changes were last taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeChanges {
    /// A relist is needed: the stream was (re)connected, or there were too many changes.
    pub relist: bool,
    /// Ids of containers or sandboxes to read, with the pod's UID if the event has it.
    pub items: HashMap<String, Option<PodUid>>,
    /// The current source of events.
    pub source: RuntimeEventSource,
}

#[derive(Default)]
struct PendingChanges {
    changes: RuntimeChanges,
    changed: bool,
}

#[derive(Default)]
struct ChangesInner {
    pending: Mutex<PendingChanges>,
    notify: Notify,
}

pub(super) struct ChangeWriter(Arc<ChangesInner>);

/// The reader of the changes; there is only one.
pub struct ChangeReader(Arc<ChangesInner>);

pub(super) fn change_channel() -> (ChangeWriter, ChangeReader) {
    let shared = Arc::<ChangesInner>::default();
    (ChangeWriter(shared.clone()), ChangeReader(shared))
}

impl ChangeWriter {
    /// Records that a container or sandbox changed.
    pub(super) fn mark(&self, id: String, pod: Option<PodUid>) {
        self.change(|changes| {
            if changes.relist {
                return;
            }
            let known = changes.items.entry(id).or_default();
            if pod.is_some() {
                *known = pod;
            }
            if changes.items.len() > MAX_ITEMS {
                changes.items = HashMap::new();
                changes.relist = true;
            }
        });
    }

    /// Events come from `source` from now on; a relist is needed, because events may have been missed.
    pub(super) fn connected(&self, source: RuntimeEventSource) {
        self.change(|changes| {
            changes.source = source;
            changes.relist = true;
            changes.items = HashMap::new();
        });
    }

    /// Records that there is no source of events.
    pub(super) fn disconnected(&self) {
        let mut pending = self.0.pending.lock();
        if pending.changes.source != RuntimeEventSource::None {
            pending.changes.source = RuntimeEventSource::None;
            pending.changed = true;
            self.0.notify.notify_one();
        }
    }

    fn change(&self, change: impl FnOnce(&mut RuntimeChanges)) {
        let mut pending = self.0.pending.lock();
        change(&mut pending.changes);
        pending.changed = true;
        self.0.notify.notify_one();
    }
}

impl ChangeReader {
    /// Waits until there are changes and takes all of them. Safe to cancel.
    pub async fn take(&self) -> RuntimeChanges {
        loop {
            if let Some(changes) = self.take_now() {
                return changes;
            }
            self.0.notify.notified().await;
        }
    }

    /// Takes the changes without waiting; `None` if there are none.
    pub fn take_now(&self) -> Option<RuntimeChanges> {
        let mut pending = self.0.pending.lock();
        if !std::mem::take(&mut pending.changed) {
            return None;
        }
        let source = pending.changes.source;
        Some(std::mem::replace(
            &mut pending.changes,
            RuntimeChanges { source, ..RuntimeChanges::default() },
        ))
    }

    /// The current source of events.
    pub fn source(&self) -> RuntimeEventSource {
        self.0.pending.lock().changes.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn marks_coalesce_and_a_known_pod_is_not_forgotten() {
        let (writer, reader) = change_channel();
        writer.mark("a".into(), Some(PodUid::from("u")));
        writer.mark("a".into(), None);
        writer.mark("b".into(), None);
        let changes = reader.take().await;
        assert!(!changes.relist);
        assert_eq!(changes.items.len(), 2);
        assert_eq!(changes.items["a"], Some(PodUid::from("u")));
        assert_eq!(reader.take_now(), None);
    }

    #[test]
    fn a_flood_becomes_one_relist() {
        let (writer, reader) = change_channel();
        (0..MAX_ITEMS * 3).for_each(|n| writer.mark(n.to_string(), None));
        let changes = reader.take_now().unwrap();
        assert!(changes.relist);
        assert!(changes.items.is_empty());
        writer.mark("x".into(), None);
        assert_eq!(reader.take_now().unwrap().items.len(), 1);
    }

    #[test]
    fn a_lost_stream_is_reported_once() {
        let (writer, reader) = change_channel();
        writer.connected(RuntimeEventSource::Cri);
        assert_eq!(reader.source(), RuntimeEventSource::Cri);
        assert!(reader.take_now().unwrap().relist);
        writer.disconnected();
        assert_eq!(reader.take_now(), Some(RuntimeChanges::default()));
        writer.disconnected();
        assert_eq!(reader.take_now(), None);
    }
}
