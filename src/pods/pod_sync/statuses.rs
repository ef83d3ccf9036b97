//! Generates and publishes the API status of pods.

use super::metrics::{PodStartMetrics, StartProgress};
use crate::base::clock;
use crate::model::{
    Pod, PodExt, PodStatus, PodUid, container_should_restart, is_other_manifest, is_terminal, keys,
    reasons,
};
use crate::pods::status::generate::{PodFailure, StatusInputs};
use crate::pods::status::{
    StatusManager, Statuses, differs_only_in_ignored_start_time, generate_api_pod_status,
    lacks_container_statuses, restored,
};
use crate::resources;
use crate::runtime::kuberuntime::{KubeGenericRuntimeManager, PodSyncResult, StartFailure};
use crate::state::Stores;
use crate::state::node_object::HostIps;
use crate::state::pod_cache::PodCache;
use crate::state::pod_manager::PodManager;
use crate::state::pod_state_store::{
    KilledToRestart, PodOrigin, PodRecord, PodStateStore, TerminalRecord, was_killed_to_restart,
};
use crate::state::probe_results::ProbeResults;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as api;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The stage of a pod; decides which waiting reasons and which phase its status may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum PodStage {
    /// It is being started, or runs.
    #[default]
    Active,
    /// It is being stopped.
    Terminating,
    /// All its containers have ended for good.
    Terminated,
}

/// Inputs of a pod's status that are in no store and not in the runtime, the progress of its start for the metrics, and
/// whether it starts again if a node shutdown is cancelled.
#[derive(Debug, Default)]
struct RecordedInputs {
    failures: Vec<StartFailure>,
    stage: PodStage,
    pod_failure: Option<PodFailure>,
    start: StartProgress,
    /// The node rejected it: its status is kept as it is, unless the runtime has a container of it.
    rejected: bool,
    /// A static pod that a node shutdown stopped: it is started again if the shutdown is cancelled.
    restarts_after_shutdown: bool,
}

/// Containers that were killed in order to start their successors, although by the restart policy their exit would be
/// final.
fn killed_to_restart(pod: &Pod, status: &PodStatus, kills: &KilledToRestart) -> Vec<String> {
    let killed = pod.containers().iter().filter(|container| {
        status.newest(&container.name).is_some_and(|newest| {
            was_killed_to_restart(kills, newest)
                && !container_should_restart(pod, container, newest.exit_code)
        })
    });
    killed.map(|container| container.name.clone()).collect()
}

/// Generates and publishes the status of a pod whenever one of its inputs changes.
pub struct StatusPublisher {
    runtime: KubeGenericRuntimeManager,
    runtime_name: String,
    status_manager: StatusManager,
    cache: PodCache,
    results: ProbeResults,
    state_store: PodStateStore,
    pub(super) starts: PodStartMetrics,
    cluster: Option<ClusterInputs>,
    recorded: Mutex<HashMap<PodUid, RecordedInputs>>,
}

/// The inputs that exist only on a node with an API server.
pub struct ClusterInputs {
    /// The newest pod objects of the API server.
    pub pod_manager: PodManager,
    /// The node's addresses.
    pub host_ips: HostIps,
}

impl StatusPublisher {
    /// A publisher without pods. `runtime_name` is what container ids are prefixed with.
    pub fn new(
        runtime: KubeGenericRuntimeManager,
        runtime_name: String,
        status_manager: StatusManager,
        stores: &Stores,
        starts: PodStartMetrics,
        cluster: Option<ClusterInputs>,
    ) -> Self {
        Self {
            runtime,
            runtime_name,
            status_manager,
            cache: stores.pod_cache.clone(),
            results: stores.probe_results.clone(),
            state_store: stores.state_store.clone(),
            starts,
            cluster,
            recorded: Mutex::default(),
        }
    }

    /// The status of a pod at the API server; for a static pod, that of its mirror pod.
    fn api_status(&self, pod: &Pod) -> Option<api::PodStatus> {
        let pod_manager = &self.cluster.as_ref()?.pod_manager;
        let object = if pod.is_static() {
            pod_manager.mirror_of(&pod.full_name())
        } else {
            pod_manager.get(&pod.uid())
        };
        match object {
            Some(object) => object.status.clone(),
            None if pod.is_static() => None,
            None => pod.status.clone(),
        }
    }

    /// The desired pods, on a node with an API server.
    pub(super) fn desired_pods(&self) -> Option<&PodManager> {
        Some(&self.cluster.as_ref()?.pod_manager)
    }

    /// The newest version of a pod of the API server; the version of a worker may be older.
    pub(super) fn newest(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let newest = self.cluster.as_ref().filter(|_| !pod.is_static());
        let newest = newest.and_then(|cluster| cluster.pod_manager.get(&pod.uid()));
        newest.unwrap_or_else(|| pod.clone())
    }

    /// The store of statuses.
    pub fn statuses(&self) -> Statuses {
        self.status_manager.reader()
    }

    /// Generates and publishes a pod's status. Returns the published one, which is the previous one while the runtime
    /// status is not settled, if the pod is rejected, or if the new status is an illegal transition; `None` if this
    /// process has published none.
    pub fn publish_status(&self, pod: &Arc<Pod>) -> Option<Arc<api::PodStatus>> {
        let uid = pod.uid();
        let pod = &self.newest(pod);
        // The lock is held until the status is stored: a worker and the sync loop call this concurrently, and a status
        // made from older inputs must not replace one made from newer inputs.
        let mut recorded = self.recorded.lock();
        let recorded = recorded.entry(uid.clone()).or_default();
        // Both at one time: a worker that sees the successor of a killed container forgets the kill, and an older runtime
        // status would then show the kill as the end of the pod.
        let settled = self.state_store.read(&uid, |record| {
            let runtime_status = self.cache.try_settled(&uid)?;
            Some((runtime_status, record.killed_to_restart.clone()))
        });
        let Some((runtime_status, killed)) = settled else {
            return self.statuses().get(&uid);
        };
        if recorded.rejected && runtime_status.is_empty() {
            return self.statuses().get(&uid);
        }
        self.record_origin(pod);
        let api_status = self.api_status(pod);
        let old = self.old_status(pod, api_status.as_ref());
        let runtime_status = self.without_containers_in_post_start(runtime_status);
        let runtime_status = self.with_exits(runtime_status);
        let old = (old.as_deref(), api_status.as_ref());
        match self.generate(pod, (&runtime_status, &killed), old, recorded) {
            Ok(status) => {
                let pulling = || self.runtime.take_pulling_time(&uid);
                self.starts.published(&mut recorded.start, pod, &status, pulling);
                if self.status_manager.set_pod_status(pod, status) {
                    self.record_status(pod);
                }
            }
            Err(error) => {
                tracing::error!(
                    pod = %pod.log_name(),
                    "podUID" = %uid,
                    err = %error,
                    "Illegal container state transition, keeping the old pod status"
                );
                // After a restart the old status is not published yet, and the sync would wait for one.
                if self.statuses().get(&uid).is_none()
                    && let Some(kept) = old.0.or(old.1.filter(|_| !pod.is_static()))
                {
                    self.status_manager.set_pod_status(pod, kept.clone());
                }
            }
        }
        self.statuses().get(&uid)
    }

    /// The runtime status without containers whose postStart hook has not ended, unless they exited: the API shows the
    /// container as it was before, waiting or terminated by the exit of its previous instance.
    fn without_containers_in_post_start(&self, runtime_status: Arc<PodStatus>) -> Arc<PodStatus> {
        self.state_store.read(&runtime_status.uid, |record| {
            let containers = &runtime_status.containers;
            if !containers.iter().any(|c| record.is_in_post_start(c)) {
                return runtime_status.clone();
            }
            let mut status = PodStatus::clone(&runtime_status);
            status.containers.retain(|c| !record.is_in_post_start(c));
            Arc::new(status)
        })
    }

    /// Adds recorded exits of containers that the runtime no longer has.
    fn with_exits(&self, runtime_status: Arc<PodStatus>) -> Arc<PodStatus> {
        let status = self.state_store.read(&runtime_status.uid, |record| {
            record.exits.with_removed_instances(&runtime_status)
        });
        status.map_or(runtime_status, Arc::new)
    }

    /// Records the origin of the pod, by which housekeeping decides whether it may be removed. A record of another
    /// manifest, which a killed kubelet had not removed yet, is dropped: otherwise this pod would count as ended
    /// because the pod of the earlier manifest ended.
    pub fn record_origin(&self, pod: &Pod) {
        let uid = pod.uid();
        let is_known = |record: &PodRecord| record.origin.as_ref().is_some_and(|o| o.is_of(pod));
        if self.state_store.read(&uid, is_known) {
            return;
        }
        self.state_store.update(&uid, |record| {
            let before = record.origin.take();
            let digest = before.as_ref().and_then(|o| o.manifest_digest.as_deref());
            if is_other_manifest(digest, pod.annotation(keys::MANIFEST_DIGEST)) {
                *record = PodRecord::default();
            }
            record.origin = Some(PodOrigin::of(pod));
        });
    }

    /// Stores the status, so that transition times and the pod's active deadline survive a restart of the kubelet. Of a
    /// status with a terminal phase, only conditions and times are stored: the end of a pod is recorded separately, and a pod that
    /// was rejected or stopped for a node shutdown may run later.
    fn record_status(&self, pod: &Pod) {
        let uid = &pod.uid();
        let Some(mut status) = self.statuses().get(uid) else {
            return;
        };
        if is_terminal(&status) {
            status = Arc::new(api::PodStatus {
                conditions: status.conditions.clone(),
                start_time: status.start_time.clone(),
                ..api::PodStatus::default()
            });
        }
        let ignored = self.state_store.read(uid, |record| {
            let stored = record.status.as_ref();
            stored.is_some_and(|stored| differs_only_in_ignored_start_time(pod, stored, &status))
        });
        let change = |record: &mut PodRecord| {
            if record.terminal.is_none() {
                record.status = Some(status);
            }
        };
        if ignored {
            // Else each restart of the kubelet would write the records of all static pods.
            self.state_store.update_in_memory(uid, change);
        } else {
            self.state_store.update(uid, change);
        }
    }

    fn generate(
        &self,
        pod: &Arc<Pod>,
        (runtime_status, kills): (&PodStatus, &KilledToRestart),
        (old, api_status): (Option<&api::PodStatus>, Option<&api::PodStatus>),
        recorded: &RecordedInputs,
    ) -> Result<api::PodStatus, crate::pods::status::generate::IllegalTransition> {
        let now = clock::timestamp();
        let actions = self.runtime.action_summary(pod, runtime_status);
        let is_active = recorded.stage == PodStage::Active;
        let killed =
            if is_active { killed_to_restart(pod, runtime_status, kills) } else { Vec::new() };
        let restarting =
            (!killed.is_empty()).then(|| Arc::new(with_restart_policy_always(pod, &killed)));
        let pod = restarting.as_ref().unwrap_or(pod);
        let back_off = |name: &str| self.runtime.back_off_message(pod, name, runtime_status, now);
        let failure = |name: &str| {
            let mut failures = recorded.failures.iter();
            if let Some(failure) = failures.find(|failure| failure.container == name) {
                return Some((failure.reason.to_string(), failure.message.clone()));
            }
            let is_killed = killed.iter().any(|killed| killed == name);
            (is_killed && back_off(name).is_none())
                .then(|| (reasons::CONTAINER_CREATING.into(), "being replaced".into()))
        };
        let probe_results = |id: &_| self.results.get(id);
        let device_health = |name: &str| self.runtime.devices().health_of(pod, name);
        let resize = self.runtime.allocations().conditions(&pod.uid());
        let resizing = resize.in_progress.as_ref();
        let runs = |name: &str| runtime_status.runs(name);
        let actuated_pod =
            resizing.and_then(|_| self.runtime.allocations().actuated_pod(pod, runs));
        let host_ips = self.cluster.as_ref();
        let host_ips = host_ips.map(|cluster| cluster.host_ips.get());
        let host_ips = host_ips.unwrap_or_default();
        let mut inputs = StatusInputs {
            pod,
            runtime: runtime_status,
            runtime_name: &self.runtime_name,
            qos_class: qos_class(pod),
            probe_results: &probe_results,
            start_failure: &failure,
            back_off: &back_off,
            old,
            api_status,
            host_ips: &host_ips,
            needs_new_sandbox: actions.needs_new_sandbox,
            restart_all: actions.restart_all,
            pod_is_terminal: recorded.stage == PodStage::Terminated,
            pod_failure: recorded.pod_failure.as_ref(),
            resize: &resize,
            actuated_pod: actuated_pod.as_ref(),
            device_health: &device_health,
            recursive_read_only_mounts: self.runtime.supports_recursive_read_only(pod),
            now,
        };
        if !is_active {
            inputs.back_off = &|_| None;
        }
        generate_api_pod_status(&inputs)
    }

    /// The status that was published before, by this kubelet or an earlier one.
    fn old_status(
        &self,
        pod: &Pod,
        api_status: Option<&api::PodStatus>,
    ) -> Option<Arc<api::PodStatus>> {
        let uid = pod.uid();
        let earlier = || {
            let stored = self.state_store.read(&uid, PodRecord::last_status)?;
            let api_status = api_status.filter(|_| !pod.is_static());
            if lacks_container_statuses(&stored, api_status) {
                return None;
            }
            Some(if pod.is_static() { Arc::new(restored(pod, &stored)) } else { stored })
        };
        self.statuses().get(&uid).or_else(earlier)
    }

    /// Stores the start failures of a sync. A restart back-off is not stored: the status is generated from the back-off
    /// itself, which ends with time.
    pub(super) fn record_start_failures(&self, uid: &PodUid, result: &PodSyncResult) {
        let mut recorded = self.recorded.lock();
        let failures = &mut recorded.entry(uid.clone()).or_default().failures;
        failures.retain(|known| {
            let again = result.failures.iter();
            let mut again = again.filter(|failure| failure.container == known.container);
            !result.started.contains(&known.container) && again.next().is_none()
        });
        let kept = result.failures.iter();
        let kept = kept.filter(|f| f.reason != reasons::CRASH_LOOP_BACK_OFF);
        failures.extend(kept.cloned());
    }

    pub(super) fn record_stage(&self, uid: &PodUid, stage: PodStage) {
        self.recorded.lock().entry(uid.clone()).or_default().stage = stage;
    }

    /// Publishes a pod as rejected by the node.
    pub(super) fn reject(&self, pod: &Arc<Pod>, failure: PodFailure) {
        let mut recorded = self.recorded.lock();
        let recorded = recorded.entry(pod.uid()).or_default();
        recorded.rejected = true;
        let status = api::PodStatus {
            observed_generation: pod.metadata.generation,
            phase: Some("Failed".into()),
            reason: Some(failure.reason.clone()),
            message: Some(failure.message.clone()),
            qos_class: Some(qos_class(pod).into()),
            ..api::PodStatus::default()
        };
        recorded.pod_failure = Some(failure);
        self.status_manager.set_pod_status(pod, status);
    }

    /// Stores the reason for which the node fails a pod. The first reason is kept; false if there was one.
    pub(super) fn record_failed(&self, uid: &PodUid, failure: PodFailure) -> bool {
        let mut recorded = self.recorded.lock();
        let known = &mut recorded.entry(uid.clone()).or_default().pod_failure;
        let first = known.is_none();
        known.get_or_insert(failure);
        first
    }

    /// Marks a static pod that is stopped for a node shutdown: it starts again if the shutdown is cancelled, because no
    /// API server replaces it.
    pub(super) fn set_restarts_after_shutdown(&self, uid: &PodUid) {
        let mut recorded = self.recorded.lock();
        recorded.entry(uid.clone()).or_default().restarts_after_shutdown = true;
    }

    /// Whether a pod ended, or was rejected, only because the node was going to shut down.
    pub fn ended_by_shutdown(&self, uid: &PodUid) -> bool {
        self.recorded.lock().get(uid).is_some_and(|recorded| {
            let failure = recorded.pod_failure.as_ref();
            let for_shutdown =
                failure.is_some_and(|failure| failure.reason == reasons::NODE_SHUTDOWN);
            recorded.restarts_after_shutdown || recorded.rejected && for_shutdown
        })
    }

    /// The `startTime` of a pod, from its published status or that of an earlier kubelet.
    pub(super) fn start_time(&self, pod: &Pod) -> Option<Timestamp> {
        let api_status = self.api_status(pod);
        let old = self.old_status(pod, api_status.as_ref());
        let status = old.or_else(|| api_status.filter(|_| !pod.is_static()).map(Arc::new))?;
        status.start_time.as_ref().map(|start| start.0)
    }

    /// Records that a pod has ended, so that it is not started again after a restart of the kubelet. Not recorded: a
    /// rejection, because the pod may be admitted after the restart; and the end of a static pod by a node shutdown,
    /// because it starts again.
    pub(super) async fn record_terminal(&self, pod: &Pod, status: &Arc<api::PodStatus>) {
        let uid = &pod.uid();
        if self
            .recorded
            .lock()
            .get(uid)
            .is_some_and(|recorded| recorded.rejected || recorded.restarts_after_shutdown)
        {
            return;
        }
        let change = |record: &mut PodRecord| {
            let known = record.terminal.take();
            record.status = None;
            record.killed_to_restart.clear();
            record.terminal = Some(TerminalRecord {
                status: Some(status.clone()),
                stopped_sandboxes: known.map(|t| t.stopped_sandboxes).unwrap_or_default(),
            });
        };
        self.state_store.update_and_wait(uid, change).await
    }

    /// Publishes the last status of a pod whose containers have ended and whose volumes are torn down, and marks the
    /// pod as finished: from then on the status writer may delete it from the API server.
    pub(super) fn terminate_pod(&self, pod: &Arc<Pod>) {
        let api_status = self.api_status(pod).filter(|_| !pod.is_static());
        self.status_manager.terminate_pod(pod, api_status.as_ref());
    }

    /// Publishes the status after the last container has ended, and marks it to be sent: a terminal phase is sent to the
    /// API server only now.
    pub(super) fn publish_stopped(&self, pod: &Arc<Pod>) {
        self.publish_status(pod);
        self.status_manager.mark(&pod.uid());
    }

    /// Number of pods with recorded inputs.
    pub fn count(&self) -> usize {
        self.recorded.lock().len()
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.recorded.lock().remove(uid);
        self.status_manager.remove(uid);
    }
}

fn qos_class(pod: &Pod) -> &'static str {
    resources::pod_qos(pod).map_or("BestEffort", |class| class.as_str())
}

/// The pod with `restartPolicy: Always` for these containers, so that the status does not show their exits as final.
fn with_restart_policy_always(pod: &Pod, names: &[String]) -> Pod {
    let mut pod = pod.clone();
    let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    for container in containers.filter(|container| names.contains(&container.name)) {
        container.restart_policy = Some("Always".into());
    }
    pod
}
