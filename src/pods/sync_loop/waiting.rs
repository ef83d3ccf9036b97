//! Pods that wait for admission.

use super::SyncLoop;
use crate::{
    model::{Pod, PodExt, reasons::event},
    state::events::ObjectRef,
};
use std::time::Duration;
use tokio::time::Instant;

/// The longest time that a pod waits before it is rejected.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The longest time until a pod that waits is checked again.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// A pod that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    since: Instant,
    /// There was an event.
    announced: bool,
}

impl SyncLoop {
    /// Whether the wait for admission has timed out; if not, the pod is held, with an event after `event_delay`.
    pub(super) fn admission_timed_out(
        &mut self,
        pod: &Pod,
        why: &str,
        event_delay: Duration,
    ) -> bool {
        let uid = pod.uid();
        if !self.waiting.contains_key(&uid) {
            self.hold(pod, why);
        }
        let waiting = self.waiting.entry(uid.clone()).or_insert(Waiting {
            since: Instant::now(),
            announced: false,
        });
        let waited = waiting.since.elapsed();
        if waited >= TIMEOUT {
            return true;
        }
        self.held.insert(uid);
        if waited >= event_delay && !waiting.announced {
            waiting.announced = true;
            let object = ObjectRef::pod(pod);
            let events = &self.pod_sync.events;
            events.warning(&object, event::ADMISSION_PENDING, why);
        }
        false
    }

    /// A pod waits for its place, or for more of the node.
    pub(super) fn something_waits(&self) -> bool {
        !self.waiting.is_empty() || self.resizes.is_some_wanted()
    }

    /// Tries again to admit the pods that wait, those that wait longest first.
    pub(super) fn retry_waiting(&mut self) {
        let mut waiting: Vec<_> = self.waiting.iter().collect();
        waiting.sort_by_key(|(_, waiting)| waiting.since);
        let uids: Vec<_> = waiting.into_iter().map(|(uid, _)| uid.clone()).collect();
        let manager = self.manager.reader();
        for uid in uids {
            if let Some(pod) = manager.get(&uid) {
                self.create_held(pod);
            } else {
                self.waiting.remove(&uid);
            }
        }
    }
}
