//! Starting one container: back-off, image, configuration, create, start, postStart.

use super::{
    KubeGenericRuntimeManager,
    generate::{ContainerRequest, security_context::ImageUser},
    image_volumes::image_failure,
    kill::Why,
    report::StartFailure,
    restart_back_off::Admission,
    sandbox::{RETRY_AFTER, Sandbox, may_exist},
    sync_pod::{Stopped, SyncRequest},
};
use crate::{
    base::GoDuration,
    cri::{
        CriError,
        v1::{ContainerConfig, ContainerFilter},
    },
    images::{ImageRequest, PullPolicy, ReadyImage},
    model::{
        ContainerId, ContainerState, ContainerStatus, Pod, PodExt, keys, reasons, reasons::event,
    },
    runtime::handlers::HookTarget,
    state::events::{EventRecorder, ObjectRef},
    state::pod_cache::{ItemId, Owner},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use std::borrow::Cow;

impl KubeGenericRuntimeManager {
    /// Starts a container in a sandbox. `Err(None)` when the turn was cancelled.
    pub(super) async fn start_container(
        &self,
        request: &SyncRequest<'_>,
        sandbox: &Sandbox,
        container: &Container,
    ) -> Result<(), Stopped> {
        let pod = request.pod;
        self.check_back_off(request, container)?;
        let name = &container.name;
        let wanted = container.image.as_deref().unwrap_or_default();
        self.doing(pod, format!("getting image {wanted} for {name}"));
        let images = Box::pin(self.ensure_image_volumes(request, container, sandbox)).await?;
        let image = Box::pin(self.ensure_image(request, container, sandbox)).await?;
        let newest = self.newest(pod, &request.status, name);
        let logs = (!sandbox.fresh_logs).then_some(pod.as_ref());
        let restart_count = self.next_restart_count(logs, name, newest.as_deref()).await;
        let others = request.status.instances(name).map(|c| c.restart_count);
        let build = ContainerRequest {
            pod,
            container,
            restart_count,
            others: &others.collect::<Vec<_>>(),
            image_ref: &image.reference,
            image_user: &ImageUser::of(&image),
            pod_ips: &sandbox.ips,
            volumes: request.volumes,
            images: &images,
            cancel: request.cancel,
        };
        let object = ObjectRef::container(pod, &container.name);
        let config = Box::pin(self.builder.container(build)).await;
        if request.cancel.is_cancelled() {
            return Err(None);
        }
        let config = config.map_err(|error| {
            let text = format!("Error: {}", crate::base::chain(error.as_ref()));
            self.events.warning(&object, event::FAILED, text);
            let message = crate::base::chain(error.as_ref());
            failure(container, reasons::CREATE_CONTAINER_CONFIG_ERROR, message)
        })?;
        self.doing(pod, format!("creating and starting {name}"));
        let removal = Box::pin(self.remove_never_started(request, container));
        let removed = request.cancel.run_until_cancelled(removal).await;
        removed.ok_or(None)??;
        let id = Box::pin(self.create_and_start(pod, sandbox, container, config)).await?;
        Box::pin(self.run_post_start(request, container, &id)).await
    }

    /// The restart count of the next instance. One that never started is made again under its count. The
    /// runtime may have forgotten instances, so no count is used whose log there is already; `logs` is whose
    /// logs may be there.
    pub(super) async fn next_restart_count(
        &self,
        logs: Option<&Pod>,
        name: &str,
        newest: Option<&ContainerStatus>,
    ) -> u32 {
        let next = match newest {
            Some(newest) if newest.state == ContainerState::Created => return newest.restart_count,
            Some(newest) => newest.restart_count.saturating_add(1),
            None => 0,
        };
        match logs {
            Some(pod) => next.max(self.builder.restart_count_from_logs(pod, name).await),
            None => next,
        }
    }

    async fn ensure_image(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        sandbox: &Sandbox,
    ) -> Result<ReadyImage, Stopped> {
        let object = ObjectRef::container(request.pod, &container.name);
        let wanted = ImageRequest {
            pod: request.pod,
            object: &object,
            image: container.image.as_deref().unwrap_or_default(),
            policy: PullPolicy::of(container.image_pull_policy.as_deref()),
            sandbox_config: Some(&sandbox.config),
        };
        self.get_image(request, container, &wanted).await
    }

    /// Gets an image that a container starts from or mounts, and says it of the container when that
    /// fails. `Err(None)` when the turn was cancelled.
    pub(super) async fn get_image(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        wanted: &ImageRequest<'_>,
    ) -> Result<ReadyImage, Stopped> {
        // What is known already is told, although the pod is to be looked at anew: it is told once.
        let result = tokio::select! {
            biased;
            result = self.images.ensure_image_exists(wanted) => result,
            () = request.cancel.cancelled() => return Err(None),
        };
        result.map_err(|error| {
            let object = ObjectRef::container(request.pod, &container.name);
            let text = format!("Error: {}", error.reason);
            self.events.warning(&object, event::FAILED, text);
            Some(image_failure(container, error))
        })
    }

    fn check_back_off(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
    ) -> Result<(), Stopped> {
        let (pod, status, now) = (request.pod, &request.status, Timestamp::now());
        let counts = match self.newest(pod, status, &container.name) {
            // It was killed a moment ago. Its delay counts from the end of the instance before, as upstream's
            // does: a container that ran for longer than its delay is restarted at once.
            Some(newest) if newest.state == ContainerState::Running => {
                self.ended_before(pod, status, &newest.name)
            }
            newest => newest.map(Cow::into_owned),
        };
        let admission = self.back_off.admit(pod, container, counts.as_ref(), now);
        let Admission::Wait { delay, left } = admission else {
            return Ok(());
        };
        back_off_event(&self.events, pod, container);
        let message = back_off_text(pod, &container.name, delay);
        Err(Some(StartFailure::crash_loop(
            &container.name,
            message,
            left,
        )))
    }

    /// Creates and starts: the two steps that nothing may come between.
    async fn create_and_start(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        container: &Container,
        config: ContainerConfig,
    ) -> Result<ContainerId, Stopped> {
        let object = ObjectRef::container(pod, &container.name);
        let log = config.log_path.clone();
        let _making = self.cache.creating(pod.uid());
        let created = self
            .runtime
            .create_container(sandbox.id.as_str(), config, &sandbox.config)
            .await;
        let id = match created {
            Ok(id) => ContainerId::from(id),
            Err(error) => {
                if may_exist(&error) {
                    Box::pin(self.adopt_containers(pod, sandbox, &container.name)).await;
                } else {
                    self.links.remove_unused(pod, &log).await;
                }
                return Err(self.refused(
                    &object,
                    container,
                    reasons::CREATE_CONTAINER_ERROR,
                    &error,
                    None,
                ));
            }
        };
        self.events
            .normal(&object, event::CREATED, "Container created");
        self.exit_is_past(pod, &container.name);
        let hooked = container
            .lifecycle
            .as_ref()
            .is_some_and(|l| l.post_start.is_some());
        if hooked {
            let pending = id.to_string();
            self.state_store
                .record(&pod.uid(), |r| r.post_start_pending.push(pending))
                .await;
        }
        // Before it runs: an answer that is lost, or a kubelet that is killed, must not leave a running
        // container that no collector sees.
        self.links.add(pod, &container.name, &id, &log).await;
        let started = self.runtime.start_container(id.as_str()).await;
        let item = ItemId::Container(id.clone());
        self.cache
            .touch(&Owner::of(pod), item, Some(sandbox.id.clone()));
        if let Err(error) = started {
            self.back_off.start_failed(pod, container, Timestamp::now());
            // It may run all the same, and then its hook is still to come (P-09).
            if !error.is_outcome_unknown() {
                self.hook_done(pod, &id);
            }
            let reason = reasons::RUN_CONTAINER_ERROR;
            return Err(self.refused(&object, container, reason, &error, Some(&id)));
        }
        self.events
            .normal(&object, event::STARTED, "Container started");
        Ok(id)
    }

    /// Instances that were created and are not known to have been started go before there is another
    /// one. The runtime may still be starting one of them: then it cannot be removed, and the container
    /// is not made a second time.
    async fn remove_never_started(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
    ) -> Result<(), Stopped> {
        let created = |c: &&ContainerStatus| c.state == ContainerState::Created;
        let wait = |message: String| {
            let failed = failure(container, reasons::CREATE_CONTAINER_ERROR, message);
            failed.map(|failure| StartFailure {
                retry_in: Some(RETRY_AFTER),
                ..failure
            })
        };
        for left in request.status.instances(&container.name).filter(created) {
            let latest = self.cache.latest(&request.pod.uid());
            if latest.container(&left.id).is_some_and(|now| !created(&now)) {
                return Err(wait(
                    "the instance made before was started after all".into(),
                ));
            }
            let removed = self.remove_unstarted(&request.status, &left.id).await;
            removed.map_err(|error| {
                let text = crate::base::chain(error.as_ref());
                wait(format!(
                    "the instance made before cannot be removed yet: {text}"
                ))
            })?;
        }
        Ok(())
    }

    fn refused(
        &self,
        object: &ObjectRef,
        container: &Container,
        reason: &'static str,
        error: &CriError,
        id: Option<&ContainerId>,
    ) -> Stopped {
        let mut text = error.message().to_string();
        if let Some(id) = id {
            text = text.replace(id.as_str(), &container.name);
        }
        self.events
            .warning(object, event::FAILED, format!("Error: {text}"));
        let retry_in = may_exist(error).then_some(RETRY_AFTER);
        failure(container, reason, text).map(|failure| StartFailure {
            retry_in,
            ..failure
        })
    }

    /// Runs the postStart hook of a container that has just started. A failure kills the container.
    pub(super) async fn run_post_start(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
        id: &ContainerId,
    ) -> Result<(), Stopped> {
        let pod = request.pod;
        let handler = container
            .lifecycle
            .as_ref()
            .and_then(|l| l.post_start.as_ref());
        let Some(handler) = handler else {
            return Ok(());
        };
        self.doing(
            pod,
            format!("running the postStart hook of {}", container.name),
        );
        // Not that of the turn's beginning: the sandbox may have been made, or replaced, since.
        let ip = self.address(Some(pod), &self.cache.latest(&pod.uid()));
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
            () = request.cancel.cancelled() => return Err(None),
        };
        self.hook_done(pod, id);
        let Err(error) = result else { return Ok(()) };
        tracing::warn!(pod = %pod.full_name(), container = container.name, err = %error, "PostStart hook failed");
        self.events.warning(
            &object,
            event::FAILED_POST_START_HOOK,
            "PostStartHook failed",
        );
        let status = self.cache.latest(&pod.uid());
        let why = Why::FailedPostStartHook;
        let killing = Box::pin(self.kill_one(pod, &status, &container.name, id, why));
        // A removal of the pod goes on with that stop.
        let killed = request.cancel.run_until_cancelled(killing).await;
        if let Err(error) = killed.ok_or(None)? {
            tracing::warn!(
                pod = %pod.full_name(),
                container = container.name,
                err = %crate::base::chain(error.as_ref()),
                "Cannot stop a container whose hook failed"
            );
        }
        Err(failure(
            container,
            reasons::POST_START_HOOK_ERROR,
            error.to_string(),
        ))
    }

    fn hook_done(&self, pod: &Pod, id: &ContainerId) {
        self.state_store.update(&pod.uid(), |r| {
            r.post_start_pending.retain(|known| known != id.as_str())
        });
    }

    /// After a create whose outcome is unknown, or a name that is taken: the container may exist. It
    /// is looked up and adopted, so the next turn sees it instead of asking for a second one (P-10).
    async fn adopt_containers(&self, pod: &Pod, sandbox: &Sandbox, name: &str) {
        let filter = ContainerFilter {
            pod_sandbox_id: sandbox.id.to_string(),
            label_selector: [(keys::CONTAINER_NAME.to_string(), name.to_string())].into(),
            ..ContainerFilter::default()
        };
        match self.runtime.list_containers(Some(filter)).await {
            Ok(found) => found.into_iter().for_each(|c| {
                let item = ItemId::Container(c.id.into());
                self.cache
                    .touch(&Owner::of(pod), item, Some(sandbox.id.clone()));
            }),
            Err(error) => tracing::warn!(
                pod = %pod.full_name(),
                err = %error,
                "Cannot look for a container that may have been created"
            ),
        }
    }
}

/// Tells that a container has to wait before it runs again.
pub(super) fn back_off_event(events: &EventRecorder, pod: &Pod, container: &Container) {
    let shown = format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid());
    let object = ObjectRef::container(pod, &container.name);
    let text = format!(
        "Back-off restarting failed container {} in pod {shown}",
        container.name
    );
    events.warning(&object, event::BACK_OFF, text);
}

/// The waiting message of a container in its restart back-off.
pub(super) fn back_off_text(pod: &Pod, name: &str, delay: std::time::Duration) -> String {
    format!(
        "back-off {} restarting failed container={name} pod={}_{}({})",
        GoDuration::from(delay),
        pod.name(),
        pod.namespace(),
        pod.uid()
    )
}

pub(super) fn failure(
    container: &Container,
    reason: &'static str,
    message: impl Into<String>,
) -> Stopped {
    Some(StartFailure::new(&container.name, reason, message))
}
