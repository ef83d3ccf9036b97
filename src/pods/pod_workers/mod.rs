//! One worker per pod: syncs of a pod never overlap, the latest update wins, kills are never dropped.
//!
//! The first update of a pod makes an entry with a state machine (`state`). A static pod then waits in the start gate
//! until no other pod of its name runs. The entry gets a task, and the task a message, which is only the kind of
//! update. The task asks the state machine for the next call of the syncer, runs it, reports how it ended, and waits
//! for a message or for the time that the call returned. Messages that arrive during a call merge to the strongest one.
//!
//! A kill cancels the running sync. The next calls stop the containers until one call succeeds; after that they clean
//! up. The finished entry stays until the sync loop has removed the rest of the pod, so that no pod of the same UID
//! starts before.
//!
//! A call that fails or panics is logged and repeated after a delay. One that hangs holds only its own task: the newest
//! pod and the earliest end of the grace period are kept in the state meanwhile.
//!
//! * Owns: the phase of each pod; its worker task, with a channel of one update and a slot in which later updates are
//!   merged (upstream's `pendingUpdate`); and the start gate, which lets one static pod of a full name run at a time.
//! * Woken by: `update_pod`, each worker's timer for its next sync, and syncs that end.
//! * Publishes: the phases, and the set of finished or forgotten pods that the sync loop has to collect.
//! * Must never forget a pod that has been started and is not finished, start a container after the termination of
//!   its pod began, or lengthen a grace period.
//! * Upstream: `pkg/kubelet/pod_workers.go`, with three deviations: the grace period is one absolute
//!   deadline that starts when stopping begins; an explicit grace period of zero means the minimum of a second instead
//!   of "not given"; and the start gate wakes the next pod of a name instead of having it poll.

mod delay;
mod gate;
pub mod metrics;
mod observer;
mod phase;
mod registry;
mod state;
mod task;
mod update;

#[cfg(test)]
mod tests;

pub use delay::Delays;
pub use observer::PodSyncObserver;
pub use phase::{Grace, Termination, WorkerPhase};
pub use update::UpdatePodOptions;

use crate::base::DirtySet;
use crate::base::clock::{self, Instant};
use crate::model::{Pod, PodExt, PodFullName, PodStatus, PodUid};
use crate::pods::pod_sync::syncer::PodSyncer;
use parking_lot::Mutex;
use registry::WorkerMap;
use state::{Input, PodSyncStatus};
use std::collections::HashSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The workers; cheap to clone.
#[derive(Clone)]
pub struct PodWorkers {
    shared: Arc<PodWorkersInner>,
}

struct PodWorkersInner {
    map: Mutex<WorkerMap>,
    syncer: Arc<dyn PodSyncer>,
    observer: Option<PodSyncObserver>,
    delays: Delays,
    finished: DirtySet<PodUid>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// A pod that has a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPod {
    /// UID.
    pub uid: PodUid,
    /// Name and namespace.
    pub full_name: PodFullName,
    /// The phase of its worker.
    pub phase: WorkerPhase,
    /// Whether it has a spec; an orphan is known only from the runtime.
    pub has_spec: bool,
    /// Whether it is a static pod with a spec; false for an orphan.
    pub is_static: bool,
}

/// The pod of a worker, and whether it uses resources of the node.
#[derive(Clone, Debug)]
pub struct PodOfWorker {
    /// UID.
    pub uid: PodUid,
    /// The pod as the worker has it; `None` for an orphan.
    pub pod: Option<Arc<Pod>>,
    /// It was added again after its termination began: what runs is the earlier pod.
    pub restart_requested: bool,
    /// Containers of it may be running.
    pub could_have_running_containers: bool,
}

/// What the worker of a pod does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// The phase of the worker.
    pub phase: WorkerPhase,
    /// When the running sync began; `None` if none is running.
    pub sync_since: Option<Instant>,
    /// When the next sync begins at the latest; `None` while one is running.
    pub next_sync: Option<Instant>,
    /// The pods of the same name that have to end before this one may start.
    pub waits_for: Vec<PodUid>,
}

/// The result of [`PodWorkers::remove_terminated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerRemoval {
    /// The pod keeps its worker.
    Kept,
    /// The pod has no worker (any more). If it is desired, it has to be created.
    Removed,
}

/// The result of [`PodWorkers::sync_known_pods`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconciledWorkers {
    /// Pods that were finished, or had never been started, and whose workers were forgotten.
    pub forgotten: Vec<PodUid>,
    /// Desired pods without a worker.
    pub to_create: Vec<PodUid>,
}

impl PodWorkers {
    /// No workers yet. `observer` measures what the syncer does.
    pub fn new(
        syncer: Arc<dyn PodSyncer>,
        observer: Option<PodSyncObserver>,
        delays: Delays,
    ) -> Self {
        Self {
            shared: Arc::new(PodWorkersInner {
                map: Mutex::default(),
                syncer,
                observer,
                delays,
                finished: DirtySet::default(),
                tasks: TaskTracker::new(),
                shutdown: CancellationToken::new(),
            }),
        }
    }

    /// Updates the worker of a pod, or creates one. Never waits: a busy worker takes the newest pod and the strongest
    /// update when its sync ends; a kill ends a running sync at its next safe point. A finished pod gets no new worker
    /// before [`Self::remove_terminated`] removed the old one. Needs a tokio runtime.
    pub fn update_pod(&self, options: UpdatePodOptions) {
        if !self.shared.shutdown.is_cancelled() {
            self.shared.update(options, clock::instant());
        }
    }

    /// As [`PodWorkers::update_pod`], but does not create a worker.
    pub fn update_known_pod(&self, options: UpdatePodOptions) {
        let uid = options.pod.as_ref().map(|pod| pod.uid());
        if let Some(uid) = uid
            && !self.shared.shutdown.is_cancelled()
        {
            let mut map = self.shared.map.lock();
            self.shared.handle_input(&mut map, &uid, Input::Update(options), clock::instant());
        }
    }

    /// Replaces the worker's pod without a sync, because only its status changed. Without this, the worker would keep
    /// the old version in memory.
    pub fn refresh(&self, pod: Arc<Pod>) {
        let uid = pod.uid();
        let mut map = self.shared.map.lock();
        self.shared.handle_input(&mut map, &uid, Input::Refreshed(pod), clock::instant());
    }

    /// Retries a failed stop or clean-up of a pod that no source has any more, because its runtime status changed.
    pub fn runtime_status_changed(&self, uid: &PodUid) {
        if !self.shared.shutdown.is_cancelled() {
            let mut map = self.shared.map.lock();
            self.shared.handle_input(&mut map, uid, Input::RuntimeStatusChanged, clock::instant());
        }
    }

    /// Retries every failed sync, stop and clean-up immediately, because the runtime is back after an outage.
    pub fn runtime_recovered(&self) {
        if self.shared.shutdown.is_cancelled() {
            return;
        }
        let now = clock::instant();
        let mut map = self.shared.map.lock();
        for uid in map.uids() {
            self.shared.handle_input(&mut map, &uid, Input::RuntimeRecovered, now);
        }
    }

    /// Waits for pods that finished, were forgotten, or were added again after they finished, and takes them. For the
    /// sync loop, which then calls [`PodWorkers::remove_terminated`].
    pub async fn finished(&self) -> HashSet<PodUid> {
        self.shared.finished.take().await
    }

    /// Removes the worker of a finished pod if no source has it (`desired` is false) or it was added again.
    pub fn remove_terminated(&self, uid: &PodUid, desired: bool) -> WorkerRemoval {
        let mut map = self.shared.map.lock();
        match map.state(uid) {
            None => WorkerRemoval::Removed,
            Some(state) => {
                if !state.is_finished() || (desired && !state.restart_requested()) {
                    return WorkerRemoval::Kept;
                }
                map.forget(uid);
                WorkerRemoval::Removed
            }
        }
    }

    /// Compares the workers with all desired pods. Other pods are stopped, or forgotten if they are finished or never
    /// started; a finished pod that was added again is forgotten, too. Only valid once every source has delivered. From
    /// then on, a pod without a worker is known to have nothing to run here (upstream's `podsSynced`).
    pub fn sync_known_pods(&self, desired: &HashSet<PodUid>) -> ReconciledWorkers {
        let now = clock::instant();
        let mut map = self.shared.map.lock();
        map.pods_synced = true;
        let mut forgotten = Vec::new();
        for uid in map.uids() {
            let finished_restart = map
                .state(&uid)
                .is_some_and(|state| state.is_finished() && state.restart_requested());
            if !desired.contains(&uid) || finished_restart {
                self.shared.handle_input(&mut map, &uid, Input::NotDesired, now);
            }
            if map.state(&uid).is_none() {
                forgotten.push(uid);
            }
        }
        let unknown = |uid: &&PodUid| map.state(uid).is_none();
        ReconciledWorkers {
            to_create: desired.iter().filter(unknown).cloned().collect(),
            forgotten,
        }
    }

    /// Blocks the full names of static pods that run without a worker, and releases names whose pod no longer runs.
    /// Called with the runtime statuses of all pods, before the first update and then by housekeeping.
    pub fn update_start_gate(&self, pods: &[Arc<PodStatus>]) {
        let now = clock::instant();
        let mut map = self.shared.map.lock();
        for uid in map.update_start_gate(pods) {
            self.shared.handle_input(&mut map, &uid, Input::MayStart, now);
        }
    }

    /// Stops all workers: running syncs end at their next safe point. No pod is stopped by this. The caller sets the
    /// deadline.
    pub async fn stop(&self) {
        self.shared.shutdown.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl PodWorkers {
    /// Every pod that has a worker, in no order.
    pub fn worker_pods(&self) -> Vec<WorkerPod> {
        self.shared.map.lock().worker_pods()
    }

    /// The pods of all workers, in no order.
    pub fn pods(&self) -> Vec<PodOfWorker> {
        self.shared.map.lock().pods()
    }

    /// Numbers of entries by kind, for metrics.
    pub fn sizes(&self) -> [(&'static str, usize); 2] {
        self.shared.map.lock().sizes()
    }

    /// What the pod's worker does; `None` without one.
    pub fn worker_status(&self, uid: &PodUid) -> Option<WorkerStatus> {
        self.shared.map.lock().worker_status(uid)
    }

    /// Whether the pod has a worker.
    pub fn has_worker(&self, uid: &PodUid) -> bool {
        self.shared.map.lock().state(uid).is_some()
    }

    /// Whether the pod was added again while or after it was terminated.
    pub fn restart_requested(&self, uid: &PodUid) -> bool {
        self.check_state(uid, PodSyncStatus::restart_requested, |_| false)
    }

    /// Whether the pod is terminating or terminated.
    pub fn is_pod_termination_requested(&self, uid: &PodUid) -> bool {
        self.check_state(uid, |state| state.termination().is_some(), |_| false)
    }

    /// Whether containers of the pod may be running.
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        let map = self.shared.map.lock();
        let could_run = |state: &PodSyncStatus| state.phase().could_have_running_containers();
        map.state(uid).map_or(!map.pods_synced, could_run)
    }

    /// Whether the pod may have running containers: a terminating pod is active until they have exited. The opposite of
    /// upstream's `isPodInactive`.
    pub fn is_active(&self, pod: &Pod) -> bool {
        let uid = pod.uid();
        self.could_have_running_containers(&uid)
            && (!pod.is_terminal() || self.is_pod_termination_requested(&uid))
    }

    /// Whether a static pod with a spec and this name, other than `except`, is not finished; orphans do not count.
    pub fn is_name_in_use(&self, name: &PodFullName, except: Option<&PodUid>) -> bool {
        let known = self.worker_pods();
        let mut known = known.iter().filter(|pod| pod.full_name == *name);
        known.any(|pod| {
            let ended = matches!(pod.phase, WorkerPhase::Finished { .. });
            pod.is_static && !ended && Some(&pod.uid) != except
        })
    }

    /// Whether nothing is left to do for the pod.
    pub fn should_pod_be_finished(&self, uid: &PodUid) -> bool {
        self.check_state(uid, PodSyncStatus::is_finished, |pods_synced| pods_synced)
    }

    /// Applies `known` to the state of a pod. For a pod without a worker, applies `unknown` to whether the workers have
    /// been compared with all desired pods.
    fn check_state(
        &self,
        uid: &PodUid,
        known: impl FnOnce(&PodSyncStatus) -> bool,
        unknown: impl FnOnce(bool) -> bool,
    ) -> bool {
        let map = self.shared.map.lock();
        match map.state(uid) {
            Some(state) => known(state),
            None => unknown(map.pods_synced),
        }
    }
}
