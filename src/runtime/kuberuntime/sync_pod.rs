//! The six steps that make the runtime match a pod: compute changes; kill the pod if its sandbox
//! changed; kill containers that should not run; create the sandbox; start init containers; start
//! containers.
//!
//! Between any two steps the turn may be cancelled; never between creating a container and starting
//! it.

use super::{
    KubeGenericRuntimeManager,
    actions::{
        ContainerStart, Facts, Inputs, KillPodReason, PodActions, SandboxChange,
        compute_pod_actions, needed_soon,
    },
    exits::codes,
    kill::{Scope, Why},
    report::{StartFailure, SyncReport},
    sandbox::{RETRY_AFTER, Sandbox, may_exist},
};
use crate::{
    base::chain,
    cri::{CriError, v1::PodSandboxConfig},
    images::{PullPolicy, WantedImage},
    model::{ContainerState, GraceDeadline, Pod, PodExt, PodStatus, is_sidecar, reasons},
    state::events::ObjectRef,
    state::pod_history::{Action, HistoryEntry},
    volumes::VolumePaths,
};
use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Pods that are being started at once. More than the runtime takes calls at once; the others wait
/// before they need memory for requests.
pub(super) const STARTING: usize = 32;

/// A pod that takes longer gives its place to another one and goes on beside it: none waits for one
/// that hangs or pulls.
const PERMIT_HOLD: Duration = Duration::from_secs(2);

/// What a turn needs.
pub struct SyncRequest<'a> {
    /// The pod as desired.
    pub pod: &'a Arc<Pod>,
    /// The pod as the runtime has it; settled.
    pub status: Arc<PodStatus>,
    /// Where the pod's volumes are on the host.
    pub volumes: &'a VolumePaths,
    /// Fires when the pod is to be looked at anew.
    pub cancel: &'a CancellationToken,
}

impl KubeGenericRuntimeManager {
    /// What a pod needs now.
    pub fn compute(&self, pod: &Pod, status: &PodStatus) -> PodActions {
        let uid = pod.uid();
        let facts = self.state_store.read(&uid, |record| Facts {
            initialized_in: record.initialized_sandbox(),
            terminal: record.terminal.is_some(),
            resetting: record.resetting(),
            exits: codes(record),
        });
        let probe_results = |id: &_| self.results.get(id);
        compute_pod_actions(&Inputs {
            pod,
            status,
            probe_results: &probe_results,
            facts: &facts,
        })
    }

    /// Makes the runtime match the pod. Never fails as a whole: the report says what could not be
    /// done.
    pub async fn sync_pod(&self, request: SyncRequest<'_>) -> SyncReport {
        let mut report = SyncReport::default();
        self.note_ends(request.pod, &request.status);
        let actions = self.compute(request.pod, &request.status);
        if actions.is_empty() {
            self.stops.cancelled(&request.pod.uid());
            Box::pin(self.resume_hooks(&request, &actions, &mut report)).await;
            return report;
        }
        tracing::debug!(pod = %request.pod.full_name(), ?actions, "Syncing a pod");
        if let Some(reset) = &actions.reset {
            self.decide(
                request.pod,
                HistoryEntry::about_pod(Action::RestartAll, reset.to_string()),
            );
            self.doing(request.pod, "removing all containers".into());
            Box::pin(self.reset(&request, reset, &mut report)).await;
            return report;
        }
        if let Err(error) = Box::pin(self.kill_unwanted(&request, &actions, &mut report)).await {
            if report.again.is_none() {
                let why = chain(error.as_ref());
                self.decide(request.pod, HistoryEntry::about_pod(Action::Fail, why));
            }
            report.error = Some(error);
            return report;
        }
        if !report.cancelled {
            self.resume_hooks(&request, &actions, &mut report).await;
        }
        if report.cancelled || (!actions.starts_something() && !actions.create_sandbox) {
            return report;
        }
        if self.waits_after_reset(&request, &actions, &mut report) {
            if let Some(failure) = report.failures.last() {
                let why = format!("all containers start over, {}", failure.reason);
                let held = HistoryEntry::about(Action::Hold, &failure.container, why);
                let left = failure.retry_in.unwrap_or_default();
                self.decide(request.pod, held.until(Timestamp::now() + left));
            }
            return report;
        }
        let place = tokio::select! {
            place = self.starting.acquire() => place.ok(),
            () = request.cancel.cancelled() => {
                report.cancelled = true;
                return report;
            }
        };
        let mut starting = Box::pin(self.start(&request, &actions, &mut report));
        if tokio::time::timeout(PERMIT_HOLD, &mut starting)
            .await
            .is_err()
        {
            drop(place);
            starting.as_mut().await;
        }
        drop(starting);
        report
    }

    /// Steps 4 to 6.
    async fn start(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) {
        let sandbox = Box::pin(self.ensure_sandbox(request, actions, report)).await;
        if let Some(sandbox) = sandbox {
            Box::pin(self.start_all(request, actions, &sandbox, report)).await;
        }
    }

    /// Steps 2 and 3.
    async fn kill_unwanted(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) -> anyhow::Result<()> {
        let (pod, status) = (request.pod, &request.status);
        if let Some(reason) = &actions.kill_pod {
            if let KillPodReason::SandboxReplaced(change) = reason
                && *change != SandboxChange::NoneKnown
            {
                let now = Instant::now();
                if let Some(left) = self.sandbox_back_off.held(&pod.uid(), *change, now) {
                    report.look_again(left);
                    let held = HistoryEntry::about_pod(Action::Hold, change.to_string());
                    self.decide(pod, held.until(Timestamp::now() + left));
                    anyhow::bail!(
                        "the sandbox changed ({change}); its replacement waits {} s",
                        left.as_secs()
                    );
                }
                // As upstream, whose event depends on there being a sandbox to name.
                if actions.sandbox.is_some() {
                    let text = format!(
                        "Pod sandbox changed, it will be killed and re-created. ({change})"
                    );
                    let object = ObjectRef::pod(pod);
                    self.events
                        .normal(&object, reasons::event::SANDBOX_CHANGED, text);
                }
            }
            report.acted = true;
            let nothing_there = KillPodReason::SandboxReplaced(SandboxChange::NoneKnown);
            if *reason != nothing_there {
                let why = reason.to_string();
                self.decide(pod, HistoryEntry::about_pod(Action::StopPod, why));
                self.doing(pod, "stopping the pod".into());
            }
            let uid = pod.uid();
            let grace = GraceDeadline::starting(Instant::now(), pod.termination_grace_seconds());
            let (_keep, grace) = watch::channel(self.stops.begin(&uid, Scope::Pod, grace));
            let killing = Box::pin(self.kill_pod(Some(pod), status, grace));
            // The stop of the whole pod goes on with those of its containers.
            let Some(killed) = request.cancel.run_until_cancelled(killing).await else {
                report.cancelled = true;
                return Ok(());
            };
            killed.context("cannot stop the pod")?;
            self.stops.over(&uid, &Scope::Pod);
            if actions.create_sandbox {
                let purged = self.purge_init_containers(pod, status);
                let purged = request.cancel.run_until_cancelled(purged).await;
                report.cancelled = purged.is_none();
            }
            return Ok(());
        }
        self.kill_containers(request, actions, report).await
    }

    /// Step 3.
    async fn kill_containers(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) -> anyhow::Result<()> {
        let (pod, status) = (request.pod, &request.status);
        for kill in &actions.containers_to_kill {
            report.acted = true;
            let stop = Action::StopContainer;
            self.decide(
                pod,
                HistoryEntry::about(stop, &kill.name, kill.reason.to_string()),
            );
            self.doing(pod, format!("stopping {}", kill.name));
            let why = Why::Plan(kill.clone());
            let killing = Box::pin(self.kill_one(pod, status, &kill.name, &kill.id, why));
            let Some(killed) = request.cancel.run_until_cancelled(killing).await else {
                report.cancelled = true;
                return Ok(());
            };
            killed?;
        }
        Ok(())
    }

    /// Step 4. `None` ends the turn.
    async fn ensure_sandbox(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) -> Option<Sandbox> {
        if request.cancel.is_cancelled() {
            report.cancelled = true;
            return None;
        }
        if !actions.create_sandbox {
            return self.existing_sandbox(request, actions, report).await;
        }
        report.acted = true;
        let pod = request.pod;
        if let Some(change) = actions.sandbox_change {
            let why = change.to_string();
            self.decide(pod, HistoryEntry::about_pod(Action::CreateSandbox, why));
        }
        self.doing(pod, "making the sandbox".into());
        self.metrics.starts_pod(pod);
        match self.create_sandbox(request, actions).await {
            Ok(sandbox) => Some(sandbox),
            Err(error) => {
                self.metrics.failed_pod(pod);
                let why = chain(error.as_ref());
                self.decide(pod, HistoryEntry::about_pod(Action::Fail, why));
                if error.downcast_ref::<CriError>().is_some_and(may_exist) {
                    report.look_again(RETRY_AFTER);
                }
                report.error = Some(error);
                None
            }
        }
    }

    /// Steps 5 and 6.
    async fn start_all(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        sandbox: &Sandbox,
        report: &mut SyncReport,
    ) {
        let pod = request.pod;
        if !actions.create_sandbox {
            self.prefetch(request, actions, &sandbox.config);
        }
        let pruned = self.prune_init_containers(pod, &request.status);
        if request.cancel.run_until_cancelled(pruned).await.is_none() {
            report.cancelled = true;
            return;
        }
        for start in &actions.init_containers_to_start {
            let Some(container) = pod.init_containers().get(start.index) else {
                continue;
            };
            let started = self
                .start_one(request, sandbox, start, container, report)
                .await;
            // A plain init container that cannot start ends the turn; a sidecar is skipped.
            if report.cancelled || (!started && !is_sidecar(container)) {
                return;
            }
        }
        if !actions.containers_to_start.is_empty() && !pod.init_containers().is_empty() {
            let id = sandbox.id.to_string();
            self.state_store
                .update(&pod.uid(), |record| record.initialized_in = Some(id));
        }
        for start in &actions.containers_to_start {
            let Some(container) = pod.containers().get(start.index) else {
                continue;
            };
            self.start_one(request, sandbox, start, container, report)
                .await;
            if report.cancelled {
                return;
            }
        }
    }

    /// Begins to get the images of all containers that are still to come, while the sandbox is made and
    /// they start one after the other (P-08).
    pub(super) fn prefetch(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        sandbox: &PodSandboxConfig,
    ) {
        let soon = needed_soon(request.pod, &request.status, actions);
        if soon.is_empty() {
            return;
        }
        let wanted = soon.into_iter().map(|container| WantedImage {
            object: ObjectRef::container(request.pod, &container.name),
            image: container.image.clone().unwrap_or_default(),
            policy: PullPolicy::of(container.image_pull_policy.as_deref()),
        });
        self.images.prefetch(request.pod, wanted.collect(), sandbox);
    }

    /// Starts one container and reports how that went; true when it runs.
    async fn start_one(
        &self,
        request: &SyncRequest<'_>,
        sandbox: &Sandbox,
        start: &ContainerStart,
        container: &Container,
        report: &mut SyncReport,
    ) -> bool {
        if request.cancel.is_cancelled() {
            report.cancelled = true;
            return false;
        }
        tracing::debug!(container = start.name, reason = ?start.reason, "Starting a container");
        match Box::pin(self.start_container(request, sandbox, container)).await {
            Ok(()) => {
                report.acted = true;
                self.metrics.started_container(request.pod, container, None);
                let (action, why) = (Action::StartContainer, start.reason.to_string());
                self.decide(request.pod, HistoryEntry::about(action, &start.name, why));
                report.started.push(start.name.clone());
                true
            }
            Err(None) => {
                report.cancelled = true;
                false
            }
            Err(Some(failure)) => {
                report.acted |= failure.reason != reasons::CRASH_LOOP_BACK_OFF;
                self.note_failure(request.pod, start, &failure);
                self.metrics
                    .started_container(request.pod, container, Some(&failure));
                report.fail(failure);
                false
            }
        }
    }

    /// Hooks that an earlier kubelet began and was not seen to finish are run again (P-09: at least
    /// once, whatever happens in between).
    async fn resume_hooks(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) {
        if actions.kill_pod.is_some() {
            return;
        }
        let pod = request.pod;
        let pending = self
            .state_store
            .read(&pod.uid(), |r| r.post_start_pending.clone());
        for id in pending {
            let id = id.as_str().into();
            if actions.containers_to_kill.iter().any(|kill| kill.id == id) {
                continue;
            }
            let Some(status) = request.status.container(&id) else {
                continue;
            };
            let Some(container) = pod.container(&status.name) else {
                continue;
            };
            if status.state != ContainerState::Running {
                continue;
            }
            report.acted = true;
            match self.run_post_start(request, container, &id).await {
                Ok(()) => report.started.push(container.name.clone()),
                Err(None) => {
                    report.cancelled = true;
                    return;
                }
                Err(Some(failure)) => report.fail(failure),
            }
        }
    }
}

/// What is said on the board of decisions.
impl KubeGenericRuntimeManager {
    fn decide(&self, pod: &Pod, history_entry: HistoryEntry<'_>) {
        self.pod_history.note(&pod.uid(), history_entry);
    }

    /// The step that a turn is at.
    pub(super) fn doing(&self, pod: &Pod, step: String) {
        self.pod_history.doing(&pod.uid(), Some(step));
    }

    fn note_failure(&self, pod: &Pod, start: &ContainerStart, failure: &StartFailure) {
        let (reason, name) = (failure.reason, start.name.as_str());
        let why = match reason {
            // How long it is changes from time to time, and `until` says it better.
            reasons::CRASH_LOOP_BACK_OFF => format!("{}, {reason}", start.reason),
            reason => format!("{reason}: {}", failure.message),
        };
        let history_entry = match failure.retry_in {
            Some(left) => {
                HistoryEntry::about(Action::Hold, name, why).until(Timestamp::now() + left)
            }
            None => HistoryEntry::about(Action::Fail, name, why),
        };
        self.decide(pod, history_entry);
    }
}

/// Ends a turn for one container: `None` when it was cancelled.
pub(super) type Stopped = Option<StartFailure>;
