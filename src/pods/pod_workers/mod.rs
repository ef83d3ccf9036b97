//! One worker per pod: syncs of a pod never overlap, the latest update wins, kills are never dropped.
//!
//! * Owns: the phase of each pod, its worker task with a channel of one and one slot for the updates
//!   that were not delivered, and the gate that keeps static pods of one name apart.
//! * Woken by: `update_pod`, exact timers in the workers themselves, and syncs that end.
//! * Publishes: the phases, and the set of pods that finished or left and wait to be collected by the
//!   sync loop.
//! * Must never forget a pod that has been started and is not finished, start anything after the end
//!   of a pod began, or give more grace than before.
//! * Answers to upstream's `pkg/kubelet/pod_workers.go`; three deviations: grace runs from the moment
//!   stopping begins and is one absolute deadline, an explicit grace of zero means the minimum of a
//!   second instead of "not given", and the gate wakes the next pod instead of having it poll.

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
pub use phase::{Grace, PodEnd, WorkerPhase};
pub use update::UpdateOptions;

use crate::{
    base::DirtySet,
    model::{Pod, PodExt, PodFullName, PodStatus, PodUid},
    pods::pod_sync::syncer::PodSyncer,
};
use parking_lot::Mutex;
use registry::WorkerMap;
use state::{Input, PodState};
use std::{collections::HashSet, sync::Arc};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

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
    /// Where it is in its life.
    pub phase: WorkerPhase,
    /// Whether its spec is known; otherwise only the runtime knows it.
    pub has_spec: bool,
    /// Whether it is not a pod of an API server.
    pub is_static: bool,
}

/// What the worker of a pod does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Where the pod is in its life.
    pub phase: WorkerPhase,
    /// Since when a sync has been running, if one is.
    pub sync_since: Option<Instant>,
    /// When the next sync begins if nothing happens before, if none is running.
    pub next_sync: Option<Instant>,
    /// The pods of the same name that have to end before this one may start.
    pub waits_for: Vec<PodUid>,
}

/// What became of a pod that was to be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// It has a worker and keeps it.
    Kept,
    /// It has no worker (any more). If it is wanted, it has to be created.
    Forgotten,
}

/// What `sync_known_pods` changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// These were finished, or had never been started, and are no longer known.
    pub forgotten: Vec<PodUid>,
    /// These are wanted and have no worker: they have to be created.
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

    /// Updates the worker of a pod, or creates one. Never waits: a busy worker finds the newest pod and
    /// the strongest update when its sync is over; a kill ends a running sync at its next safe point. A pod
    /// that has just left gets no worker before it was collected. Needs a tokio runtime.
    pub fn update_pod(&self, options: UpdateOptions) {
        if !self.shared.shutdown.is_cancelled() {
            self.shared.update(options, Instant::now());
        }
    }

    /// As [`PodWorkers::update_pod`], but creates no worker: only a new pod gets one.
    pub fn update_known_pod(&self, options: UpdateOptions) {
        let uid = options.pod.as_ref().map(|pod| pod.uid());
        if let Some(uid) = uid
            && !self.shared.shutdown.is_cancelled()
        {
            let mut map = self.shared.map.lock();
            self.shared
                .input(&mut map, &uid, Input::Update(options), Instant::now());
        }
    }

    /// Replaces the worker's pod without a sync: only its status changed. Frees the version before.
    pub fn refresh(&self, pod: Arc<Pod>) {
        let uid = pod.uid();
        let mut map = self.shared.map.lock();
        self.shared
            .input(&mut map, &uid, Input::Refreshed(pod), Instant::now());
    }

    /// The runtime status of a pod that no source wants any more changed: a stop or clean-up of it that
    /// failed is tried again.
    pub fn status_changed(&self, uid: &PodUid) {
        if !self.shared.shutdown.is_cancelled() {
            let mut map = self.shared.map.lock();
            self.shared
                .input(&mut map, uid, Input::StatusChanged, Instant::now());
        }
    }

    /// The runtime was away and has returned: pods whose last sync, stop or clean-up failed are not left to
    /// their delays.
    pub fn runtime_returned(&self) {
        if self.shared.shutdown.is_cancelled() {
            return;
        }
        let now = Instant::now();
        let mut map = self.shared.map.lock();
        for uid in map.uids() {
            self.shared
                .input(&mut map, &uid, Input::RuntimeReturned, now);
        }
    }

    /// Waits for pods that finished, left, or were added again after they finished, and takes them.
    /// For the sync loop, which answers with [`PodWorkers::collect`].
    pub async fn finished(&self) -> HashSet<PodUid> {
        self.shared.finished.take().await
    }

    /// Forgets a finished pod that is not wanted any more or that was added again. `wanted` is whether
    /// a source has it.
    pub fn collect(&self, uid: &PodUid, wanted: bool) -> Collected {
        let mut map = self.shared.map.lock();
        match map.state(uid) {
            None => Collected::Forgotten,
            Some(state) => {
                let restart = state.end().is_some_and(|end| end.restart);
                if !state.is_finished() || (wanted && !restart) {
                    return Collected::Kept;
                }
                map.forget(uid);
                Collected::Forgotten
            }
        }
    }

    /// Compares with everything that is wanted: pods that are not are stopped or forgotten, depending on
    /// their phase. Only valid when every source has delivered; from then on an unknown pod is one that
    /// must not have anything here.
    pub fn sync_known_pods(&self, desired: &HashSet<PodUid>) -> Reconciled {
        let now = Instant::now();
        let mut map = self.shared.map.lock();
        map.synced = true;
        let mut forgotten = Vec::new();
        for uid in map.uids() {
            let restart = |state: &PodState| state.end().is_some_and(|end| end.restart);
            let finished_restart = map
                .state(&uid)
                .is_some_and(|state| state.is_finished() && restart(state));
            if !desired.contains(&uid) || finished_restart {
                self.shared.input(&mut map, &uid, Input::Unwanted, now);
            }
            if map.state(&uid).is_none() {
                forgotten.push(uid);
            }
        }
        let unknown = |uid: &&PodUid| map.state(uid).is_none();
        Reconciled {
            to_create: desired.iter().filter(unknown).cloned().collect(),
            forgotten,
        }
    }

    /// Takes the runtime status of all pods: while a static pod that has no worker runs there, no other
    /// pod of its full name may start. Called before the first pod is updated, and again with later
    /// complete statuses, so that names whose pod is gone become free.
    pub fn observe_runtime(&self, pods: &[Arc<PodStatus>]) {
        let now = Instant::now();
        let mut map = self.shared.map.lock();
        for uid in map.observe(pods) {
            self.shared.input(&mut map, &uid, Input::MayStart, now);
        }
    }

    /// Lets running syncs end at their next safe point, begins no new ones and waits for all workers.
    /// No pod is stopped by this; the caller sets the deadline.
    pub async fn stop(&self) {
        self.shared.shutdown.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl PodWorkers {
    /// Every pod that has a worker, in no order.
    pub fn known(&self) -> Vec<WorkerPod> {
        self.shared.map.lock().known()
    }

    /// Numbers of entries, by what they are.
    pub fn sizes(&self) -> [(&'static str, usize); 2] {
        self.shared.map.lock().sizes()
    }

    /// What the pod's worker does; `None` without one.
    pub fn worker_status(&self, uid: &PodUid) -> Option<WorkerStatus> {
        self.shared.map.lock().worker_status(uid)
    }

    /// Whether the pod has a worker.
    pub fn knows(&self, uid: &PodUid) -> bool {
        self.shared.map.lock().state(uid).is_some()
    }

    /// Whether the pod ended and was added again since.
    pub fn wants_restart(&self, uid: &PodUid) -> bool {
        let restart = |state: &PodState| state.end().is_some_and(|end| end.restart);
        self.check_state(uid, restart, |_| false)
    }

    /// Whether the pod is ending or has ended.
    pub fn is_pod_termination_requested(&self, uid: &PodUid) -> bool {
        self.check_state(uid, |state| state.end().is_some(), |_| false)
    }

    /// Whether containers of the pod may run.
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        let may_run = |state: &PodState| {
            !matches!(
                state.phase(),
                WorkerPhase::Terminated { .. } | WorkerPhase::Finished { .. }
            )
        };
        let map = self.shared.map.lock();
        map.state(uid).map_or(!map.synced, may_run)
    }

    /// Whether a static pod of this name, other than `except`, has not ended.
    pub fn is_name_in_use(&self, name: &PodFullName, except: Option<&PodUid>) -> bool {
        let known = self.known();
        let mut known = known.iter().filter(|pod| pod.full_name == *name);
        known.any(|pod| {
            let ended = matches!(pod.phase, WorkerPhase::Finished { .. });
            pod.is_static && !ended && Some(&pod.uid) != except
        })
    }

    /// Whether nothing is left to do for the pod.
    pub fn should_pod_be_finished(&self, uid: &PodUid) -> bool {
        self.check_state(uid, PodState::is_finished, |synced| synced)
    }

    /// `unknown` decides about an unknown pod, by whether everything that is wanted is known.
    fn check_state(
        &self,
        uid: &PodUid,
        known: impl FnOnce(&PodState) -> bool,
        unknown: impl FnOnce(bool) -> bool,
    ) -> bool {
        let map = self.shared.map.lock();
        match map.state(uid) {
            Some(state) => known(state),
            None => unknown(map.synced),
        }
    }
}
