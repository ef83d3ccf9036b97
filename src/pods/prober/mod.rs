//! Probes: one task per container and kind of probe.
//!
//! * **Owns** the schedule, counters and results of every liveness, readiness and startup probe. All
//!   rules are in `state`; `task` reads, waits and runs.
//! * **Woken by** each probe's own period, while it has not succeeded by early attempts in between (`early`), by
//!   [`ProbeManager::pod_changed`] when the runtime status of a pod changed, and by [`ProbeManager::pod_synced`]. A probe that
//!   waits for a change (no container yet, on hold, not started) has no timer.
//! * **Publishes** results to [`crate::state::probe_results`], and records them in the pod state store so
//!   that a restart resumes where it stopped, and failures as events.
//! * **Must never** run two probes of one kind on a container at once, count an error of the kubelet as a failure of the
//!   container, or wait for a reader.
//! * Upstream: `pkg/kubelet/prober`.
//!
//! ```text
//!  pod_changed, pod_synced --> watch per pod --> probe.<container> --> probe_results, pod state store, events
//!  period, early, delay ---------------------------^      |
//!                                                         '--> handlers::run_handler
//! ```

mod container_view;
mod early;
mod metrics;
mod spec;
mod state;
mod task;

#[cfg(test)]
mod tests;

pub use container_view::container_view;

use crate::base::clock::Instant;
use crate::base::metrics::Metrics;
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, PodExt, PodUid, ProbeKind, ProbeResult,
};
use crate::runtime::handlers::ExecFn;
use crate::state::events::EventRecorder;
use crate::state::pod_state_store::PodStateStore;
use crate::state::probe_results::ProbeResultsWriter;
use jiff::Timestamp;
use metrics::{ProbeMetrics, ProberMetrics};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum number of bytes of [`LastRun::message`].
const MAX_MESSAGE_BYTES: usize = 240;

/// The current state of a container and its pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbedContainer {
    /// The newest instance of the container.
    pub container: Option<ContainerStatus>,
    /// The pod's status says that this instance has started (upstream's `Started`).
    pub was_started: bool,
    /// Primary address of the pod; of the node for host-network pods.
    pub pod_ip: Option<String>,
    /// The pod is Failed or Succeeded.
    pub pod_terminal: bool,
    /// The pod is being deleted.
    pub deleting: bool,
}

/// Reads a container by its pod's UID and its name. Called for each decision: it must be cheap and never block.
pub type ProbedContainerReader = Arc<dyn Fn(&PodUid, &str) -> ProbedContainer + Send + Sync>;

/// What the prober works with.
pub struct ProberDeps {
    /// When this kubelet started, by the wall clock.
    pub started_at: Timestamp,
    /// Runs commands in containers.
    pub exec: ExecFn,
    /// Reads containers.
    pub view: ProbedContainerReader,
    /// The store of results.
    pub results: ProbeResultsWriter,
    /// Keeps results over restarts.
    pub state_store: PodStateStore,
    /// Records events.
    pub events: EventRecorder,
}

/// Starts and stops the probes of pods; cheap to clone.
#[derive(Clone)]
pub struct ProbeManager {
    shared: Arc<ProberShared>,
    pods: Arc<Mutex<HashMap<PodUid, Arc<PodProbes>>>>,
    /// Container instances with results of an earlier kubelet, by pods that no probes were started for yet.
    restored: Arc<Mutex<HashMap<PodUid, Vec<ContainerId>>>>,
}

/// What all probe tasks share.
struct ProberShared {
    deps: ProberDeps,
    metrics: ProberMetrics,
    probe_metrics: ProbeMetrics,
}

/// What the probe tasks of one pod share.
struct PodProbes {
    pod: Arc<Pod>,
    uid: PodUid,
    signal: watch::Sender<PodSignal>,
    slots: Mutex<Vec<ProbeSlot>>,
}

/// What is sent to the tasks of a pod; a repeated value means that the pod changed.
#[derive(Clone, Copy, Debug)]
struct PodSignal {
    allowed: AllowedProbes,
    /// How many syncs of the pod have ended.
    syncs: u64,
}

/// Which kinds of probes of a pod may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedProbes {
    All,
    Readiness,
    /// The pod was removed.
    None,
}

/// One probe of one container.
#[derive(Clone, Debug)]
struct ProbeSlot {
    container: Arc<str>,
    kind: ProbeKind,
    task: ProbeTaskState,
    seen: ProbeSnapshot,
}

/// The state of a probe that [`ProbeView`] reports.
#[derive(Clone, Debug, Default)]
struct ProbeSnapshot {
    last: Option<LastRun>,
    due: Option<Instant>,
}

/// How a probe ran last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// When it ended.
    pub at: Timestamp,
    /// Its result.
    pub result: ProbeResult,
    /// Number of consecutive runs with this result, this one included.
    pub in_a_row: u32,
    /// Its output, unless it succeeded; truncated.
    pub message: Box<str>,
}

/// The state of a probe, for `kubelet explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeView {
    /// Name of the container.
    pub container: Arc<str>,
    /// Which probe.
    pub kind: ProbeKind,
    /// The last run; `None` before the first one.
    pub last: Option<LastRun>,
    /// When it runs next, if that is only a matter of time.
    pub due: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ProbeTaskState {
    /// The task runs. `started` is the instance that has started, for startup probes.
    Running { started: Option<ContainerId> },
    /// The task has ended. `last` is the last instance that it probed.
    Ended { last: Option<ContainerId> },
}

impl ProbeManager {
    /// A manager without probes, with the results that an earlier kubelet recorded. Registers the probe metrics in
    /// `results`, which is served at a separate path, and the others in `metrics`.
    pub fn new(deps: ProberDeps, metrics: &Metrics, results: &Metrics) -> Self {
        let metrics = ProberMetrics::register(metrics);
        let probe_metrics = ProbeMetrics::register(results);
        let restore = |uid: PodUid| {
            let restored = deps.results.restore(&uid, &deps.state_store.get(&uid));
            (!restored.is_empty()).then_some((uid, restored))
        };
        let uids = deps.state_store.uids().into_iter();
        let restored = uids.filter_map(restore).collect();
        Self {
            shared: Arc::new(ProberShared { deps, metrics, probe_metrics }),
            pods: Arc::default(),
            restored: Arc::new(Mutex::new(restored)),
        }
    }

    /// Starts the probes of a pod's regular containers and sidecars. Calling it again changes nothing,
    /// except that a probe whose container ended for good starts again when the container runs after
    /// all. Needs a tokio runtime.
    pub fn add_pod(&self, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let mut pods = self.pods.lock();
        if let Some(known) = pods.get(&uid) {
            return self.shared.restart_ended(known);
        }
        let slots = spec::probes_of(pod);
        self.drop_restored(&uid, &slots);
        if slots.is_empty() {
            return;
        }
        let probes = Arc::new(PodProbes {
            pod: pod.clone(),
            uid: uid.clone(),
            signal: watch::Sender::new(PodSignal { allowed: AllowedProbes::All, syncs: 0 }),
            slots: Mutex::new(slots.clone()),
        });
        for slot in &slots {
            task::spawn(&self.shared, &probes, slot);
        }
        pods.insert(uid, probes);
    }

    /// Ends all probes of a pod and forgets their results.
    pub fn remove_pod(&self, uid: &PodUid) {
        self.drop_restored(uid, &[]);
        if let Some(probes) = self.pods.lock().remove(uid) {
            probes.allow(AllowedProbes::None);
        }
    }

    /// Removes restored results of container instances that none of these probes continues to probe.
    fn drop_restored(&self, uid: &PodUid, slots: &[ProbeSlot]) {
        let Some(restored) = self.restored.lock().remove(uid) else {
            return;
        };
        let probed = |slot: &ProbeSlot| {
            let container = (self.shared.deps.view)(uid, &slot.container).container?;
            Some((container.id, slot.kind))
        };
        let probed: Vec<_> = slots.iter().filter_map(probed).collect();
        for id in restored {
            for &kind in ProbeKind::ALL {
                if !probed.contains(&(id.clone(), kind)) {
                    self.shared.forget(uid, &id, kind);
                }
            }
        }
    }

    /// Ends the liveness and startup probes of a pod that is being stopped, sidecars included.
    /// Readiness probes continue.
    pub fn stop_liveness_and_startup(&self, uid: &PodUid) {
        if let Some(probes) = self.pods.lock().get(uid) {
            probes.allow(AllowedProbes::Readiness);
        }
    }

    /// The runtime status of a pod changed: its probes read it at once.
    pub fn pod_changed(&self, uid: &PodUid) {
        if let Some(probes) = self.pods.lock().get(uid) {
            probes.wake();
        }
    }

    /// A sync of the pod has ended: probes that have not succeeded yet are tried again, as upstream's readiness probes are when
    /// a status is made.
    pub fn pod_synced(&self, uid: &PodUid) {
        if let Some(probes) = self.pods.lock().get(uid) {
            probes.signal.send_modify(|signal| signal.syncs += 1);
        }
    }

    /// Whether a running instance counts as started: its startup probe succeeded, or it has none.
    pub fn started(&self, uid: &PodUid, container: &str, id: &ContainerId) -> bool {
        match self.pods.lock().get(uid) {
            Some(probes) => probes.started(container, id),
            None => true,
        }
    }

    /// The current state of the probes of a pod.
    pub fn views(&self, uid: &PodUid) -> Vec<ProbeView> {
        let Some(probes) = self.pods.lock().get(uid).cloned() else {
            return Vec::new();
        };
        let view = |slot: &ProbeSlot| ProbeView {
            container: slot.container.clone(),
            kind: slot.kind,
            last: slot.seen.last.clone(),
            due: slot.seen.due,
        };
        let slots = probes.slots.lock();
        slots.iter().map(view).collect()
    }

    /// How many pods have probes.
    pub fn count(&self) -> usize {
        self.pods.lock().len()
    }
}

impl ProberShared {
    /// Forgets a result, here and for the next kubelet.
    fn forget(&self, uid: &PodUid, id: &ContainerId, kind: ProbeKind) {
        self.deps.results.clear(id, kind);
        self.deps.state_store.update(uid, |record| {
            record.set_probe_result(id, kind, ProbeResult::Unknown);
        });
    }

    fn restart_ended(self: &Arc<Self>, probes: &Arc<PodProbes>) {
        if probes.signal.borrow().allowed != AllowedProbes::All {
            return;
        }
        let mut restarted = Vec::new();
        for slot in probes.slots.lock().iter_mut() {
            let ProbeTaskState::Ended { last } = &slot.task else {
                continue;
            };
            let view = (self.deps.view)(&probes.uid, &slot.container);
            let runs_again = view.container.is_some_and(|seen| {
                seen.state == ContainerState::Running && Some(&seen.id) != last.as_ref()
            });
            if runs_again && !view.pod_terminal && !view.deleting {
                slot.task = ProbeTaskState::Running { started: None };
                restarted.push(slot.clone());
            }
        }
        for slot in &restarted {
            task::spawn(self, probes, slot);
        }
    }
}

impl ProbeSnapshot {
    /// A run ended at `at`.
    fn ran(&mut self, result: ProbeResult, message: &str, at: Timestamp) {
        let before = self.last.as_ref().filter(|last| last.result == result);
        let message = message.get(..message.floor_char_boundary(MAX_MESSAGE_BYTES));
        self.last = Some(LastRun {
            at,
            result,
            in_a_row: before.map_or(0, |last| last.in_a_row).saturating_add(1),
            message: message.unwrap_or_default().into(),
        });
    }
}

impl PodProbes {
    fn wake(&self) {
        self.signal.send_modify(|_| ());
    }

    fn allow(&self, allowed: AllowedProbes) {
        self.signal.send_modify(|signal| signal.allowed = allowed);
    }

    fn started(&self, container: &str, id: &ContainerId) -> bool {
        let slots = self.slots.lock();
        let startup = slots
            .iter()
            .find(|slot| slot.kind == ProbeKind::Startup && &*slot.container == container);
        match startup.map(|slot| &slot.task) {
            Some(ProbeTaskState::Running { started }) => started.as_ref() == Some(id),
            Some(ProbeTaskState::Ended { .. }) | None => true,
        }
    }

    fn set_task(&self, container: &str, kind: ProbeKind, task: ProbeTaskState) {
        self.with_slot(container, kind, |slot| slot.task = task);
    }

    fn with_slot(&self, container: &str, kind: ProbeKind, change: impl FnOnce(&mut ProbeSlot)) {
        let mut slots = self.slots.lock();
        let slot = slots.iter_mut().find(|slot| slot.kind == kind && &*slot.container == container);
        if let Some(slot) = slot {
            change(slot);
        }
    }
}
