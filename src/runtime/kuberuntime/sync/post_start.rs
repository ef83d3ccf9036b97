//! postStart hooks: run after a container was started, or in a later sync if the outcome of StartContainer was unknown
//! or the kubelet restarted before the hook ended.

use super::request::{PodSyncResult, StartContainerError, StartFailure, SyncRequest};
use crate::base::error_chain;
use crate::model::reasons::event;
use crate::model::{ContainerId, ContainerState, NodeFacts, Pod, PodExt, reasons};
use crate::runtime::handlers::{HookTarget, Hooks, hook_address};
use crate::runtime::kuberuntime::actions::PodActions;
use crate::runtime::kuberuntime::kill::{PodKiller, StopCause};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::PodCache;
use crate::state::pod_history::PodHistory;
use crate::state::pod_state_store::{PodRecord, PodStateStore};
use k8s_openapi::api::core::v1::Container;
use std::sync::Arc;

/// Runs postStart hooks; cheap to clone.
#[derive(Clone)]
pub(in crate::runtime::kuberuntime) struct PostStart {
    pub(in crate::runtime::kuberuntime) hooks: Hooks,
    pub(in crate::runtime::kuberuntime) killer: PodKiller,
    pub(in crate::runtime::kuberuntime) cache: PodCache,
    pub(in crate::runtime::kuberuntime) events: EventRecorder,
    pub(in crate::runtime::kuberuntime) pod_history: PodHistory,
    pub(in crate::runtime::kuberuntime) state_store: PodStateStore,
    pub(in crate::runtime::kuberuntime) node: Arc<NodeFacts>,
}

impl PostStart {
    /// Records that the postStart hook of a created container has to run, if it has one.
    pub(super) async fn record_pending(&self, pod: &Pod, container: &Container, id: &ContainerId) {
        let lifecycle = container.lifecycle.as_ref();
        if lifecycle.is_some_and(|l| l.post_start.is_some()) {
            let pending = id.to_string();
            self.state_store
                .update_and_wait(&pod.uid(), |r| r.post_start_pending.push(pending))
                .await;
        }
    }

    /// Runs the hooks of running containers that are not recorded as ended (at least once): those of a start with an
    /// unknown outcome, or of an earlier kubelet.
    pub(super) async fn resume(
        &self,
        request: &SyncRequest<'_>,
        actions: &PodActions,
        result: &mut PodSyncResult,
    ) {
        if actions.kill_pod.is_some() {
            return;
        }
        let pod = request.pod;
        let pending = self.state_store.read(&pod.uid(), |r| r.post_start_pending.clone());
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
            result.changed_runtime = true;
            match self.run(request, container, &id).await {
                Ok(()) => result.started.push(container.name.clone()),
                Err(StartContainerError::Cancelled) => {
                    result.cancelled = true;
                    return;
                }
                Err(StartContainerError::Failed(failure)) => result.add_failure(failure),
            }
        }
    }

    /// Runs the postStart hook of a container that has just started, if it has one. A failure kills the
    /// container.
    pub(super) async fn run(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        id: &ContainerId,
    ) -> Result<(), StartContainerError> {
        let pod = request.pod;
        let handler = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
        let Some(handler) = handler else {
            return Ok(());
        };
        let step = format!("running the postStart hook of {}", container.name);
        self.pod_history.set_current_step(&pod.uid(), Some(step));
        // From the latest status, because the sandbox may have been created or replaced since the sync began.
        let ip = hook_address(&self.node, Some(pod), &self.cache.latest(&pod.uid()));
        let object = ObjectRef::container(pod, &container.name);
        let target = HookTarget {
            pod: &object,
            container: &container.name,
            container_id: id,
            pod_ip: ip.as_deref(),
            ports: container.ports.as_deref().unwrap_or_default(),
        };
        let running = self.hooks.run_post_start(handler, &target);
        let result = tokio::select! {
            result = running => result,
            () = request.cancel.cancelled() => return Err(StartContainerError::Cancelled),
        };
        let Err(error) = result else {
            self.record_ended(pod, id).await;
            return Ok(());
        };
        tracing::warn!(
            pod = %pod.log_name(),
            podUID = %pod.uid(),
            containerName = container.name,
            containerID = %id,
            err = %error,
            "PostStart hook failed"
        );
        self.events.warning(
            &object,
            event::FAILED_POST_START_HOOK,
            format!("PostStartHook failed: {}", error.cause()),
        );
        let status = self.cache.latest(&pod.uid());
        let why = StopCause::FailedPostStartHook;
        let killing = Box::pin(self.killer.kill_container(pod, &status, &container.name, id, why));
        // If the sync is cancelled, the stop continues, and a termination of the pod joins it.
        let killed = request.cancel.run_until_cancelled(killing).await;
        // Not before the stop: a kubelet that is killed in between runs the hook again, instead of leaving the container.
        self.record_ended(pod, id).await;
        if let Err(error) = killed.ok_or(StartContainerError::Cancelled)? {
            tracing::warn!(
                pod = %pod.log_name(),
                containerName = container.name,
                err = %error_chain(error.as_ref()),
                "Failed to kill container"
            );
        }
        let reason = reasons::POST_START_HOOK_ERROR;
        Err(StartFailure::new(&container.name, reason, error.to_string()).into())
    }

    /// Records that the hook has ended; from then on the container is shown and probed. The record is on disk before that:
    /// the hook of a container that was shown does not run again after a kill of the kubelet.
    pub(super) async fn record_ended(&self, pod: &Pod, id: &ContainerId) {
        let (uid, ended) = (pod.uid(), id.clone());
        let record = move |record: &mut PodRecord| {
            let pending = &mut record.post_start_pending;
            pending.retain(|known| known != ended.as_str());
        };
        self.state_store.write_and_update(&uid, record).await;
        self.cache.mark_changed(uid);
    }
}
