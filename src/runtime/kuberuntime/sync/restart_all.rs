//! Carries out `RestartAllContainers`: removes everything of the pod but its sandbox, its volumes and the log of
//! each container's newest instance; the next sync starts it from its first init container.
//!
//! What is to be removed is recorded first, with the exit that was the reason, so that a kubelet that is
//! killed in the middle resumes, and so that the pod's back-off counts from that exit.

use super::request::{PodSyncResult, StartFailure, SyncRequest};
use crate::base::clock;
use crate::model::{Pod, PodExt};
use crate::runtime::kuberuntime::actions::{
    ContainerToReset, ContainersReset, PodActions, RestartAllTrigger,
};
use crate::runtime::kuberuntime::gc::ContainerGc;
use crate::runtime::kuberuntime::kill::{PodKiller, StopCause};
use crate::runtime::kuberuntime::restart_back_off::{
    BackOffDecision, RestartBackOff, back_off_event, back_off_text, timestamp,
};
use crate::state::events::EventRecorder;
use crate::state::pod_state_store::{Exits, PodRecord, PodStateStore, RestartAll};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// Progress of a `RestartAllContainers` action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartAllStage {
    /// No such action is in progress.
    #[default]
    None,
    /// Its containers are being removed.
    Removing,
    /// They have been removed, and none was started since.
    Removed,
}

/// Restarts all containers of a pod at once.
pub(in crate::runtime::kuberuntime) struct AllContainersRestarter {
    pub(in crate::runtime::kuberuntime) events: EventRecorder,
    pub(in crate::runtime::kuberuntime) state_store: PodStateStore,
    pub(in crate::runtime::kuberuntime) killer: PodKiller,
    pub(in crate::runtime::kuberuntime) gc: Arc<ContainerGc>,
    pub(in crate::runtime::kuberuntime) back_off: Arc<RestartBackOff>,
}

impl AllContainersRestarter {
    /// The progress of the pod's `RestartAllContainers` action.
    pub(in crate::runtime::kuberuntime) fn stage(
        &self,
        pod: &Pod,
        actions: &PodActions,
    ) -> RestartAllStage {
        if actions.reset.is_some() {
            return RestartAllStage::Removing;
        }
        let removed = |record: &PodRecord| record.restart_all.is_some();
        if self.state_store.read(&pod.uid(), removed) {
            RestartAllStage::Removed
        } else {
            RestartAllStage::None
        }
    }

    /// Stops and removes what `reset` lists, group after group.
    pub(super) async fn reset(
        &self,
        request: &SyncRequest<'_>,
        reset: &ContainersReset,
        result: &mut PodSyncResult,
    ) {
        result.changed_runtime = true;
        if let Some(trigger) = &reset.trigger {
            self.record_reset(request.pod, reset, trigger).await;
        }
        for group in &reset.groups {
            let removals = group.iter().map(|one| self.reset_one(request, one));
            let removed = Box::pin(join_all(removals));
            let Some(removed) = request.cancel.run_until_cancelled(removed).await else {
                result.cancelled = true;
                return;
            };
            if let Some(error) = removed.into_iter().find_map(Result::err) {
                result.error = Some(error);
                return;
            }
        }
        result.retry_after(Duration::ZERO);
    }

    async fn record_reset(&self, pod: &Pod, reset: &ContainersReset, trigger: &RestartAllTrigger) {
        tracing::info!(
            pod = %pod.log_name(),
            containerName = trigger.name,
            exitCode = trigger.exit_code,
            "Restarting all containers of a pod"
        );
        let instances = reset.groups.iter().flatten();
        let restart = RestartAll {
            container: trigger.name.clone(),
            finished_at: timestamp(trigger.finished_at),
            instances: instances.map(|one| one.id.to_string()).collect(),
        };
        let record = |record: &mut PodRecord| {
            record.restart_all = Some(restart);
            record.initialized_in = None;
            record.exits = Exits::default();
            record.killed_to_restart.clear();
        };
        self.state_store.update_and_wait(&pod.uid(), record).await;
    }

    async fn reset_one(
        &self,
        request: &SyncRequest<'_>,
        one: &ContainerToReset,
    ) -> anyhow::Result<()> {
        let (pod, status) = (request.pod, &request.status);
        if one.stop {
            let why = StopCause::RestartAll;
            let stopped = self.killer.kill_container(pod, status, &one.name, &one.id, why);
            stopped.await?;
        }
        self.gc.remove_reset_container(status, &one.id, one.newest).await
    }

    /// Whether a pod whose containers have all been removed is in the back-off of the container whose exit was the
    /// trigger. If not, advances that back-off.
    pub(super) fn waits_after_reset(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) -> bool {
        let pod = request.pod;
        let read = |r: &PodRecord| r.restart_all.clone();
        let Some(restart) = self.state_store.read(&pod.uid(), read) else {
            return false;
        };
        let container = pod.container(&restart.container);
        if let (Some(container), false) = (container, actions.create_sandbox) {
            let (ended, now) = (restart.finished_at, clock::timestamp());
            let decision = self.back_off.try_start_after(pod, container, ended, now);
            if let BackOffDecision::Wait { delay, left } = decision {
                back_off_event(&self.events, pod, container);
                let text = back_off_text(pod, &container.name, delay);
                result.add_failure(StartFailure::crash_loop(&container.name, text, left));
                return true;
            }
        }
        self.state_store.update(&pod.uid(), |r| r.restart_all = None);
        false
    }
}
