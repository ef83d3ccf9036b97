//! Starting one container: back-off, image, configuration, create, start, postStart.

use super::images::ContainerImages;
use super::post_start::PostStart;
use super::request::{RETRY_AFTER, ReadySandbox, StartContainerError, StartFailure, SyncRequest};
use crate::base::{clock, error_chain};
use crate::cri::v1::{ContainerConfig, ContainerFilter};
use crate::cri::{CriError, RuntimeClient};
use crate::model::reasons::event;
use crate::model::{ContainerId, ContainerState, ContainerStatus, Pod, PodExt, keys, reasons};
use crate::resources::allocation::Allocations;
use crate::resources::managers::ResourceManagers;
use crate::runtime::kuberuntime::StartMetrics;
use crate::runtime::kuberuntime::container_log_files::ContainerLogFiles;
use crate::runtime::kuberuntime::exits::ExitRecords;
use crate::runtime::kuberuntime::gc::ContainerGc;
use crate::runtime::kuberuntime::generate::security_context::{
    ImageUser, with_target_pid_namespace,
};
use crate::runtime::kuberuntime::generate::{ConfigBuilder, ContainerConfigRequest};
use crate::runtime::kuberuntime::restart_back_off::{
    BackOffDecision, RestartBackOff, back_off_event, back_off_text,
};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::{ItemId, PodCache, PodRef};
use crate::state::pod_history::PodHistory;
use crate::volumes::VolumeError;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Container;
use std::borrow::Cow;
use std::sync::Arc;

pub(in crate::runtime::kuberuntime) struct ContainerStarter {
    pub(in crate::runtime::kuberuntime) runtime: RuntimeClient,
    pub(in crate::runtime::kuberuntime) cache: PodCache,
    pub(in crate::runtime::kuberuntime) events: EventRecorder,
    pub(in crate::runtime::kuberuntime) pod_history: PodHistory,
    pub(in crate::runtime::kuberuntime) exits: ExitRecords,
    pub(in crate::runtime::kuberuntime) builder: Arc<ConfigBuilder>,
    pub(in crate::runtime::kuberuntime) images: ContainerImages,
    pub(in crate::runtime::kuberuntime) log_files: Arc<ContainerLogFiles>,
    pub(in crate::runtime::kuberuntime) gc: Arc<ContainerGc>,
    pub(in crate::runtime::kuberuntime) post_start: PostStart,
    pub(in crate::runtime::kuberuntime) back_off: Arc<RestartBackOff>,
    pub(in crate::runtime::kuberuntime) resources: ResourceManagers,
    pub(in crate::runtime::kuberuntime) allocations: Allocations,
    pub(in crate::runtime::kuberuntime) metrics: StartMetrics,
}

impl ContainerStarter {
    /// Starts a container in a sandbox.
    pub(super) async fn start(
        &self,
        request: &SyncRequest<'_>,
        sandbox: &ReadySandbox,
        container: &Container,
    ) -> Result<(), StartContainerError> {
        let started = Box::pin(self.try_start(request, sandbox, container)).await;
        if started.is_err() {
            self.back_off.record_incomplete_start(request.pod, container);
        }
        started
    }

    async fn try_start(
        &self,
        request: &SyncRequest<'_>,
        sandbox: &ReadySandbox,
        container: &Container,
    ) -> Result<(), StartContainerError> {
        let pod = request.pod;
        self.check_back_off(request, container)?;
        let name = &container.name;
        let wanted = container.image.as_deref().unwrap_or_default();
        self.set_current_step(pod, format!("getting image {wanted} for {name}"));
        let images =
            Box::pin(self.images.ensure_image_volumes(request, container, sandbox)).await?;
        let image = Box::pin(self.images.ensure_image(request, container, sandbox)).await?;
        let newest = self.exits.newest(pod, &request.status, name);
        let restart_count =
            self.next_restart_count(pod, !sandbox.fresh_logs, name, newest.as_deref()).await;
        let other_restart_counts = request.status.instances(name).map(|c| c.restart_count);
        let build = ContainerConfigRequest {
            pod,
            container,
            restart_count,
            other_restart_counts: &other_restart_counts.collect::<Vec<_>>(),
            image_ref: &image.reference,
            image_user: &ImageUser::of(&image),
            pod_ips: &sandbox.ips,
            volumes: request.volumes,
            images: &images,
        };
        let object = ObjectRef::container(pod, &container.name);
        let config = Box::pin(self.builder.container(build, request.cancel)).await;
        // Checked before the error is reported, because cancellation makes the builder return an error, too.
        if request.cancel.is_cancelled() {
            return Err(StartContainerError::Cancelled);
        }
        let config = config.and_then(|config| with_target_namespace(request, container, config));
        let config = config.map_err(|error| {
            let message = error_chain(error.as_ref());
            if let Some(VolumeError::SetUp { .. } | VolumeError::Unmounted(_)) =
                error.downcast_ref()
            {
                let pod = ObjectRef::pod(pod);
                self.events.warning(&pod, event::FAILED_MOUNT, message.as_str());
            } else {
                let text = format!("Error: {message}");
                self.events.warning(&object, event::FAILED, text);
            }
            let reason = reasons::CREATE_CONTAINER_CONFIG_ERROR;
            StartFailure::new(&container.name, reason, message)
        })?;
        self.set_current_step(pod, format!("creating and starting {name}"));
        let removal = Box::pin(self.remove_never_started(request, container));
        let removed = request.cancel.run_until_cancelled(removal).await;
        removed.ok_or(StartContainerError::Cancelled)??;
        self.metrics.image_volumes_requested(images.len());
        let created = Box::pin(self.create_and_start(pod, sandbox, container, config)).await;
        self.metrics.image_volumes_mounted(images.len(), created.as_ref().err());
        let id = created?;
        Box::pin(self.post_start.run(request, container, &id)).await
    }

    /// The restart count of the next instance. The successor of an instance that never started has the same count.
    /// Otherwise it is one more than that of the newest instance, and at least the next unused number of a log file,
    /// because the runtime may have lost instances. Log files are only read if `has_log_files`.
    async fn next_restart_count(
        &self,
        pod: &Pod,
        has_log_files: bool,
        name: &str,
        newest: Option<&ContainerStatus>,
    ) -> u32 {
        let next = match newest {
            Some(newest) if newest.state == ContainerState::Created => return newest.restart_count,
            Some(newest) => newest.restart_count.saturating_add(1),
            None => 0,
        };
        if has_log_files {
            next.max(self.builder.restart_count_from_logs(pod, name).await)
        } else {
            next
        }
    }

    fn set_current_step(&self, pod: &Pod, step: String) {
        self.pod_history.set_current_step(&pod.uid(), Some(step));
    }

    fn check_back_off(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
    ) -> Result<(), StartContainerError> {
        let (pod, status, now) = (request.pod, &request.status, clock::timestamp());
        let counted_from = match self.exits.newest(pod, status, &container.name) {
            // This sync has just killed the container; `status` was read before. As upstream, the delay counts from the
            // exit of the previous instance: a container that ran for longer than its delay is restarted immediately.
            Some(newest) if newest.state == ContainerState::Running => {
                self.exits.previous_exit(pod, status, &newest.name)
            }
            newest => newest.map(Cow::into_owned),
        };
        let decision = self.back_off.try_start(pod, container, counted_from.as_ref(), now);
        let BackOffDecision::Wait { delay, left } = decision else {
            return Ok(());
        };
        back_off_event(&self.events, pod, container);
        let message = back_off_text(pod, &container.name, delay);
        Err(StartFailure::crash_loop(&container.name, message, left).into())
    }

    /// Creates and starts a container. A sync is never cancelled between the two.
    async fn create_and_start(
        &self,
        pod: &Pod,
        sandbox: &ReadySandbox,
        container: &Container,
        mut config: ContainerConfig,
    ) -> Result<ContainerId, StartContainerError> {
        let object = ObjectRef::container(pod, &container.name);
        let log = config.log_path.clone();
        let mut cpus = String::new();
        let linux = config.linux.as_mut();
        if let Some(resources) = linux.and_then(|linux| linux.resources.as_mut()) {
            let name = &container.name;
            Box::pin(self.resources.pre_create_container(pod, name, resources)).await;
            cpus.clone_from(&resources.cpuset_cpus);
        }
        let _creating = self.cache.creation_guard(pod.uid());
        let created =
            self.runtime.create_container(sandbox.id.as_str(), config, &sandbox.config).await;
        let id = match created {
            Ok(id) => ContainerId::from(id),
            Err(error) => {
                if error.may_have_created() {
                    Box::pin(self.adopt_containers(pod, sandbox, &container.name)).await;
                } else {
                    self.log_files.remove_unused(pod, &log).await;
                }
                return Err(self.cri_failure(
                    &object,
                    container,
                    reasons::CREATE_CONTAINER_ERROR,
                    &error,
                    None,
                ));
            }
        };
        self.resources.add_container(pod, &container.name, &id, &cpus);
        if self.allocations.set_actuated(pod, container) {
            // Before the start: a kubelet that knew only the amounts before would restart the container for its resize
            // once more.
            self.allocations.flush().await;
        }
        self.events.normal(&object, event::CREATED, "Container created");
        self.exits.mark_superseded(pod, &container.name);
        self.post_start.record_pending(pod, container, &id).await;
        // Before the start: if its reply is lost, or the kubelet is killed, the running container must have the link by
        // which log collectors find it.
        self.log_files.add_link(pod, &container.name, &id, &log).await;
        let started = self.runtime.start_container(id.as_str()).await;
        let item = ItemId::Container(id.clone());
        self.cache.touch(&PodRef::of(pod), item, Some(sandbox.id.clone()));
        if let Err(error) = started {
            self.back_off.record_failed_start(pod, container, clock::timestamp());
            // If the outcome is unknown, the container may run, and its hook has to run as well.
            if !error.is_outcome_unknown() {
                self.post_start.record_ended(pod, &id).await;
            }
            let reason = reasons::RUN_CONTAINER_ERROR;
            return Err(self.cri_failure(&object, container, reason, &error, Some(&id)));
        }
        self.events.normal(&object, event::STARTED, "Container started");
        Ok(id)
    }

    /// Removes instances that were created and not started. An error if one cannot be removed, because the runtime may
    /// still be starting it: a second instance must not be created then.
    async fn remove_never_started(
        &self,
        request: &SyncRequest<'_>,
        container: &Container,
    ) -> Result<(), StartContainerError> {
        let created = |c: &&ContainerStatus| c.state == ContainerState::Created;
        let wait = |message: String| {
            StartContainerError::from(StartFailure {
                retry_in: Some(RETRY_AFTER),
                ..StartFailure::new(&container.name, reasons::CREATE_CONTAINER_ERROR, message)
            })
        };
        for unstarted in request.status.instances(&container.name).filter(created) {
            let latest = self.cache.latest(&request.pod.uid());
            if latest.container(&unstarted.id).is_some_and(|now| !created(&now)) {
                return Err(wait("the previous container is still starting".into()));
            }
            let removed = self.gc.remove_unstarted(&request.status, &unstarted.id).await;
            removed.map_err(|error| {
                let text = error_chain(error.as_ref());
                wait(format!("failed to remove the previous container: {text}"))
            })?;
        }
        Ok(())
    }

    fn cri_failure(
        &self,
        object: &ObjectRef,
        container: &Container,
        reason: &'static str,
        error: &CriError,
        id: Option<&ContainerId>,
    ) -> StartContainerError {
        let mut text = error.message().to_string();
        if let Some(id) = id {
            text = text.replace(id.as_str(), &container.name);
        }
        self.events.warning(object, event::FAILED, format!("Error: {text}"));
        StartContainerError::from(StartFailure {
            retry_in: error.may_have_created().then_some(RETRY_AFTER),
            ..StartFailure::new(&container.name, reason, text)
        })
    }

    /// Looks up a container that may exist, after a creation with an unknown outcome or with a name that is in use, and
    /// adds it to the pod cache, so that the next sync finds it instead of creating a second one.
    async fn adopt_containers(&self, pod: &Pod, sandbox: &ReadySandbox, name: &str) {
        let filter = ContainerFilter {
            pod_sandbox_id: sandbox.id.to_string(),
            label_selector: [(keys::CONTAINER_NAME.to_string(), name.to_string())].into(),
            ..ContainerFilter::default()
        };
        match self.runtime.list_containers(Some(filter)).await {
            Ok(found) => found.into_iter().for_each(|c| {
                let item = ItemId::Container(c.id.into());
                self.cache.touch(&PodRef::of(pod), item, Some(sandbox.id.clone()));
            }),
            Err(error) => tracing::warn!(
                pod = %pod.log_name(),
                err = %error,
                "Failed to look up a container that may have been created"
            ),
        }
    }
}

/// Sets the PID namespace of an ephemeral container to that of its `targetContainerName`, if it has one.
fn with_target_namespace(
    request: &SyncRequest<'_>,
    container: &Container,
    mut config: ContainerConfig,
) -> anyhow::Result<ContainerConfig> {
    let mut ephemeral = request.pod.ephemeral_containers().iter();
    let ephemeral = ephemeral.find(|ephemeral| ephemeral.name == container.name);
    let target = ephemeral.and_then(|ephemeral| ephemeral.target_container_name.as_deref());
    let Some(target) = target.filter(|target| !target.is_empty()) else {
        return Ok(config);
    };
    let mut instances = request.status.instances(target);
    let running = instances.find(|instance| instance.state == ContainerState::Running);
    let running = running.with_context(|| format!("unable to find target container {target}"))?;
    let linux = config.linux.as_mut();
    let security = linux.and_then(|linux| linux.security_context.as_mut());
    if let Some(options) = security.and_then(|security| security.namespace_options.as_mut()) {
        *options = with_target_pid_namespace(options.clone(), &running.id);
    }
    Ok(config)
}
