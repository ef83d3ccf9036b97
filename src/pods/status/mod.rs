//! API statuses of pods: generation and store.
//!
//! * Owns: the current API status of every pod, with the version at which it last changed.
//! * Woken by: pod workers and the sync loop, through `StatusPublisher`, which serializes them.
//! * Publishes: statuses through [`Statuses`], a version counter that moves with every change, and the set of
//!   pods to compare with the API server.
//! * Must never go back from a terminal phase, call a runtime or an API server, or hold more of a pod
//!   than its shared object and one status.
//! * Upstream: `pkg/kubelet/status` and the status half of `kubelet_pods.go`.

pub mod generate;
mod restored;
mod terminate;
mod terminations;
#[cfg(test)]
mod tests;

pub use generate::generate_api_pod_status;
pub use restored::{differs_only_in_ignored_start_time, lacks_container_statuses, restored};

use crate::base::DirtySet;
use crate::base::clock::{self, Instant};
use crate::base::metrics::Metrics;
use crate::model::{Pod, PodExt, PodUid};
use generate::{PodPhase, carry_transition_times, whole_seconds};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use terminations::Terminations;
use tokio::sync::watch;

/// The status of one pod.
#[derive(Clone, Debug)]
pub struct VersionedPodStatus {
    /// The pod that the status was made for.
    pub pod: Arc<Pod>,
    /// Its status.
    pub status: Arc<PodStatus>,
    /// The store's version when the status last changed.
    pub version: u64,
    /// When it last changed.
    pub changed_at: Instant,
    /// The pod is terminated: its containers have ended, and its volumes are torn down. It may be deleted from the API
    /// server.
    pub pod_is_finished: bool,
}

#[derive(Debug)]
struct StatusStore {
    entries: RwLock<HashMap<PodUid, VersionedPodStatus>>,
    version: watch::Sender<u64>,
    /// `None` without an API server, because nothing would take the marks.
    changed: Option<Arc<DirtySet<PodUid>>>,
}

/// The writing end of the store, for `StatusPublisher`. Of upstream's `status.Manager` this is only the part that holds
/// the statuses; `pods::status_writer` sends them to the API server.
#[derive(Debug)]
pub struct StatusManager {
    store: Arc<StatusStore>,
    terminations: Terminations,
}

/// The reading end; cheap to clone.
#[derive(Clone, Debug)]
pub struct Statuses {
    store: Arc<StatusStore>,
}

impl StatusManager {
    /// No statuses yet; pods whose status changes are marked in `changed`.
    pub fn new(changed: Option<Arc<DirtySet<PodUid>>>) -> Self {
        Self {
            store: Arc::new(StatusStore {
                entries: RwLock::default(),
                version: watch::Sender::new(0),
                changed,
            }),
            terminations: Terminations::register(&Metrics::new()),
        }
    }

    /// Registers the metric of terminated containers.
    #[must_use]
    pub fn measured(self, metrics: &Metrics) -> Self {
        let terminations = Terminations::register(metrics);
        Self { terminations, ..self }
    }

    /// A reader.
    pub fn reader(&self) -> Statuses {
        Statuses { store: self.store.clone() }
    }

    /// Sets the status of a pod; returns whether anything about it changed. The start time and the
    /// transition times of unchanged conditions are carried over, and a terminal phase is kept with
    /// its reason and message.
    pub fn set_pod_status(&self, pod: &Arc<Pod>, mut status: PodStatus) -> bool {
        let mut entries = self.store.entries.write();
        let known = entries.get_mut(&pod.uid());
        normalize(&mut status, known.as_deref().map(|entry| &*entry.status), clock::timestamp());
        match known {
            Some(entry) if same(&entry.status, &status) => {
                entry.pod = pod.clone();
                return false;
            }
            Some(entry) => {
                self.terminations.count(&entry.status, &status);
                entry.pod = pod.clone();
                entry.changed_at = clock::instant();
                entry.status = Arc::new(status);
                entry.version = self.next_version();
            }
            None => {
                let entry = VersionedPodStatus {
                    pod: pod.clone(),
                    status: Arc::new(status),
                    version: self.next_version(),
                    changed_at: clock::instant(),
                    pod_is_finished: false,
                };
                entries.insert(pod.uid(), entry);
            }
        }
        drop(entries);
        self.mark(&pod.uid());
        true
    }

    /// Publishes the last status of a terminated pod (upstream's `TerminatePod`): every container has a terminated state,
    /// and a pod that is not static has a terminal phase. `api_status` is the base if no status was published. Returns
    /// whether anything changed.
    pub fn terminate_pod(&self, pod: &Arc<Pod>, api_status: Option<&PodStatus>) -> bool {
        let uid = pod.uid();
        let published = self.reader().get(&uid);
        let base = published.as_deref().or(api_status);
        let status = terminate::terminated_status(pod, base.cloned().unwrap_or_default());
        let changed = self.set_pod_status(pod, status);
        if let Some(entry) = self.store.entries.write().get_mut(&uid) {
            entry.pod_is_finished = true;
        }
        self.mark(&uid);
        changed
    }

    /// Marks a pod to be compared with the API server although its status did not change.
    pub fn mark(&self, uid: &PodUid) {
        if let Some(changed) = &self.store.changed {
            changed.mark(uid.clone());
        }
    }

    /// Forgets a pod; returns whether it was known.
    pub fn remove(&self, uid: &PodUid) -> bool {
        let known = self.store.entries.write().remove(uid).is_some();
        if known {
            self.store.version.send_modify(|version| *version += 1);
            self.mark(uid);
        }
        known
    }

    /// Taken under the entries' lock, so that versions only grow.
    fn next_version(&self) -> u64 {
        self.store.version.send_modify(|version| *version += 1);
        *self.store.version.borrow()
    }
}

impl Statuses {
    /// The status of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        let entries = self.store.entries.read();
        entries.get(uid).map(|entry| entry.status.clone())
    }

    /// The status of a pod, with its pod object and version.
    pub fn entry(&self, uid: &PodUid) -> Option<VersionedPodStatus> {
        self.store.entries.read().get(uid).cloned()
    }

    /// All entries, in no order.
    pub fn all(&self) -> Vec<VersionedPodStatus> {
        self.store.entries.read().values().cloned().collect()
    }

    /// A counter that moves whenever a status changes or a pod is forgotten.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.store.version.subscribe()
    }

    /// How many pods have a status.
    pub fn count(&self) -> usize {
        self.store.entries.read().len()
    }
}

/// Carries over what a new status may not change: the start time, a terminal phase, and the
/// transition times of conditions that stay as they were.
fn normalize(status: &mut PodStatus, old: Option<&PodStatus>, now: Timestamp) {
    let known_start = old.and_then(|old| old.start_time.clone());
    status.start_time =
        known_start.or(status.start_time.take()).or_else(|| Some(Time(whole_seconds(now))));
    let phase = |status: &PodStatus| status.phase.as_deref().and_then(PodPhase::parse);
    if let Some(old) = old
        && phase(old).is_some_and(PodPhase::is_terminal)
        && phase(status) != phase(old)
    {
        status.phase.clone_from(&old.phase);
        status.reason.clone_from(&old.reason);
        status.message.clone_from(&old.message);
    }
    let conditions = status.conditions.as_deref_mut().unwrap_or_default();
    // A status that this process has not published before keeps the times that it was generated with.
    let made_with = conditions.to_vec();
    let before = old.map_or(Some(&made_with), |old| old.conditions.as_ref());
    carry_transition_times(conditions, before.map_or(&[], Vec::as_slice), now);
}

/// Whether two statuses are equal: the order of conditions does not matter, nor does the
/// difference between an empty list and none. Both must have been normalised.
fn same(a: &PodStatus, b: &PodStatus) -> bool {
    a == b || canonical(a) == canonical(b)
}

fn canonical(status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    let conditions = status.conditions.get_or_insert_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    status.container_statuses.get_or_insert_default();
    status.init_container_statuses.get_or_insert_default();
    status.ephemeral_container_statuses.get_or_insert_default();
    status.host_ips.get_or_insert_default();
    status.pod_ips.get_or_insert_default();
    for text in [&mut status.reason, &mut status.message] {
        text.take_if(|text| text.is_empty());
    }
    status
}
