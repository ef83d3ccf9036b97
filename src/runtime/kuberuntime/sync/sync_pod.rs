//! Makes the runtime match a pod, in these steps:
//!
//! | step here | step upstream | what it does |
//! |---|---|---|
//! | 1 | 1 | compute the changes |
//! | 2 | 2 | kill the pod if its sandbox changed |
//! | 3 | 3 | kill containers that should not run |
//! | after 3 | - | run postStart hooks that are not recorded as ended |
//! | after 3 | 8 | resize running containers |
//! | 4 | 4 | create the sandbox |
//! | - | 5 | the sandbox-ready callback |
//! | before 5 | 6 | start ephemeral containers |
//! | 5 | 7 | start init containers |
//! | 6 | 9 | start containers |
//!
//! A sync may be cancelled between any two steps; never between creating a container and starting it.

use super::request::{
    PodSyncResult, RETRY_AFTER, ReadySandbox, StartContainerError, StartFailure, SyncRequest,
};
use crate::base::{clock, error_chain};
use crate::cri::CriError;
use crate::model::{ContainerId, Pod, PodExt, PodStatus, as_container, is_sidecar, reasons};
use crate::runtime::kuberuntime::KubeGenericRuntimeManager;
use crate::runtime::kuberuntime::actions::{
    ContainerStart, KillPodReason, PodActionInputs, PodActions, SandboxChange, compute_pod_actions,
};
use crate::runtime::kuberuntime::exits::recorded_facts;
use crate::runtime::kuberuntime::kill::StopCause;
use crate::state::events::ObjectRef;
use crate::state::pod_history::{DecisionKind, HistoryEntry};
use k8s_openapi::api::core::v1::Container;
use std::time::Duration;

/// The number of pods that start concurrently is limited to that of heavy CRI calls: with more, every pod would become
/// ready later. A start that takes longer than this releases its permit and continues, so that no pod waits for one that
/// hangs or pulls an image.
pub(in crate::runtime::kuberuntime) const PERMIT_HOLD: Duration = Duration::from_secs(2);

impl KubeGenericRuntimeManager {
    /// Gathers the inputs of [`compute_pod_actions`] and calls it.
    pub fn compute_pod_actions(&self, pod: &Pod, status: &PodStatus) -> PodActions {
        let uid = pod.uid();
        let actuated = self.allocations.actuated(&uid);
        let facts = self.state_store.read(&uid, |record| recorded_facts(record, actuated));
        let probe_results = |id: &_| self.results.get(id);
        compute_pod_actions(&PodActionInputs {
            pod,
            status,
            probe_results: &probe_results,
            facts: &facts,
        })
    }

    /// Makes the runtime match the pod (upstream's `SyncPod`). Failures are in the result.
    pub async fn sync_pod(&self, request: SyncRequest<'_>) -> PodSyncResult {
        let mut result = PodSyncResult::default();
        let saved = request.cancel.run_until_cancelled(self.allocations.save_resizes());
        if saved.await.is_none() {
            result.cancelled = true;
            return result;
        }
        self.exits.record_final_exits(request.pod, &request.status);
        let actions = self.compute_pod_actions(request.pod, &request.status);
        if actions.kill_pod.is_none() && actions.reset.is_none() {
            let kills = actions.containers_to_kill.iter();
            let is_to_stop = |id: &str| kills.clone().any(|kill| kill.id.as_str() == id);
            let stops = &self.killer.stops;
            stops.forget_except(&request.pod.uid(), is_to_stop);
        }
        self.forget_kills(&request, &actions);
        if actions.is_empty() {
            Box::pin(self.starter.post_start.resume(&request, &actions, &mut result)).await;
            return result;
        }
        tracing::debug!(pod = %request.pod.log_name(), ?actions, "Syncing a pod");
        self.carry_out(request, &actions, result).await
    }

    /// Removes records of kills that no longer matter.
    fn forget_kills(&self, request: &SyncRequest<'_>, actions: &PodActions) {
        // Called for recorded kills only, of which there are seldom any.
        let is_being_killed = |id: &ContainerId| {
            let killed = actions.killed_to_restart(request.pod, &request.status);
            killed.iter().any(|killed| killed.id == *id) || self.killer.stops.is_stopping(id)
        };
        let uid = request.pod.uid();
        self.exits.forget_kills(&uid, &request.status, is_being_killed);
    }

    /// Records the containers that are about to be killed in order to be restarted. False if the sync is cancelled.
    async fn record_kills(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) -> bool {
        let uid = request.pod.uid();
        let killed = actions.killed_to_restart(request.pod, &request.status);
        let recording = self.exits.record_kills(&uid, &killed);
        let recorded = request.cancel.run_until_cancelled(recording).await;
        result.cancelled |= recorded.is_none();
        recorded.is_some()
    }

    async fn carry_out(
        &self,
        request: SyncRequest<'_>,
        actions: &PodActions,
        mut result: PodSyncResult,
    ) -> PodSyncResult {
        if let Some(reset) = &actions.reset {
            self.record_history(
                request.pod,
                HistoryEntry::about_pod(DecisionKind::RestartAll, reset.to_string()),
            );
            self.set_current_step(request.pod, "removing all containers".into());
            Box::pin(self.restart_all.reset(&request, reset, &mut result)).await;
            return result;
        }
        if let Err(error) = Box::pin(self.kill_unwanted(&request, actions, &mut result)).await {
            // If replacing the sandbox is in back-off, a wait with the end of the delay is recorded already.
            if result.next_sync_at.is_none() {
                let text = error_chain(error.as_ref());
                self.record_history(request.pod, HistoryEntry::about_pod(DecisionKind::Fail, text));
            }
            result.error = Some(error);
            return result;
        }
        if !result.cancelled {
            self.starter.post_start.resume(&request, actions, &mut result).await;
        }
        if actions.resizes() && !result.cancelled {
            result.changed_runtime = true;
            let resized = self.resizer.resize(&request, actions);
            result.resize_error = Box::pin(resized).await.err();
        }
        if result.cancelled || (!actions.starts_something() && !actions.create_sandbox) {
            return result;
        }
        if self.restart_all.waits_after_reset(&request, actions, &mut result) {
            if let Some(failure) = result.failures.last() {
                let text = format!("restarting all containers: {}", failure.reason);
                let entry = HistoryEntry::about(DecisionKind::Wait, &failure.container, text);
                let left = failure.retry_in.unwrap_or_default();
                self.record_history(request.pod, entry.until(clock::timestamp() + left));
            }
            return result;
        }
        let Some(permit) = request.cancel.run_until_cancelled(self.start_permits.acquire()).await
        else {
            result.cancelled = true;
            return result;
        };
        let starting = Box::pin(self.start(&request, actions, &mut result));
        permit.run(starting).await;
        result
    }

    /// Creates the sandbox if needed, then starts containers.
    async fn start(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) {
        let sandbox = Box::pin(self.ensure_sandbox(request, actions, result)).await;
        if let Some(sandbox) = sandbox {
            Box::pin(self.start_all(request, actions, &sandbox, result)).await;
        }
        if actions.create_sandbox && !result.is_clean() {
            self.metrics.user_namespaced_pod_failed(request.pod);
        }
    }

    /// Kills the pod (step 2), or else containers of it.
    async fn kill_unwanted(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) -> anyhow::Result<()> {
        let (pod, status) = (request.pod, &request.status);
        if let Some(reason) = &actions.kill_pod {
            if let KillPodReason::SandboxReplaced(change) = reason
                && *change != SandboxChange::NoSandbox
            {
                let now = clock::instant();
                if let Some(left) = self.sandboxes.back_off.remaining(&pod.uid(), *change, now) {
                    result.retry_after(left);
                    let entry = HistoryEntry::about_pod(DecisionKind::Wait, change.to_string());
                    self.record_history(pod, entry.until(clock::timestamp() + left));
                    anyhow::bail!(
                        "back-off {} s recreating the pod sandbox: {change}",
                        left.as_secs()
                    );
                }
                // As upstream, which emits the event only if it has the id of the old sandbox.
                if actions.sandbox.is_some() {
                    let text = format!(
                        "Pod sandbox changed, it will be killed and re-created. ({change})"
                    );
                    let object = ObjectRef::pod(pod);
                    self.events.normal(&object, reasons::event::SANDBOX_CHANGED, text);
                }
            }
            result.changed_runtime = true;
            let first_sandbox = KillPodReason::SandboxReplaced(SandboxChange::NoSandbox);
            if *reason != first_sandbox {
                let text = reason.to_string();
                self.record_history(pod, HistoryEntry::about_pod(DecisionKind::StopPod, text));
                self.set_current_step(pod, "stopping the pod".into());
            }
            if !self.record_kills(request, actions, result).await {
                return Ok(());
            }
            let killing = Box::pin(self.killer.kill_desired_pod(pod, status));
            // The stops run in tasks of their own. If the pod is deleted, its termination joins them.
            let Some(killed) = request.cancel.run_until_cancelled(killing).await else {
                result.cancelled = true;
                return Ok(());
            };
            killed?;
            if actions.create_sandbox {
                let purged = self.gc.purge_init_containers(pod, status);
                let purged = request.cancel.run_until_cancelled(purged).await;
                result.cancelled = purged.is_none();
            }
            return Ok(());
        }
        self.kill_containers(request, actions, result).await
    }

    /// Step 3.
    async fn kill_containers(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) -> anyhow::Result<()> {
        let (pod, status) = (request.pod, &request.status);
        if !self.record_kills(request, actions, result).await {
            return Ok(());
        }
        for kill in &actions.containers_to_kill {
            result.changed_runtime = true;
            let stop = DecisionKind::StopContainer;
            self.record_history(
                pod,
                HistoryEntry::about(stop, &kill.name, kill.reason.to_string()),
            );
            self.set_current_step(pod, format!("stopping {}", kill.name));
            let cause = StopCause::Actions(kill.clone());
            let killing =
                Box::pin(self.killer.kill_container(pod, status, &kill.name, &kill.id, cause));
            let Some(killed) = request.cancel.run_until_cancelled(killing).await else {
                result.cancelled = true;
                return Ok(());
            };
            killed?;
        }
        Ok(())
    }

    /// Step 4. `None` ends the sync; the result says why.
    async fn ensure_sandbox(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) -> Option<ReadySandbox> {
        if request.cancel.is_cancelled() {
            result.cancelled = true;
            return None;
        }
        if !actions.create_sandbox {
            return self.sandboxes.existing(request, actions, result).await;
        }
        result.changed_runtime = true;
        let pod = request.pod;
        if let Some(change) = actions.sandbox_change {
            let text = change.to_string();
            self.record_history(pod, HistoryEntry::about_pod(DecisionKind::CreateSandbox, text));
        }
        self.set_current_step(pod, "creating the sandbox".into());
        self.metrics.pod_start_attempted(pod);
        match self.sandboxes.create(request, actions).await {
            Ok(sandbox) => Some(sandbox),
            Err(error) => {
                self.metrics.pod_errors.inc();
                let text = error_chain(error.as_ref());
                self.record_history(pod, HistoryEntry::about_pod(DecisionKind::Fail, text));
                if error.downcast_ref::<CriError>().is_some_and(CriError::may_have_created) {
                    result.retry_after(RETRY_AFTER);
                }
                result.error = Some(error);
                None
            }
        }
    }

    /// Starts ephemeral containers, then init containers (step 5) and the others (step 6).
    async fn start_all(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        sandbox: &ReadySandbox,
        result: &mut PodSyncResult,
    ) {
        let pod = request.pod;
        if !actions.create_sandbox {
            self.sandboxes.images.prefetch(request, actions, &sandbox.config);
        }
        let pruned = self.gc.prune_init_containers(pod, &request.status);
        if request.cancel.run_until_cancelled(pruned).await.is_none() {
            result.cancelled = true;
            return;
        }
        for start in &actions.ephemeral_containers_to_start {
            let Some(ephemeral) = pod.ephemeral_containers().get(start.index) else {
                continue;
            };
            let container = as_container(ephemeral);
            self.start_one(request, sandbox, start, &container, result).await;
            if result.cancelled {
                return;
            }
        }
        for start in &actions.init_containers_to_start {
            let Some(container) = pod.init_containers().get(start.index) else {
                continue;
            };
            let started = self.start_one(request, sandbox, start, container, result).await;
            // A plain init container that cannot start ends the sync; a sidecar is skipped.
            if result.cancelled || (!started && !is_sidecar(container)) {
                return;
            }
        }
        if !actions.containers_to_start.is_empty() && !pod.init_containers().is_empty() {
            let id = sandbox.id.to_string();
            self.state_store.update(&pod.uid(), |record| record.initialized_in = Some(id));
        }
        for start in &actions.containers_to_start {
            let Some(container) = pod.containers().get(start.index) else {
                continue;
            };
            self.start_one(request, sandbox, start, container, result).await;
            if result.cancelled {
                return;
            }
        }
    }

    /// Starts one container and adds its outcome to `result`; true if it was started and its postStart hook succeeded.
    async fn start_one(
        &self,
        request: &SyncRequest<'_>,
        sandbox: &ReadySandbox,
        start: &ContainerStart,
        container: &Container,
        result: &mut PodSyncResult,
    ) -> bool {
        if request.cancel.is_cancelled() {
            result.cancelled = true;
            return false;
        }
        tracing::debug!(containerName = start.name, reason = ?start.reason, "Starting a container");
        match Box::pin(self.starter.start(request, sandbox, container)).await {
            Ok(()) => {
                result.changed_runtime = true;
                self.metrics.record_container_start(request.pod, container, None);
                let (kind, text) = (DecisionKind::StartContainer, start.reason.to_string());
                self.record_history(request.pod, HistoryEntry::about(kind, &start.name, text));
                result.started.push(start.name.clone());
                true
            }
            Err(StartContainerError::Cancelled) => {
                result.cancelled = true;
                false
            }
            Err(StartContainerError::Failed(failure)) => {
                result.changed_runtime |= failure.reason != reasons::CRASH_LOOP_BACK_OFF;
                self.record_failure(request.pod, start, &failure);
                self.metrics.record_container_start(request.pod, container, Some(&failure));
                result.add_failure(failure);
                false
            }
        }
    }

    fn record_history(&self, pod: &Pod, history_entry: HistoryEntry<'_>) {
        self.pod_history.record(&pod.uid(), history_entry);
    }

    /// Records the current step of the sync, which `kubelet explain` shows.
    pub(super) fn set_current_step(&self, pod: &Pod, step: String) {
        self.pod_history.set_current_step(&pod.uid(), Some(step));
    }

    fn record_failure(&self, pod: &Pod, start: &ContainerStart, failure: &StartFailure) {
        let (reason, name) = (failure.reason, start.name.as_str());
        let text = match reason {
            // Without the delay, which grows with each restart: equal entries are counted together, and `until` has the
            // end of the delay.
            reasons::CRASH_LOOP_BACK_OFF => format!("{}, {reason}", start.reason),
            reason => format!("{reason}: {}", failure.message),
        };
        let history_entry = match failure.retry_in {
            Some(left) => {
                HistoryEntry::about(DecisionKind::Wait, name, text).until(clock::timestamp() + left)
            }
            None => HistoryEntry::about(DecisionKind::Fail, name, text),
        };
        self.record_history(pod, history_entry);
    }
}
