//! The map from UID to worker; carries out the effects of the state machines.

use super::gate::StartGate;
use super::phase::{WorkerPhase, WorkerTarget};
use super::state::{Effect, Input, PodSyncStatus, SyncOutcome};
use super::task::{self, SyncJob};
use super::update::UpdatePodOptions;
use super::{PodOfWorker, PodWorkersInner, WorkerPod, WorkerStatus, delay};
use crate::base::clock::Instant;
use crate::model::{GraceDeadline, PodExt, PodFullName, PodSource, PodStatus, PodUid};
use crate::pods::pod_sync::syncer::SyncPodType;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Delay of a worker after a panic in its bookkeeping.
const RECOVERY_DELAY: Duration = Duration::from_secs(10);

/// All workers and the gate, under one lock that is never held across a wait.
#[derive(Default)]
pub(super) struct WorkerMap {
    entries: HashMap<PodUid, WorkerEntry>,
    gate: StartGate,
    /// Full names that are blocked by pods that run without a worker.
    blocked_names: HashMap<PodUid, PodFullName>,
    last_worker_id: u64,
    /// The workers were compared with all desired pods at least once (upstream's `podsSynced`).
    pub(super) pods_synced: bool,
}

struct WorkerEntry {
    state: PodSyncStatus,
    full_name: PodFullName,
    worker_id: u64,
    /// The task; `None` before the first update is delivered and after the pod is finished.
    handle: Option<Box<WorkerHandle>>,
}

/// The sending side of a worker task.
struct WorkerHandle {
    sender: mpsc::Sender<SyncPodType>,
    /// The strongest of the updates that came while the worker was busy.
    undelivered: Option<SyncPodType>,
    /// An update is on its way or a call of the syncer is running.
    busy: bool,
    /// Cancels the running sync.
    cancel: Option<CancellationToken>,
    /// Shortens the grace period of the running stop.
    grace: Option<watch::Sender<GraceDeadline>>,
    /// When the running call began.
    running_since: Option<Instant>,
    /// When the next call begins at the latest.
    due: Option<Instant>,
}

impl WorkerMap {
    pub(super) fn state(&self, uid: &PodUid) -> Option<&PodSyncStatus> {
        self.entries.get(uid).map(|entry| &entry.state)
    }

    pub(super) fn uids(&self) -> Vec<PodUid> {
        self.entries.keys().cloned().collect()
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.entries.remove(uid);
    }

    /// Numbers of workers, and of full names at the start gate: those of static pods that run or wait.
    pub(super) fn sizes(&self) -> [(&'static str, usize); 2] {
        let names = self.gate.len() + self.blocked_names.len();
        [("workers", self.entries.len()), ("start_gate_names", names)]
    }

    pub(super) fn worker_pods(&self) -> Vec<WorkerPod> {
        let known = |(uid, entry): (&PodUid, &WorkerEntry)| WorkerPod {
            uid: uid.clone(),
            full_name: entry.full_name.clone(),
            phase: entry.state.phase().clone(),
            has_spec: matches!(entry.state.target(), WorkerTarget::Pod(_)),
            is_static: match entry.state.target() {
                WorkerTarget::Pod(pod) => pod.is_static(),
                WorkerTarget::Runtime(_) => false,
            },
        };
        self.entries.iter().map(known).collect()
    }

    pub(super) fn pods(&self) -> Vec<PodOfWorker> {
        let of_worker = |(uid, entry): (&PodUid, &WorkerEntry)| PodOfWorker {
            uid: uid.clone(),
            pod: match entry.state.target() {
                WorkerTarget::Pod(pod) => Some(pod.clone()),
                WorkerTarget::Runtime(_) => None,
            },
            restart_requested: entry.state.restart_requested(),
            could_have_running_containers: entry.state.phase().could_have_running_containers(),
        };
        self.entries.iter().map(of_worker).collect()
    }

    pub(super) fn worker_status(&self, uid: &PodUid) -> Option<WorkerStatus> {
        let entry = self.entries.get(uid)?;
        let handle = entry.handle.as_deref();
        let phase = entry.state.phase().clone();
        let waits_for = match phase {
            WorkerPhase::WaitingToStart { .. } => self.gate.started(&entry.full_name),
            _ => Vec::new(),
        };
        Some(WorkerStatus {
            phase,
            sync_since: handle.and_then(|handle| handle.running_since),
            next_sync: handle.and_then(|handle| handle.due),
            waits_for,
        })
    }

    /// Blocks the names of static pods that run without a worker, and releases names whose pod no longer runs. Returns
    /// the pods that may start now.
    pub(super) fn update_start_gate(&mut self, pods: &[Arc<PodStatus>]) -> Vec<PodUid> {
        let mut running = HashSet::new();
        for pod in pods.iter().filter(|pod| pod.may_be_running()) {
            running.insert(pod.uid.clone());
            let is_static = pod.source() != PodSource::Api;
            if is_static && !self.entries.contains_key(&pod.uid) {
                let name = PodFullName::of(&pod.name, &pod.namespace);
                self.gate.block(&name, &pod.uid);
                self.blocked_names.insert(pod.uid.clone(), name);
            }
        }
        let mut may_start = Vec::new();
        let Self { blocked_names, gate, entries, .. } = self;
        blocked_names.retain(|uid, name| {
            if entries.contains_key(uid) {
                return false;
            }
            let keep = running.contains(uid);
            if !keep {
                may_start.extend(gate.remove(name, uid));
            }
            keep
        });
        may_start
    }

    /// The entry of a worker task. `None` if the pod was forgotten, even if a new pod of the UID has an entry.
    fn entry(&mut self, uid: &PodUid, worker_id: u64) -> Option<&mut WorkerEntry> {
        let entry = self.entries.get_mut(uid)?;
        (entry.worker_id == worker_id).then_some(entry)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.gate.is_empty()
    }
}

impl PodWorkersInner {
    pub(super) fn update(self: &Arc<Self>, options: UpdatePodOptions, now: Instant) {
        let uid = match (&options.pod, &options.runtime_status) {
            (Some(pod), _) => pod.uid(),
            (None, Some(status)) => status.uid.clone(),
            (None, None) => return,
        };
        let mut map = self.map.lock();
        if map.entries.contains_key(&uid) {
            self.handle_input(&mut map, &uid, Input::Update(options), now);
            return;
        }
        if self.finished.contains(&uid) {
            // The finished pod of this UID is removed first. The sync loop creates this one after that.
            return;
        }
        let Some((state, effects)) = PodSyncStatus::from_update(options, now) else {
            return;
        };
        map.last_worker_id += 1;
        let entry = WorkerEntry {
            full_name: state.full_name(),
            worker_id: map.last_worker_id,
            state,
            handle: None,
        };
        map.entries.insert(uid.clone(), entry);
        map.blocked_names.remove(&uid);
        self.apply_effects(&mut map, &uid, effects, now);
    }

    /// Passes an input to the state machine of one pod and carries out its effects.
    pub(super) fn handle_input(
        self: &Arc<Self>,
        map: &mut WorkerMap,
        uid: &PodUid,
        input: Input,
        now: Instant,
    ) {
        if let Some(entry) = map.entries.get_mut(uid) {
            let effects = entry.state.on(input, now);
            self.apply_effects(map, uid, effects, now);
        }
    }

    /// Carries out effects, and those of pods that may start because of them.
    fn apply_effects(
        self: &Arc<Self>,
        map: &mut WorkerMap,
        uid: &PodUid,
        effects: Vec<Effect>,
        now: Instant,
    ) {
        let mut queue: VecDeque<(PodUid, Effect)> =
            effects.into_iter().map(|e| (uid.clone(), e)).collect();
        while let Some((uid, effect)) = queue.pop_front() {
            let Some(next) = self.apply_effect(map, &uid, effect) else {
                continue;
            };
            if let Some(entry) = map.entries.get_mut(&next) {
                let more = entry.state.on(Input::MayStart, now);
                queue.extend(more.into_iter().map(|effect| (next.clone(), effect)));
            }
        }
    }

    /// Carries out one effect. Returns the pod that may start because of it.
    fn apply_effect(
        self: &Arc<Self>,
        map: &mut WorkerMap,
        uid: &PodUid,
        effect: Effect,
    ) -> Option<PodUid> {
        let entry = map.entries.get_mut(uid)?;
        match effect {
            Effect::Deliver(update) => self.deliver(entry, uid, update),
            Effect::CancelSync => {
                if let Some(cancel) =
                    entry.handle.as_ref().and_then(|handle| handle.cancel.as_ref())
                {
                    cancel.cancel();
                }
            }
            Effect::ShortenGrace(deadline) => {
                if let Some(grace) = entry.handle.as_ref().and_then(|handle| handle.grace.as_ref())
                {
                    grace.send_replace(deadline);
                }
            }
            Effect::QueueStart => {
                let may_start = map.gate.enqueue(&entry.full_name, uid);
                return may_start.then(|| uid.clone());
            }
            Effect::BlockName => map.gate.block(&entry.full_name, uid),
            Effect::ReleaseName => return map.gate.remove(&entry.full_name, uid),
            Effect::MarkFinished => self.finished.mark(uid.clone()),
            Effect::Forget => {
                map.entries.remove(uid);
                self.finished.mark(uid.clone());
            }
        }
        None
    }

    /// Sends an update to the worker's task, which is started first if there is none.
    fn deliver(self: &Arc<Self>, entry: &mut WorkerEntry, uid: &PodUid, update: SyncPodType) {
        let worker_id = entry.worker_id;
        let handle = entry.handle.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(1);
            let worker = task::run(self.clone(), uid.clone(), worker_id, receiver);
            self.tasks.spawn(worker);
            Box::new(WorkerHandle::new(sender))
        });
        handle.send(update);
    }

    /// The next call of a worker that is free; `None` ends its task.
    pub(super) fn begin_call(
        self: &Arc<Self>,
        uid: &PodUid,
        worker_id: u64,
        update: Option<SyncPodType>,
        now: Instant,
    ) -> Option<SyncJob> {
        let mut map = self.map.lock();
        let entry = map.entry(uid, worker_id)?;
        let handle = entry.handle.as_deref_mut()?;
        handle.busy = true;
        // One call serves all updates that arrived meanwhile; the strongest one is its update type.
        let update = handle.undelivered.take().max(update);
        let Some(call) = entry.state.begin_call(update, now) else {
            // The pod is finished: its state stays, its task ends.
            entry.handle = None;
            return None;
        };
        let cancel = self.shutdown.child_token();
        // Calls without a deadline ignore this value.
        let deadline = call.deadline().unwrap_or(GraceDeadline::starting(now, 0));
        let (sender, grace) = watch::channel(deadline);
        (handle.cancel, handle.grace) = (Some(cancel.clone()), Some(sender));
        (handle.running_since, handle.due) = (Some(now), None);
        Some(SyncJob { call, cancel, grace })
    }

    /// Records the end of a call. Returns when the worker begins the next one; `None` means immediately.
    pub(super) fn end_call(
        self: &Arc<Self>,
        uid: &PodUid,
        worker_id: u64,
        outcome: SyncOutcome,
        now: Instant,
    ) -> Option<Instant> {
        let mut map = self.map.lock();
        let entry = map.entry(uid, worker_id)?;
        let (next, effects) = entry.state.end_call(outcome);
        let due = next.map(|next| delay::due(next, &self.delays, now, fastrand::f64()));
        let wake_at = entry.handle.as_deref_mut().and_then(|handle| handle.park(due));
        self.apply_effects(&mut map, uid, effects, now);
        wake_at
    }

    /// Recovers from a panic in the bookkeeping of a worker: discards the interrupted call and retries after a delay.
    pub(super) fn recover(&self, uid: &PodUid, worker_id: u64, now: Instant) -> Option<Instant> {
        let mut map = self.map.lock();
        let entry = map.entry(uid, worker_id)?;
        entry.state.interrupt();
        entry.handle.as_deref_mut()?.park(Some(now + RECOVERY_DELAY))
    }
}

impl WorkerHandle {
    fn new(sender: mpsc::Sender<SyncPodType>) -> Self {
        Self {
            sender,
            undelivered: None,
            busy: false,
            cancel: None,
            grace: None,
            running_since: None,
            due: None,
        }
    }

    /// Records that no call is running. Returns when the next one is due; `None` if an undelivered update comes first.
    fn park(&mut self, due: Option<Instant>) -> Option<Instant> {
        (self.cancel, self.grace, self.running_since) = (None, None, None);
        self.due = due.filter(|_| self.undelivered.is_none());
        self.busy = self.due.is_none();
        self.due
    }

    fn send(&mut self, update: SyncPodType) {
        // `try_send` fails when an update is queued already, or when the process stops.
        if self.busy || self.sender.try_send(update).is_err() {
            self.undelivered = self.undelivered.max(Some(update));
        }
        self.busy = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SyncPodType::{Create, Kill, Sync, Update};

    #[tokio::test]
    async fn of_the_updates_that_a_busy_worker_misses_the_strongest_is_left() {
        for (first, second, left) in [
            (Sync, Update, Update),
            (Update, Sync, Update),
            (Create, Sync, Create),
            (Update, Create, Create),
            (Create, Kill, Kill),
            (Kill, Create, Kill),
        ] {
            let (sender, mut inbox) = mpsc::channel(1);
            let mut handle = WorkerHandle::new(sender);
            for update in [Sync, first, second] {
                handle.send(update);
            }
            assert_eq!(inbox.try_recv(), Ok(Sync));
            assert_eq!(handle.undelivered, Some(left), "{first:?} then {second:?}");
        }
    }
}
