//! The syncs of one pod: start it, stop it, clean up after it. The header of `syncer` tells the order and the failures.
//!
//! * Owns, in [`StatusPublisher`]: the inputs of statuses that no store has: start failures of containers (upstream's
//!   reason cache), the stage of the pod, and why the node failed or rejected it.
//! * Woken by: the pod's worker, one sync at a time; statuses also by the sync loop.
//! * Publishes: API statuses through the status manager.
//! * Must never overlap for a UID, or wait for another pod, except for the limit of starting pods, a pull or a device.
//! * Upstream: `Kubelet.SyncPod`, `SyncTerminatingPod` and `SyncTerminatedPod`.

mod sync_loop_interface;
mod clean_up;
mod deadline;
mod drain;
mod pod_lister;
mod metrics;
mod resize_progress;
mod statuses;
pub mod syncer;
mod stale;
mod volume_repair;

use crate::base::{clock, error_chain};
use crate::model::reasons::event;
use crate::model::{GraceDeadline, Pod, PodExt, PodStatus, is_terminal};
use crate::pods::pleg::RuntimeStateReader;
use crate::pods::prober::ProbeManager;
use crate::pods::status::generate::PodFailure;
use crate::resources::cm::ContainerManager;
use crate::runtime::kuberuntime::{KubeGenericRuntimeManager, PodSyncResult, SyncRequest};
use crate::state::Stores;
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::{PodCache, PodRef};
use crate::state::pod_history::{DecisionKind, HistoryEntry, PodHistory};
use crate::state::pod_state_store::PodStateStore;
use crate::volumes::{VolumeError, VolumeManager, VolumesNotReady};
use anyhow::Context as _;
use deadline::Deadline;
use drain::EndingVolumes;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1 as api;
use statuses::PodStage;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use syncer::{NextSync, PodSyncer, SyncDelay, SyncPodOutcome, TerminationReason};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use metrics::PodStartMetrics;
pub(super) use metrics::reason_label;
pub use pod_lister::{PodLister, PodWithStatus};
pub use statuses::{ClusterInputs, StatusPublisher};

/// Delay before the next sync of a pod whose runtime status changed before its status could be published.
const UNSETTLED_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The syncer of real pods.
pub struct PodSync {
    /// Carries out the syncs in the container runtime.
    runtime: KubeGenericRuntimeManager,
    cache: PodCache,
    status_publisher: Arc<StatusPublisher>,
    probes: ProbeManager,
    volumes: VolumeManager,
    cgroups: ContainerManager,
    /// Facts that survive a restart.
    state_store: PodStateStore,
    events: EventRecorder,
    /// Decisions about pods, and their reasons.
    pod_history: PodHistory,
    runtime_state: RuntimeStateReader,
    ending_volumes: EndingVolumes,
}

impl PodSync {
    /// Builds the syncer.
    pub fn new(
        stores: &Stores,
        runtime: KubeGenericRuntimeManager,
        status_publisher: Arc<StatusPublisher>,
        probes: ProbeManager,
        volumes: VolumeManager,
        cgroups: ContainerManager,
        runtime_state: RuntimeStateReader,
    ) -> Self {
        Self {
            runtime,
            cache: stores.pod_cache.clone(),
            status_publisher,
            probes,
            volumes,
            cgroups,
            state_store: stores.state_store.clone(),
            events: stores.events.clone(),
            pod_history: stores.pod_history.clone(),
            runtime_state,
            ending_volumes: EndingVolumes::default(),
        }
    }

    async fn sync(&self, pod: Arc<Pod>, cancel: CancellationToken) -> SyncPodOutcome {
        let uid = pod.uid();
        let deadline = Deadline::of(&pod, || self.status_publisher.start_time(&pod));
        let runtime_status = tokio::select! {
            biased;
            runtime_status = self.settled(&pod) => runtime_status,
            () = cancel.cancelled() => return sync_outcome(Ok(false), SyncDelay::Resync),
            () = deadline.elapsed() => return self.end_sync_past_deadline(&pod).await,
        };
        let Some(status) = self.status_publisher.publish_status(&pod) else {
            // No status was published yet, usually because the runtime status is unsettled again, which is no failure.
            // If one had been published, `publish_status` would have returned it, and the sync would go on.
            let next = NextSync::at(clock::instant() + UNSETTLED_RETRY_DELAY);
            return sync_outcome(Ok(false), next);
        };
        if is_terminal(&status) {
            return self.end_sync(&pod, &status).await;
        }
        let deadline = Deadline::of(&pod, || self.status_publisher.start_time(&pod));
        if deadline.is_over() {
            return self.end_sync_past_deadline(&pod).await;
        }
        let runtime_error = self.runtime_state.borrow().runtime_error(clock::instant());
        if let Some(text) = runtime_error {
            self.record_history(&pod, DecisionKind::Wait, text);
            self.wait_for_runtime(deadline, &cancel).await;
            // The next sync reads the pod and its runtime status again.
            return sync_outcome(Ok(false), NextSync::at(clock::instant()));
        }
        let network =
            if pod.host_network() { None } else { self.runtime_state.borrow().network_error() };
        if let Some(text) = network {
            let object = ObjectRef::pod(&pod);
            self.events.warning(&object, event::NETWORK_NOT_READY, text.clone());
            self.record_history(&pod, DecisionKind::Wait, text.clone());
            return sync_outcome(Err(anyhow::anyhow!(text)), SyncDelay::NetworkNotReady);
        }
        let sync_cancel = cancel.child_token();
        let mut syncing =
            Box::pin(self.sync_volumes_and_containers(&pod, runtime_status, &sync_cancel));
        let result = loop {
            tokio::select! {
                biased;
                result = &mut syncing => break Some(result),
                () = deadline.elapsed() => {
                    // Long steps such as pulls end now; a container that is being created is still started first.
                    self.fail_for_deadline(&pod);
                    sync_cancel.cancel();
                    let _ = syncing.await;
                    break None;
                }
                () = self.restart_due(&pod) => {
                    self.status_publisher.publish_status(&pod);
                }
            }
        };
        self.pod_history.set_current_step(&uid, None);
        match result {
            Some(Ok(result)) => self.finish_sync(&pod, result, deadline).await,
            Some(Err(error)) => {
                let volumes = error.downcast_ref::<VolumesNotReady>();
                if let Some(limit) = volumes.and_then(VolumesNotReady::attachment_limit) {
                    let reason = event::VOLUME_ATTACHMENT_LIMIT_EXCEEDED;
                    self.reject(&pod, reason.into(), &error_chain(limit));
                    return self.end_published(&pod).await;
                }
                let delay = if volumes.is_some_and(VolumesNotReady::is_unsupported) {
                    SyncDelay::Unsupported(1)
                } else {
                    SyncDelay::Error
                };
                sync_outcome(Err(error), delay)
            }
            None => self.end_sync_past_deadline(&pod).await,
        }
    }

    /// Waits until the next restart back-off of the pod ends, or until a change of the runtime status moves that
    /// instant. The caller then publishes the status again, so that a container that a long sync has not started yet is
    /// not shown in CrashLoopBackOff after its back-off ended.
    async fn restart_due(&self, pod: &Pod) {
        let uid = pod.uid();
        // One reading of the clock: if it was set back, the end of a back-off moves with it.
        let now = clock::timestamp();
        let next = |runtime_status: &PodStatus| self.runtime.next_restart(pod, runtime_status, now);
        let ends = next(&self.cache.latest(&uid));
        let left = ends.map(|ends| Duration::try_from(ends.duration_since(now)));
        let over = async {
            match left {
                Some(left) => tokio::time::sleep(left.unwrap_or_default()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over => {}
            () = self.cache.wait_for(&uid, |runtime_status| next(runtime_status) != ends) => {}
        }
    }

    /// Records a decision about a pod in its history.
    pub fn record_history(&self, pod: &Pod, kind: DecisionKind, why: String) {
        self.pod_history.record(&pod.uid(), HistoryEntry::about_pod(kind, why));
    }

    /// Ends the sync of a pod with a terminal status: records the status.
    async fn end_sync(&self, pod: &Arc<Pod>, status: &Arc<api::PodStatus>) -> SyncPodOutcome {
        self.status_publisher.record_terminal(pod, status).await;
        let phase = status.phase.clone().unwrap_or_default();
        self.record_history(pod, DecisionKind::Finish, format!("phase {phase}"));
        sync_outcome(Ok(true), SyncDelay::Resync)
    }

    /// Ends the sync of a pod whose active deadline is exceeded. The pod is terminated even if its runtime status
    /// cannot be read, so that no new status can be published.
    async fn end_sync_past_deadline(&self, pod: &Arc<Pod>) -> SyncPodOutcome {
        self.fail_for_deadline(pod);
        self.end_published(pod).await
    }

    /// Ends the sync of a pod whose terminal status has been published, if that was possible.
    async fn end_published(&self, pod: &Arc<Pod>) -> SyncPodOutcome {
        match self.status_publisher.statuses().get(&pod.uid()) {
            Some(status) if is_terminal(&status) => self.end_sync(pod, &status).await,
            _ => sync_outcome(Ok(true), SyncDelay::Resync),
        }
    }

    /// Waits until the runtime is ready, the sync is cancelled or the pod's deadline is exceeded.
    async fn wait_for_runtime(&self, deadline: Deadline, cancel: &CancellationToken) {
        let mut state = self.runtime_state.clone();
        tokio::select! {
            _ = state.wait_for(|state| state.runtime_error(clock::instant()).is_none()) => {}
            () = cancel.cancelled() => {}
            () = deadline.elapsed() => {}
        }
    }

    /// Makes volumes and containers match the pod. If the runtime has nothing of it, its record is flushed first.
    async fn sync_volumes_and_containers(
        &self,
        pod: &Arc<Pod>,
        runtime_status: Arc<PodStatus>,
        cancel: &CancellationToken,
    ) -> anyhow::Result<PodSyncResult> {
        self.pod_history.set_current_step(&pod.uid(), Some("setting up volumes".into()));
        let failed = |error: &VolumeError| {
            let text = error_chain(error);
            self.record_history(pod, DecisionKind::Fail, text.clone());
            self.events.warning(&ObjectRef::pod(pod), error.event_reason(), text);
        };
        if runtime_status.is_empty() {
            // The record of a new pod has to be written before anything else of it: files of a pod without a record
            // and without containers are never removed, because their origin is unknown.
            let recorded = self.state_store.flush_pod(&runtime_status.uid);
            let recorded = cancel.run_until_cancelled(recorded).await;
            anyhow::ensure!(recorded.is_some(), "the sync was cancelled");
        }
        // Before the volumes are ready, because containers of the pod may run already.
        self.probes.add_pod(pod);
        for error in self.repair_volumes(pod, &runtime_status).await {
            failed(&error);
        }
        let volumes = match self.volumes.prepare(pod, cancel).await {
            Ok(volumes) => volumes,
            Err(error) if matches!(*error.first, VolumeError::Cancelled) => {
                anyhow::bail!("the sync was cancelled")
            }
            // The pod is rejected, with an event of its own.
            Err(error) if error.attachment_limit().is_some() => return Err(error.into()),
            Err(error) => {
                for error in error.errors() {
                    failed(error);
                }
                return Err(error.into());
            }
        };
        for error in &volumes.update_errors {
            failed(error);
        }
        let secrets = match self.runtime.pull_secrets(pod, &runtime_status, cancel).await {
            Err(VolumeError::Cancelled) => anyhow::bail!("the sync was cancelled"),
            secrets => secrets?,
        };
        let request = SyncRequest {
            pod,
            secrets: &secrets,
            status: runtime_status,
            volumes: &volumes.paths,
            cancel,
        };
        let syncing = Box::pin(self.runtime.sync_pod(request));
        let mut result = tokio::select! {
            biased;
            result = syncing => result,
            never = self.keep_volumes_current(pod) => match never {},
        };
        // In each sync, because the one before may have failed in this or been cancelled.
        let removal = Box::pin(self.remove_superseded(pod));
        if cancel.run_until_cancelled(removal).await == Some(false) {
            result.retry_after(clean_up::REMOVAL_RETRY);
        }
        Ok(result)
    }

    /// Keeps the content volumes of a pod current while its containers are being started or stopped.
    async fn keep_volumes_current(&self, pod: &Arc<Pod>) -> Infallible {
        let report = |error: &VolumeError| {
            self.record_history(pod, DecisionKind::Fail, error_chain(error));
        };
        let newest = || self.status_publisher.newest(pod);
        self.volumes.keep_current(newest, report).await
    }

    async fn finish_sync(
        &self,
        pod: &Arc<Pod>,
        result: PodSyncResult,
        deadline: Deadline,
    ) -> SyncPodOutcome {
        if result.is_clean() && !result.cancelled {
            self.pod_history.record_success(&pod.uid());
        }
        self.status_publisher.record_start_failures(&pod.uid(), &result);
        self.record_resize_progress(pod, &result);
        self.status_publisher.publish_status(pod);
        let at = [result.next_sync_at, deadline.at()].into_iter().flatten().min();
        let delay = if result.needs_retry() { SyncDelay::Error } else { SyncDelay::Resync };
        let is_terminal = match (result.error, result.cancelled) {
            (Some(error), false) => Err(error),
            _ => Ok(false),
        };
        sync_outcome(is_terminal, NextSync { at, delay })
    }

    /// Publishes the pod as failed because its deadline is over, with one event.
    fn fail_for_deadline(&self, pod: &Arc<Pod>) {
        let message = "Pod was active on the node longer than the specified deadline";
        let failure = PodFailure {
            reason: event::DEADLINE_EXCEEDED.into(),
            message: message.into(),
            disruption: false,
        };
        if self.status_publisher.record_failed(&pod.uid(), failure) {
            self.record_history(pod, DecisionKind::StopPod, message.into());
            self.events.normal(&ObjectRef::pod(pod), event::DEADLINE_EXCEEDED, message);
        }
        self.status_publisher.publish_status(pod);
    }

    async fn sync_terminating(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> anyhow::Result<()> {
        let uid = pod.uid();
        let left = grace.borrow().left(clock::instant());
        let stop = HistoryEntry::about_pod(DecisionKind::StopPod, reason.to_string());
        self.pod_history.record(&uid, stop.until(clock::timestamp() + left));
        self.pod_history.set_current_step(&uid, Some("stopping the pod".into()));
        if let Some(failure) = reason.pod_failure() {
            self.status_publisher.record_failed(&uid, failure);
        }
        if reason == TerminationReason::NodeShutdown && pod.is_static() {
            self.status_publisher.set_restarts_after_shutdown(&uid);
        }
        self.runtime.stop_prefetches(&uid);
        self.status_publisher.record_stage(&uid, PodStage::Terminating);
        self.status_publisher.publish_status(&pod);
        self.probes.stop_liveness_and_startup(&uid);
        let (left, pod_ref) = (grace.borrow().left(clock::instant()), PodRef::of(&pod));
        let stopping = async {
            let runtime_status = self.runtime.read_status_for_stop(&pod_ref, left).await;
            self.report_stale(&pod);
            let status = runtime_status?;
            self.runtime.kill_pod(Some(&pod), &status, grace).await
        };
        let killed = tokio::select! {
            biased;
            killed = stopping => killed,
            never = self.keep_volumes_current(&pod) => match never {},
        };
        self.pod_history.set_current_step(&uid, None);
        if let Err(error) = killed {
            let text = format!("error killing pod: {}", error_chain(error.as_ref()));
            self.events.warning(&ObjectRef::pod(&pod), event::FAILED_KILL_POD, &*text);
            self.record_history(&pod, DecisionKind::Fail, text);
            return Err(error);
        }
        self.probes.remove_pod(&uid);
        // Before the status shows that the pod has ended: after that, another pod may be allocated its claims.
        self.runtime.devices().dra.recover(&pod).await;
        self.unprepare_resources(&uid).await?;
        self.status_publisher.record_stage(&uid, PodStage::Terminated);
        let settled = self.runtime.settle_stopped(&uid).await;
        settled.context("failed to check whether the pod has ended")?;
        self.status_publisher.publish_status(&pod);
        Ok(())
    }

    /// Stops an orphan. After a start of the kubelet it may have been listed and not inspected yet, so an empty runtime
    /// status does not mean that nothing has to be stopped.
    async fn sync_terminating_runtime(
        &self,
        running: &PodStatus,
        grace: watch::Receiver<GraceDeadline>,
    ) -> anyhow::Result<()> {
        let left = grace.borrow().left(clock::instant());
        let pod_ref = PodRef::of_status(running);
        let runtime_status = self.runtime.read_status_for_stop(&pod_ref, left).await?;
        self.runtime.kill_pod(None, &runtime_status, grace).await?;
        self.unprepare_resources(&running.uid).await?;
        self.runtime.settle_stopped(&running.uid).await
    }

    async fn sync_terminated(&self, pod: Arc<Pod>) -> anyhow::Result<()> {
        let uid = pod.uid();
        self.status_publisher.publish_stopped(&pod);
        self.runtime.devices().plugins.release(&uid);
        self.end_volumes(&pod).await?;
        let removed = self.cgroups.destroy(&uid).await;
        removed.context("failed to delete the cgroup of the pod")?;
        self.runtime.release_user_namespace(&uid).await;
        self.status_publisher.terminate_pod(&pod);
        if let Some(status) = self.status_publisher.statuses().get(&uid)
            && is_terminal(&status)
        {
            self.status_publisher.record_terminal(&pod, &status).await;
        }
        Ok(())
    }
}

impl PodSyncer for PodSync {
    fn sync_pod(&self, pod: Arc<Pod>, cancel: CancellationToken) -> BoxFuture<'_, SyncPodOutcome> {
        Box::pin(async move {
            let outcome = self.sync(pod.clone(), cancel).await;
            // However it ended: it may have started what a container waits for.
            self.probes.pod_synced(&pod.uid());
            outcome
        })
    }

    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(self.sync_terminating(pod, grace, reason))
    }

    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async move { self.sync_terminating_runtime(&running, grace).await })
    }

    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(self.sync_terminated(pod))
    }
}

fn sync_outcome(result: anyhow::Result<bool>, next: impl Into<NextSync>) -> SyncPodOutcome {
    SyncPodOutcome { result, next: next.into() }
}
