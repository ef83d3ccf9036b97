//! Carries out `RestartAllContainers`: everything of the pod but its sandbox, its volumes and its logs
//! goes, and the next turn starts it from its first init container.
//!
//! What goes is written down first, with the exit that was the reason, so that a kubelet that is
//! killed in the middle goes on, and so that the pod's back-off counts from that exit.

use super::{
    KubeGenericRuntimeManager,
    actions::{ContainerReset, PodActions, Reset, Trigger},
    container::{back_off_event, back_off_text},
    kill::Why,
    report::{StartFailure, SyncReport},
    restart_back_off::Admission,
    sync_pod::SyncRequest,
};
use crate::{
    model::{Pod, PodExt},
    state::pod_state_store::RestartAll,
};
use futures::future::join_all;
use jiff::Timestamp;
use std::time::Duration;

/// How far a pod is with starting over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartAllStage {
    /// It is not.
    #[default]
    None,
    /// Its containers are being removed.
    Removing,
    /// They have been removed, and none was started since.
    Removed,
}

impl KubeGenericRuntimeManager {
    /// How far the pod is with restarting all of its containers.
    pub(super) fn restart_all_stage(&self, pod: &Pod, actions: &PodActions) -> RestartAllStage {
        if actions.reset.is_some() {
            return RestartAllStage::Removing;
        }
        match self
            .state_store
            .read(&pod.uid(), |r| r.restart_all.is_some())
        {
            true => RestartAllStage::Removed,
            false => RestartAllStage::None,
        }
    }

    /// Stops and removes what the plan lists, group after group.
    pub(super) async fn reset(
        &self,
        request: &SyncRequest<'_>,
        reset: &Reset,
        report: &mut SyncReport,
    ) {
        report.acted = true;
        if let Some(trigger) = &reset.trigger {
            self.record_reset(request.pod, reset, trigger).await;
        }
        for group in &reset.groups {
            let removals = group.iter().map(|one| self.reset_one(request, one));
            let removed = Box::pin(join_all(removals));
            let Some(removed) = request.cancel.run_until_cancelled(removed).await else {
                report.cancelled = true;
                return;
            };
            if let Some(error) = removed.into_iter().find_map(Result::err) {
                report.error = Some(error);
                return;
            }
        }
        report.look_again(Duration::ZERO);
    }

    async fn record_reset(&self, pod: &Pod, reset: &Reset, trigger: &Trigger) {
        tracing::info!(
            pod = %pod.full_name(),
            container = trigger.name,
            exit_code = trigger.exit_code,
            "Restarting all containers of a pod"
        );
        let instances = reset.groups.iter().flatten();
        let restart = RestartAll {
            container: trigger.name.clone(),
            finished_at: timestamp(trigger.finished_at),
            instances: instances.map(|one| one.id.to_string()).collect(),
        };
        let record = |record: &mut crate::state::pod_state_store::PodRecord| {
            record.restart_all = Some(restart);
            record.initialized_in = None;
            record.exits.clear();
        };
        self.state_store.record(&pod.uid(), record).await;
    }

    async fn reset_one(
        &self,
        request: &SyncRequest<'_>,
        one: &ContainerReset,
    ) -> anyhow::Result<()> {
        let (pod, status) = (request.pod, &request.status);
        if one.stop {
            let why = Why::RestartAll;
            self.kill_one(pod, status, &one.name, &one.id, why).await?;
        }
        self.remove_reset_container(status, &one.id, one.newest)
            .await
    }

    /// Whether a pod whose containers have all been removed still has to wait, by the back-off of the
    /// container whose exit was the reason. A pod that may start takes the next step.
    pub(super) fn waits_after_reset(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        report: &mut SyncReport,
    ) -> bool {
        let pod = request.pod;
        let read = |r: &crate::state::pod_state_store::PodRecord| r.restart_all.clone();
        let Some(restart) = self.state_store.read(&pod.uid(), read) else {
            return false;
        };
        let container = pod.container(&restart.container);
        if let (Some(container), false) = (container, actions.create_sandbox) {
            let (ended, now) = (restart.finished_at, Timestamp::now());
            let admission = self.back_off.admit_after(pod, container, ended, now);
            if let Admission::Wait { delay, left } = admission {
                back_off_event(&self.events, pod, container);
                let text = back_off_text(pod, &container.name, delay);
                report.fail(StartFailure::crash_loop(&container.name, text, left));
                return true;
            }
        }
        self.state_store
            .update(&pod.uid(), |r| r.restart_all = None);
        false
    }
}

fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH)
}
