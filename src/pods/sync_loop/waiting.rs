//! Admission of pods, and those that wait for it.

use super::{
    SyncLoop,
    admission::{NodeView, Others, Refusal, admit},
};
use crate::{
    model::{Pod, PodExt, PodUid, reasons::event},
    state::events::ObjectRef,
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long a pod waits for what may be different in a moment.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The longest time until a pod that waits is checked again.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

impl SyncLoop {
    /// Publishes the pod as failed if the node rejects it; its worker then ends it. False if the pod is held because
    /// it may be admitted in a moment.
    pub(super) fn admit(&mut self, pod: &Arc<Pod>, runs: bool) -> bool {
        let Err(refusal) = self.check_admission(pod, runs) else {
            return true;
        };
        let rejection = match refusal {
            Refusal::Rejected(rejection) => Some(rejection),
            Refusal::NotYet { why, rejection } => {
                if !self.has_waited(pod, &why) {
                    return false;
                }
                rejection
            }
        };
        if let Some(rejection) = rejection {
            self.metrics.rejected(rejection.reason);
            self.pod_sync
                .reject(pod, rejection.reason, &rejection.message);
        }
        true
    }

    fn check_admission(&self, pod: &Pod, runs: bool) -> Result<(), Refusal> {
        let admission = &self.admission;
        let object = admission.node.borrow().clone();
        let others = if object.is_some() && !runs {
            self.admitted_but(&pod.uid())
        } else {
            Others::default()
        };
        let node = NodeView {
            sysctls: &admission.sysctls,
            app_armor: admission.app_armor,
            features: *admission.features.borrow(),
            in_place: runs,
            object: object.as_deref(),
            others: &others,
        };
        admit(pod, &node)
    }

    /// Whether a pod has waited long enough; if not, it is held.
    fn has_waited(&mut self, pod: &Pod, why: &str) -> bool {
        let uid = pod.uid();
        if let Some(since) = self.waiting.get(&uid) {
            let is_over = since.elapsed() >= TIMEOUT;
            if !is_over {
                self.held.insert(uid);
            }
            return is_over;
        }
        let object = ObjectRef::pod(pod);
        let events = &self.pod_sync.events;
        events.warning(&object, event::ADMISSION_PENDING, why);
        self.hold(pod, why);
        self.waiting.insert(uid, Instant::now());
        false
    }

    /// Tries again to admit the pods that wait, those that wait longest first.
    pub(super) fn retry_waiting(&mut self) {
        let mut waiting: Vec<_> = self.waiting.iter().collect();
        waiting.sort_by_key(|(_, since)| **since);
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

    /// Desired pods that use up the node: all that have a worker and of which something may run.
    fn admitted_but(&self, uid: &PodUid) -> Others {
        let mut others = Others::default();
        for pod in self.manager.reader().pods() {
            let other = pod.uid();
            let ended = self.has_ended(&other);
            let in_use = || !ended || self.workers.could_have_running_containers(&other);
            if other == *uid || !self.workers.knows(&other) || !in_use() {
                continue;
            }
            let is_ending = ended
                || pod.is_being_deleted()
                || self.workers.is_pod_termination_requested(&other);
            if is_ending {
                others.ending.push(pod);
            } else {
                others.staying.push(pod);
            }
        }
        others
    }
}
