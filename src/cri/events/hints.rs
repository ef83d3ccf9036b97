//! The set between the event stream and its reader: marks coalesce, the producer never waits.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::PodUid;

/// More marked containers than this become one resync.
const MAX: usize = 10_000;

/// Where hints come from at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventsMode {
    /// From nowhere: not connected, or the runtime has no events. Only a relist shows changes.
    #[default]
    None,
    /// From the CRI's GetContainerEvents, sent after the runtime changed its own state.
    Cri,
    /// From containerd's task events: exits only, reported once the CRI shows them too.
    Containerd,
}

/// Everything marked since the last read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// The stream was (re)connected or too much changed: list everything.
    pub resync: bool,
    /// Containers (or sandboxes) to read by id, with the pod's UID where the event has it.
    pub containers: HashMap<String, Option<PodUid>>,
    /// Where hints come from now.
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

/// The one reader.
pub struct HintReader(Arc<HintsInner>);

pub(super) fn hint_channel() -> (HintWriter, HintReader) {
    let shared = Arc::<HintsInner>::default();
    (HintWriter(shared.clone()), HintReader(shared))
}

impl HintWriter {
    /// A container changed.
    pub(super) fn container(&self, id: String, pod: Option<PodUid>) {
        self.mark(|hints| {
            if hints.resync {
                return;
            }
            let known = hints.containers.entry(id).or_default();
            if pod.is_some() {
                *known = pod;
            }
            if hints.containers.len() > MAX {
                hints.containers = HashMap::new();
                hints.resync = true;
            }
        });
    }

    /// Hints come from `mode` from now on, and what came before is incomplete.
    pub(super) fn connected(&self, mode: EventsMode) {
        self.mark(|hints| {
            hints.mode = mode;
            hints.resync = true;
            hints.containers = HashMap::new();
        });
    }

    /// There are no hints until further notice.
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
    /// Waits until there is something new and takes all of it. Safe to cancel: nothing is lost.
    pub async fn take(&self) -> Hints {
        loop {
            if let Some(hints) = self.take_now() {
                return hints;
            }
            self.0.notify.notified().await;
        }
    }

    /// What is new, without waiting.
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

    /// Where hints come from at the moment.
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
        (0..MAX * 3).for_each(|n| writer.container(n.to_string(), None));
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
