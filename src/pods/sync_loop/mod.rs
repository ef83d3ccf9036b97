//! The sync loop: updates pod workers when sources, runtime statuses or probe results change.
//!
//! A source sends an update, and `dispatch` turns it into steps. A new pod gets its first status, is stored as desired,
//! admitted by the rules of `admission`, and given a worker. From then on the loop only wakes the worker when something
//! changed that a sync reads. When the pod has ended, the loop removes what is left in the background and forgets the
//! worker. Two cases differ: a desired pod without a worker is *deferred*, because its UID or name may be in use in the
//! runtime or its admission is pending; a pod that only the runtime has is an orphan, which housekeeping stops.
//!
//! * Owns: the store of desired pods (its only writer) and the decision what a change means.
//! * Woken by: updates of sources; pods whose runtime status, probe results, volumes or devices changed, and pods that
//!   settled; workers and removals that ended; orphans found by a record or a cgroup; completed resizes; the Node object;
//!   a node shutdown; a runtime that is back; the housekeeping timer.
//! * Publishes: updates to pod workers; which sources have delivered.
//! * Must never wait for a pod: every branch takes microseconds. Must never clean up without proof that a complete
//!   list of the runtime was applied and that the source of the pod has delivered.
//! * Upstream: `syncLoopIteration` and `HandlePodCleanups`.

mod admit;
pub mod admission;
mod admitted_pods;
mod housekeeping;
mod cleanup;
pub mod dispatch;
mod sync_loop_monitor;
mod metrics;
pub mod uid_owner;
pub mod orphans;
mod preemption;
mod removals;
mod resize;
mod pending_admission;

pub use admission::{
    AdmissionError, AdmittedPods, PodAdmitAttributes, Rejection, admit, broken_by_running,
};
pub use housekeeping::HOUSEKEEPING_PERIOD;
pub(in crate::pods) use housekeeping::HousekeepingSchedule;
pub use metrics::LoopMetrics;
pub use resize::{ResizeRules, Resizes};
pub use sync_loop_monitor::SyncLoopMonitor;

use pending_admission::PendingAdmissions;
use removals::Removals;
use resize::ResizeTrigger;

use crate::base::{DirtySet, clock};
use crate::cri::FeaturesReader;
use crate::model::reasons::event;
use crate::model::validation::sysctl_allowlist::Allowlist;
use crate::model::validation::validate_kubelet_annotations;
use crate::model::{Pod, PodExt, PodOp, PodSource, PodStatus, PodUid, PodUpdate};
use crate::pods::pod_config::SourcesReady;
use crate::pods::pod_sync::PodSync;
use crate::pods::pod_sync::syncer::SyncPodType;
use crate::pods::pod_workers::{PodWorkers, UpdatePodOptions};
use crate::resources::devices::DeviceChange;
use crate::resources::managers::ResourceManagers;
use crate::state::node_pressure::NodePressureReader;
use crate::state::node_shutdown::NodeShutdownReader;
use crate::state::pod_cache::PodCache;
use crate::state::pod_history::DecisionKind;
use crate::state::pod_manager::PodManagerWriter;
use crate::state::probe_results::ProbeResults;
use dispatch::{DispatchStep, dispatch};
use k8s_openapi::api::core::v1::Node;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use uid_owner::{UidOwner, uid_owner};

/// Limit for the first inspection of all items of the runtime, which precedes the first update of a source.
const FIRST_INSPECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time between two iterations of a healthy loop; `/healthz` fails if one takes much longer.
const MAX_ITERATION_INTERVAL: Duration = Duration::from_secs(10);

/// What admission reads: stores, the managers of exclusive resources, and settings.
pub struct AdmissionDeps {
    /// Sysctls that pods may set.
    pub sysctls: Allowlist,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// The features of the runtime.
    pub features: FeaturesReader,
    /// Memory, disk and PID pressure of the node.
    pub pressure: NodePressureReader,
    /// Whether the machine is shutting down.
    pub shutting_down: NodeShutdownReader,
    /// There is no API server.
    pub standalone: bool,
    /// The Node object of the API server, once it is known; without an API server, the one that the kubelet
    /// would register.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// The Node object as the kubelet registers it, without a status.
    pub initial_node: Node,
    /// The managers of exclusive resources.
    pub resources: ResourceManagers,
}

/// The loop.
pub struct SyncLoop {
    /// Updates of the sources.
    pub(in crate::pods) updates: mpsc::Receiver<PodUpdate>,
    /// Which sources have delivered.
    pub(in crate::pods) sources: SourcesReady,
    /// Desired pods.
    pub(in crate::pods) pod_manager: PodManagerWriter,
    pub(in crate::pods) workers: PodWorkers,
    /// The runtime status of every pod.
    pub(in crate::pods) cache: PodCache,
    pub(in crate::pods) results: ProbeResults,
    /// The syncer of the workers. The loop uses it for statuses, probes and clean-up.
    pub(in crate::pods) pod_sync: Arc<PodSync>,
    /// What admission reads.
    pub(in crate::pods) admission: AdmissionDeps,
    pub(in crate::pods) metrics: LoopMetrics,
    /// For `/healthz`.
    pub(in crate::pods) sync_loop_monitor: SyncLoopMonitor,
    /// Pods whose requested resources differ from their allocated ones.
    pub(in crate::pods) resizes: Resizes,
    /// When housekeeping is due.
    pub(in crate::pods) housekeeping_schedule: HousekeepingSchedule,
    /// Whether every source has sent a list, complete or not.
    pub(in crate::pods) all_sources_seen: watch::Sender<bool>,
    /// Notified when the runtime answers again after an outage.
    pub(in crate::pods) runtime_recovered: Arc<Notify>,
    /// Pods whose containers, files and records are being removed.
    pub(in crate::pods) removals: Removals,
    /// Desired pods without a worker: another pod in the runtime may have their UID or name, or they are not admitted.
    pub(in crate::pods) deferred: HashSet<PodUid>,
    /// Those of them that are not admitted yet.
    pub(in crate::pods) pending_admissions: PendingAdmissions,
    /// Pods about which nothing could be decided because they were not settled; housekeeping decides when they are.
    pub(in crate::pods) awaits_settled: HashSet<PodUid>,
    /// Orphans that the runtime does not list: housekeeping found them only by their record or cgroup.
    pub(in crate::pods) orphans_outside_runtime: Arc<DirtySet<PodUid>>,
}

impl SyncLoop {
    /// Runs until shutdown. Begins once the runtime has been listed in full.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        self.sync_loop_monitor.record_iteration();
        let listed = tokio::select! {
            listed = self.cache.wait_runtime_listed() => listed,
            () = shutdown.cancelled() => return Ok(()),
        };
        tokio::select! {
            () = self.first_inspection() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        self.workers.update_start_gate(&self.cache.pods());
        // Without any source, no update would ever set this.
        self.all_sources_seen.send_replace(self.sources.all_seen());
        let mut next_retry = clock::instant();
        loop {
            self.sync_loop_monitor.record_iteration();
            let mut next_iteration = clock::instant() + MAX_ITERATION_INTERVAL;
            if !self.pending_admissions.is_empty() {
                if clock::instant() >= next_retry {
                    self.retry_pending_admissions();
                    next_retry = clock::instant() + pending_admission::RETRY_INTERVAL;
                }
                next_iteration = next_iteration.min(next_retry);
            }
            tokio::select! {
                update = self.updates.recv() => match update {
                    Some(update) => {
                        if self.handle_pod_update(update) {
                            self.housekeeping_schedule.run_soon();
                        }
                    }
                    None => anyhow::bail!("all pod sources ended"),
                },
                uids = self.cache.changed() => {
                    if self.on_runtime_status_changed(uids) {
                        self.housekeeping_schedule.run_soon();
                    }
                }
                uids = self.cache.settled_unchanged() => {
                    if self.on_settled_unchanged(uids) {
                        self.housekeeping_schedule.run_soon();
                    }
                }
                uids = self.results.changed() => self.sync_pods(uids),
                uids = self.pod_sync.volumes_changed() => self.sync_pods(uids),
                changes = self.pod_sync.devices().plugins.changed() => self.on_devices(changes),
                uids = self.pod_sync.devices().dra.changed() => self.sync_pods(uids),
                uids = self.workers.finished() => self.on_finished(uids),
                ended = self.removals.ended() => if self.on_removals_ended(ended) { self.housekeeping_schedule.run_soon() } else { self.housekeeping_schedule.retry_later() },
                uids = self.orphans_outside_runtime.take() => self.on_orphans_outside_runtime(uids),
                () = self.pod_sync.allocations().completed() => self.retry_resizes(ResizeTrigger::PodResized),
                () = self.runtime_recovered.notified() => self.workers.runtime_recovered(),
                () = self.housekeeping_schedule.due() => self.housekeeping(listed),
                Ok(()) = self.admission.shutting_down.changed() => self.on_node_shutdown_changed(),
                Ok(()) = self.admission.node.changed(), if self.has_waiting_pods() => {
                    self.retry_pending_admissions();
                    // Upstream has no such trigger. It is counted as upstream's periodic retry, which it replaces.
                    self.retry_resizes(ResizeTrigger::PeriodicRetry);
                }
                () = sleep_until(next_iteration) => {}
                () = shutdown.cancelled() => {
                    self.removals.stop().await;
                    return Ok(());
                }
            }
        }
    }

    /// Waits until everything in the first list of the runtime has been inspected, so that the first status of each
    /// pod is complete. An inspection that hangs delays other pods by [`FIRST_INSPECTION_TIMEOUT`] at most.
    async fn first_inspection(&self) {
        let all_read = async {
            for pod in self.cache.pods() {
                self.cache.settled(&pod.uid).await;
            }
        };
        if tokio::time::timeout(FIRST_INSPECTION_TIMEOUT, all_read).await.is_err() {
            tracing::warn!(
                "Timed out reading the status of all sandboxes and containers; continuing with those that were read"
            );
        }
    }

    /// Handles an update of a source. Returns whether it leaves something to housekeeping: removed pods, orphans of a
    /// source whose completeness changed, or deferred pods.
    fn handle_pod_update(&mut self, update: PodUpdate) -> bool {
        let pod_manager = self.pod_manager.reader();
        // Computed once for all pods of the update, because it reads all pods of the runtime.
        let predecessors = match update.op {
            PodOp::Add => self.predecessors(&update.pods),
            _ => Vec::new(),
        };
        // The version in the store has the allocated resources, which may differ from the requested ones of the update.
        let current = |pod: Arc<Pod>| pod_manager.get(&pod.uid()).unwrap_or(pod);
        let known = |uid: &PodUid| pod_manager.get(uid);
        let mut resized = Vec::new();
        for step in dispatch(&update, &known, &|uid| self.admission_order(uid)) {
            match step {
                DispatchStep::Set(pod) => {
                    self.report_invalid_annotations(&pod);
                    let pod = self.with_allocation(pod);
                    self.publish_first_status(&pod);
                    self.pod_manager.set(pod);
                }
                DispatchStep::Remove(uid) => {
                    self.pod_manager.remove(&uid);
                }
                DispatchStep::SetMirror(mirror) => self.pod_manager.set_mirror(mirror),
                DispatchStep::RemoveMirror(name, uid) => {
                    self.pod_manager.unset_mirror(&name, &uid);
                }
                DispatchStep::Create(pod) => {
                    self.create_after(&predecessors, current(pod));
                }
                DispatchStep::Reconcile(pod) => {
                    let pod = current(pod);
                    self.publish_status(&pod);
                    self.workers.refresh(pod);
                }
                // Sent after the resize is decided: otherwise the worker would publish the new observedGeneration
                // without a resize condition.
                DispatchStep::Update(pod)
                    if update.op == PodOp::Update && self.resizes.is_pending(&pod.uid()) =>
                {
                    resized.push(pod);
                }
                DispatchStep::Update(pod) => {
                    let update = UpdatePodOptions::sync(SyncPodType::Update, current(pod));
                    self.workers.update_known_pod(update);
                }
                DispatchStep::Kill(pod) => self.handle_pod_removal(pod),
            }
        }
        let completeness_changed = self.sources.mark_seen(update.source, update.completeness);
        self.all_sources_seen.send_replace(self.sources.all_seen());
        self.retry_pending_admissions();
        self.retry_resizes(match update.op {
            PodOp::Remove => ResizeTrigger::PodsRemoved,
            _ => ResizeTrigger::PodUpdated,
        });
        for pod in resized {
            let update = UpdatePodOptions::sync(SyncPodType::Update, current(pod));
            self.workers.update_known_pod(update);
        }
        update.op == PodOp::Remove || completeness_changed || !self.deferred.is_empty()
    }

    /// An event for each annotation of this kubelet with a value that it ignores, when the value is new. The API server
    /// does not validate them, and a pod is not rejected for them; manifests are.
    fn report_invalid_annotations(&self, pod: &Pod) {
        let before = self.pod_manager.reader().get(&pod.uid());
        let before = before.as_ref().map(|before| &before.metadata.annotations);
        if before == Some(&pod.metadata.annotations) {
            return;
        }
        for error in validate_kubelet_annotations(pod) {
            self.pod_sync.warning_event(pod, event::FAILED_VALIDATION, error.to_string());
        }
    }

    /// Publishes the status of a new pod before the pod is stored, so that no client sees it without a status. While
    /// an earlier pod of its UID is being stopped or removed, the status of that pod is kept.
    fn publish_first_status(&self, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let terminating = self.workers.is_pod_termination_requested(&uid);
        if self.pod_manager.reader().get(&uid).is_none()
            && !terminating
            && !self.removals.contains(&uid)
            && self.uid_owner(pod) == UidOwner::Itself
        {
            self.pod_sync.publish_status(pod);
        }
    }

    /// Which pod has this UID in the runtime: while no kubelet ran, the manifest may have been edited, or its UID given
    /// to another pod.
    fn uid_owner(&self, pod: &Pod) -> UidOwner {
        let uid = pod.uid();
        let settled = self.cache.try_settled(&uid);
        let status = settled.clone().unwrap_or_else(|| self.cache.latest(&uid));
        let origin = self.pod_sync.origin(&uid);
        let recorded_digest = origin.and_then(|origin| origin.manifest_digest);
        uid_owner(pod, &status, settled.is_some(), recorded_digest.as_deref())
    }

    /// Active pods of the runtime that no source has (any more) and that have the name of one of these static pods. A
    /// pod that was listed and not inspected yet counts as active.
    fn predecessors(&self, of: &[Arc<Pod>]) -> Vec<Arc<PodStatus>> {
        let of = of.iter().filter(|pod| pod.is_static());
        let names: HashSet<(&str, &str)> = of.map(|pod| (pod.namespace(), pod.name())).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let pod_manager = self.pod_manager.reader();
        let mut pods = self.cache.pods();
        pods.retain(|pod| {
            let may_be_running =
                || pod.may_be_running() || self.cache.try_settled(&pod.uid).is_none();
            names.contains(&(&*pod.namespace, &*pod.name))
                && (pod.source() != PodSource::Api || self.is_source_unknown(pod))
                && !pod_manager.contains(&pod.uid)
                && may_be_running()
        });
        pods
    }

    /// Updates the probes, statuses and workers of pods whose runtime status changed. True if that leaves something to
    /// housekeeping: one of them is an orphan, or a decision waited for it.
    fn on_runtime_status_changed(&mut self, uids: HashSet<PodUid>) -> bool {
        let pod_manager = self.pod_manager.reader();
        let mut housekeeping = false;
        for uid in uids {
            housekeeping |= self.ends_wait(&uid);
            self.pod_sync.runtime_status_changed(&uid);
            match pod_manager.get(&uid) {
                Some(pod) if self.deferred.contains(&uid) => self.create_deferred(pod),
                Some(pod) => self.sync(pod),
                None if self.workers.has_worker(&uid) => self.workers.runtime_status_changed(&uid),
                None => housekeeping = true,
            }
        }
        housekeeping
    }

    /// Publishes what could not be published while these pods were not settled. True if a decision waited for one of
    /// them, which is left to housekeeping. Their workers are not woken, because nothing has changed: a call that fails
    /// and changes nothing unsettles its pod as well, and would be repeated without its retry delay.
    fn on_settled_unchanged(&mut self, uids: HashSet<PodUid>) -> bool {
        let pod_manager = self.pod_manager.reader();
        let mut housekeeping = false;
        for uid in uids {
            housekeeping |= self.ends_wait(&uid);
            if let Some(pod) = pod_manager.get(&uid) {
                self.publish_status(&pod);
            }
        }
        housekeeping
    }

    /// Whether a decision waited for this pod to be settled, and it is.
    fn ends_wait(&mut self, uid: &PodUid) -> bool {
        self.cache.try_settled(uid).is_some() && self.awaits_settled.remove(uid)
    }

    /// Syncs pods with a changed input other than the runtime status: probe results, volumes, devices or claims.
    fn sync_pods(&self, uids: HashSet<PodUid>) {
        let pod_manager = self.pod_manager.reader();
        for uid in uids {
            if let Some(pod) = pod_manager.get(&uid) {
                self.sync(pod);
            }
        }
    }

    /// Syncs the pods of changed devices, because statuses show device health, and admits pods that wait for devices.
    fn on_devices(&mut self, changes: HashSet<DeviceChange>) {
        self.sync_pods(changes.into_iter().flatten().collect());
        self.retry_pending_admissions();
    }

    fn sync(&self, pod: Arc<Pod>) {
        self.publish_status(&pod);
        let update = UpdatePodOptions::sync(SyncPodType::Sync, pod);
        self.workers.update_known_pod(update);
    }

    fn publish_status(&self, pod: &Arc<Pod>) {
        let uid = pod.uid();
        // The runtime status may be that of an earlier pod of this UID, whose own worker publishes its status.
        let belongs_to_earlier_pod = self.workers.restart_requested(&uid)
            || self.removals.contains(&uid)
            || self.deferred.contains(&uid);
        if !belongs_to_earlier_pod {
            self.pod_sync.publish_status(pod);
        }
    }

    /// Whether the source of a pod of the runtime is not known yet: it is read from a sandbox.
    fn is_source_unknown(&self, pod: &PodStatus) -> bool {
        pod.sandboxes.is_empty() && self.cache.try_settled(&pod.uid).is_none()
    }

    /// Stops the predecessors of a pod and creates its worker, which waits for their end. Defers the pod while it is
    /// unknown whether these pods are its predecessors.
    fn create_after(&mut self, predecessors: &[Arc<PodStatus>], pod: Arc<Pod>) {
        if self.end_predecessors(&pod, predecessors) {
            self.create(pod);
        } else {
            let unread = predecessors.iter().map(|pod| &pod.uid);
            let unread = unread.filter(|uid| self.cache.try_settled(uid).is_none());
            self.awaits_settled.extend(unread.cloned());
            self.defer(&pod, "the runtime status of another pod with this name is not known yet");
        }
    }

    /// Tries again to create the worker of a pod that was deferred.
    fn create_deferred(&mut self, pod: Arc<Pod>) {
        self.deferred.remove(&pod.uid());
        let predecessors = self.predecessors(std::slice::from_ref(&pod));
        self.create_after(&predecessors, pod);
    }

    /// Defers a desired pod: it gets no worker yet. Retried when its runtime status changes, and by housekeeping; a pod
    /// that waits for admission also by [`Self::retry_pending_admissions`].
    fn defer(&mut self, pod: &Pod, why: &str) {
        self.pod_sync.record_history(pod, DecisionKind::Wait, why.into());
        self.deferred.insert(pod.uid());
    }

    /// Admits a pod and creates its worker. A rejected pod gets a worker, too, which terminates it at once. A pod that
    /// is not admitted yet is deferred. If an earlier pod of the same UID is still being stopped or removed, admission
    /// happens after its removal.
    fn create(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid();
        if !self.workers.has_worker(&uid) && !self.resolve_uid_conflict(&pod) {
            return;
        }
        // A pod is counted once, although its admission may be tried many times before it has a worker.
        let is_new = !self.workers.has_worker(&uid) && !self.pending_admissions.contains(&uid);
        if self.pod_manager.reader().contains(&uid) && is_new {
            self.metrics.containers.observe(pod.containers().len() as f64);
        }
        let waits = self.workers.has_worker(&uid) || self.removals.contains(&uid);
        let runtime_status = self.cache.try_settled(&uid);
        // A pod that may be running already is not rejected for resources.
        let may_be_running = admit::may_be_running(runtime_status.as_deref());
        // A pod that is over starts nothing, so it needs no admission; its worker only stops what is left.
        let is_over =
            pod.is_terminal() || pod.is_being_deleted() || self.pod_sync.has_recorded_end(&uid);
        if !waits && is_over && may_be_running {
            // Its containers keep their devices and exclusive CPUs and memory until they have stopped.
            self.devices().mark_running(&pod);
            self.admission.resources.mark_running(&pod);
        } else if !waits && !is_over && !self.decide_admission(&pod, may_be_running) {
            return;
        }
        self.pending_admissions.remove(&uid);
        let options =
            UpdatePodOptions::sync(SyncPodType::Create, pod).with_runtime_status(runtime_status);
        self.update_worker(&uid, options);
    }

    /// Updates or creates the pod's worker. None is created while an earlier pod of this UID is being removed, or the
    /// removal would remove the new pod as well: `on_removals_ended` creates it.
    fn update_worker(&self, uid: &PodUid, options: UpdatePodOptions) {
        if self.workers.has_worker(uid) || !self.removals.contains(uid) {
            self.workers.update_pod(options);
        }
    }
}
