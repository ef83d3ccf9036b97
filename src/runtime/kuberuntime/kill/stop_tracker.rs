//! The state of stops between attempts. If an attempt fails, the next one has the same deadline and does not run hooks
//! again.

use super::running::RunningStops;
use crate::model::{ContainerId, GraceDeadline, PodUid};
use crate::state::pod_state_store::PodStateStore;
use parking_lot::Mutex;
use std::collections::HashMap;

/// What a sync stops of a pod that is still desired.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StopScope {
    /// All containers, because the sandbox is replaced or no container is left to run.
    Pod,
    /// One instance.
    Container(ContainerId),
}

/// The stops of all pods. Deadlines are in memory; which hooks have run is in the pod state store, so
/// that neither a failed stop nor a restart of the kubelet runs a hook twice.
#[derive(Debug)]
pub(in crate::runtime::kuberuntime) struct StopTracker {
    deadlines: Mutex<HashMap<PodUid, HashMap<StopScope, GraceDeadline>>>,
    running: RunningStops,
    state_store: PodStateStore,
}

impl StopTracker {
    pub(super) fn new(state_store: PodStateStore) -> Self {
        Self { deadlines: Mutex::default(), running: RunningStops::default(), state_store }
    }

    /// Begins an attempt and returns its deadline: the earlier of `new_deadline` and the deadline of the
    /// first attempt.
    pub(super) fn begin(
        &self,
        uid: &PodUid,
        scope: StopScope,
        new_deadline: GraceDeadline,
    ) -> GraceDeadline {
        let mut deadlines = self.deadlines.lock();
        let of_pod = deadlines.entry(uid.clone()).or_default();
        let deadline = of_pod.entry(scope).or_insert(new_deadline);
        *deadline = new_deadline.min(*deadline);
        *deadline
    }

    /// The earliest of this deadline and those of unfinished stops of the container or of its whole pod.
    pub(super) fn limit(
        &self,
        uid: &PodUid,
        id: &ContainerId,
        new_deadline: GraceDeadline,
    ) -> GraceDeadline {
        let deadlines = self.deadlines.lock();
        let of_pod = deadlines.get(uid);
        let started = |scope| of_pod.and_then(|of_pod| of_pod.get(&scope)).copied();
        [started(StopScope::Pod), started(StopScope::Container(id.clone()))]
            .into_iter()
            .flatten()
            .fold(new_deadline, GraceDeadline::min)
    }

    /// The stops that are being carried out.
    pub(super) fn running(&self) -> &RunningStops {
        &self.running
    }

    /// Whether a stop of this instance is being carried out.
    pub(in crate::runtime::kuberuntime) fn is_stopping(&self, id: &ContainerId) -> bool {
        self.running.contains(id)
    }

    /// Number of pods with unfinished stops.
    pub(in crate::runtime::kuberuntime) fn len(&self) -> usize {
        self.deadlines.lock().len()
    }

    /// Ends a stop that succeeded. The end of a whole pod's stop ends those of its containers.
    pub(super) fn end(&self, uid: &PodUid, scope: &StopScope) {
        let mut deadlines = self.deadlines.lock();
        let Some(of_pod) = deadlines.get_mut(uid) else {
            return;
        };
        of_pod.remove(scope);
        if of_pod.is_empty() || *scope == StopScope::Pod {
            deadlines.remove(uid);
        }
    }

    /// Forgets the deadlines and hooks of unfinished stops, except of single instances that are still to be stopped: a
    /// later stop has its own deadline and runs its hooks. A call of StopContainer in progress continues.
    pub(in crate::runtime::kuberuntime) fn forget_except(
        &self,
        uid: &PodUid,
        is_to_stop: impl Fn(&str) -> bool,
    ) {
        {
            let mut deadlines = self.deadlines.lock();
            if let Some(of_pod) = deadlines.get_mut(uid) {
                of_pod.retain(|scope, _| match scope {
                    StopScope::Pod => false,
                    StopScope::Container(id) => is_to_stop(id.as_str()),
                });
                if of_pod.is_empty() {
                    deadlines.remove(uid);
                }
            }
        }
        let has_forgotten = |ran: &Vec<String>| ran.iter().any(|id| !is_to_stop(id));
        if self.state_store.read(uid, |r| has_forgotten(&r.pre_stop_ran)) {
            self.state_store.update(uid, |r| r.pre_stop_ran.retain(|id| is_to_stop(id)));
        }
    }

    /// Whether the preStop hook of an instance has run.
    pub(super) fn hook_ran(&self, uid: &PodUid, id: &ContainerId) -> bool {
        self.state_store.read(uid, |r| r.pre_stop_ran.iter().any(|ran| ran == id.as_str()))
    }

    /// Records that the preStop hook of an instance has ended, with or without an error. Waits until the record is
    /// written.
    pub(super) async fn record_hook_ran(&self, uid: &PodUid, id: &ContainerId) {
        if !self.hook_ran(uid, id) {
            self.state_store.update_and_wait(uid, |r| r.pre_stop_ran.push(id.to_string())).await;
        }
    }

    pub(in crate::runtime::kuberuntime) fn forget(&self, uid: &PodUid) {
        self.deadlines.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use std::time::Duration;

    fn stops() -> (tempfile::TempDir, StopTracker, PodUid) {
        let dir = tempfile::tempdir().unwrap();
        let state_store = PodStateStore::open(dir.path().to_path_buf()).unwrap();
        (dir, StopTracker::new(state_store), "u".into())
    }

    #[test]
    fn another_try_goes_on_with_what_is_left_and_a_later_stop_starts_afresh() {
        let (_dir, stops, uid) = stops();
        let now = clock::instant();
        let grace =
            |after, seconds| GraceDeadline::starting(now + Duration::from_secs(after), seconds);
        let scope = StopScope::Container("c".into());
        let begin = |new_deadline| stops.begin(&uid, scope.clone(), new_deadline);
        assert_eq!(begin(grace(0, 30)), grace(0, 30));
        assert_eq!(begin(grace(10, 30)), grace(0, 30));
        assert_eq!(begin(grace(10, 5)), grace(10, 5), "less is taken");
        let limit = |id: &str, new_deadline| stops.limit(&uid, &id.into(), new_deadline);
        assert_eq!(limit("c", grace(11, 30)), grace(10, 5), "by the caller that stops it");
        assert_eq!(limit("c", grace(11, 1)), grace(11, 1));
        assert_eq!(limit("other", grace(11, 30)), grace(11, 30));
        stops.end(&uid, &scope);
        assert_eq!(begin(grace(40, 30)), grace(40, 30));
        stops.forget_except(&uid, |id| id == "c");
        assert_eq!(begin(grace(50, 30)), grace(40, 30), "it is not forgotten");
        stops.forget_except(&uid, |_| false);
        assert_eq!(begin(grace(90, 30)), grace(90, 30));
        stops.end(&uid, &StopScope::Pod);
        assert!(stops.deadlines.lock().is_empty());
    }

    #[tokio::test]
    async fn a_hook_that_has_run_is_known_after_a_restart() {
        let (dir, stops, uid) = stops();
        stops.record_hook_ran(&uid, &"a".into()).await;
        // Nothing else writes the records of this store.
        let restarted = PodStateStore::open(dir.path().to_path_buf()).unwrap();
        assert!(StopTracker::new(restarted).hook_ran(&uid, &"a".into()));
    }

    #[tokio::test]
    async fn a_hook_counts_as_run_until_its_stop_is_forgotten() {
        let (dir, stops, uid) = stops();
        let (a, b) = ("a".into(), "b".into());
        stops.record_hook_ran(&uid, &a).await;
        stops.record_hook_ran(&uid, &a).await;
        assert!(stops.hook_ran(&uid, &a) && !stops.hook_ran(&uid, &b));
        assert_eq!(stops.state_store.get(&uid).pre_stop_ran, ["a"]);
        stops.forget_except(&uid, |id| id == "a");
        assert!(stops.hook_ran(&uid, &a));
        stops.forget_except(&uid, |id| id == "b");
        assert!(!stops.hook_ran(&uid, &a));
        drop(dir);
    }
}
