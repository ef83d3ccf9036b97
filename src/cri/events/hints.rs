//! The hints that the event stream passes to the PLEG: repeated hints coalesce, and the stream never waits.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::PodUid;

/// More pending hints than this are replaced by one resync.
const MAX_CONTAINERS: usize = 10_000;

/// The present source of hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventsMode {
    /// None: not connected, or the runtime has no events. Only relists find changes.
    #[default]
    None,
    /// The CRI's GetContainerEvents. The runtime sends an event after it has changed its state.
    Cri,
    /// containerd's task events. Only exits, each after the CRI reports it, too.
    Containerd,
}

/// The hints since they were last taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// A relist is needed: the stream was (re)connected, or there were too many hints.
    pub resync: bool,
    /// Ids of containers or sandboxes to read, with the pod's UID if the event has it.
    pub containers: HashMap<String, Option<PodUid>>,
    /// The present source of hints.
    pub mode: EventsMode,
}

#[derive(Default)]
struct PendingHints {
    hints: Hints,
    changed: bool,
}

#[derive(Default)]
struct HintsInner {
    pending: Mutex<PendingHints>,
    notify: Notify,
}

pub(super) struct HintWriter(Arc<HintsInner>);

/// The reader of the hints; there is only one.
pub struct HintReader(Arc<HintsInner>);

pub(super) fn hint_channel() -> (HintWriter, HintReader) {
    let shared = Arc::<HintsInner>::default();
    (HintWriter(shared.clone()), HintReader(shared))
}

impl HintWriter {
    /// Adds a hint that a container or sandbox changed.
    pub(super) fn container(&self, id: String, pod: Option<PodUid>) {
        self.mark(|hints| {
            if hints.resync {
                return;
            }
            let known = hints.containers.entry(id).or_default();
            if pod.is_some() {
                *known = pod;
            }
            if hints.containers.len() > MAX_CONTAINERS {
                hints.containers = HashMap::new();
                hints.resync = true;
            }
        });
    }

    /// Hints come from `mode` from now on; a relist is needed, because events may have been missed.
    pub(super) fn connected(&self, mode: EventsMode) {
        self.mark(|hints| {
            hints.mode = mode;
            hints.resync = true;
            hints.containers = HashMap::new();
        });
    }

    /// Records that there is no source of hints.
    pub(super) fn disconnected(&self) {
        let mut pending = self.0.pending.lock();
        if pending.hints.mode != EventsMode::None {
            pending.hints.mode = EventsMode::None;
            pending.changed = true;
            self.0.notify.notify_one();
        }
    }

    fn mark(&self, change: impl FnOnce(&mut Hints)) {
        let mut pending = self.0.pending.lock();
        change(&mut pending.hints);
        pending.changed = true;
        self.0.notify.notify_one();
    }
}

impl HintReader {
    /// Waits until there are hints and takes all of them. Safe to cancel.
    pub async fn take(&self) -> Hints {
        loop {
            if let Some(hints) = self.take_now() {
                return hints;
            }
            self.0.notify.notified().await;
        }
    }

    /// Takes the hints without waiting; `None` if there are none.
    pub fn take_now(&self) -> Option<Hints> {
        let mut pending = self.0.pending.lock();
        if !std::mem::take(&mut pending.changed) {
            return None;
        }
        let mode = pending.hints.mode;
        Some(std::mem::replace(
            &mut pending.hints,
            Hints {
                mode,
                ..Hints::default()
            },
        ))
    }

    /// The present source of hints.
    pub fn mode(&self) -> EventsMode {
        self.0.pending.lock().hints.mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn marks_coalesce_and_a_known_pod_is_not_forgotten() {
        let (writer, reader) = hint_channel();
        writer.container("a".into(), Some(PodUid::from("u")));
        writer.container("a".into(), None);
        writer.container("b".into(), None);
        let hints = reader.take().await;
        assert!(!hints.resync);
        assert_eq!(hints.containers.len(), 2);
        assert_eq!(hints.containers["a"], Some(PodUid::from("u")));
        assert_eq!(reader.take_now(), None);
    }

    #[test]
    fn a_flood_becomes_one_resync() {
        let (writer, reader) = hint_channel();
        (0..MAX_CONTAINERS * 3).for_each(|n| writer.container(n.to_string(), None));
        let hints = reader.take_now().unwrap();
        assert!(hints.resync);
        assert!(hints.containers.is_empty());
        writer.container("x".into(), None);
        assert_eq!(reader.take_now().unwrap().containers.len(), 1);
    }

    #[test]
    fn a_lost_stream_is_told_once() {
        let (writer, reader) = hint_channel();
        writer.connected(EventsMode::Cri);
        assert_eq!(reader.mode(), EventsMode::Cri);
        assert!(reader.take_now().unwrap().resync);
        writer.disconnected();
        assert_eq!(reader.take_now(), Some(Hints::default()));
        writer.disconnected();
        assert_eq!(reader.take_now(), None);
    }
}
