//! Gathers the inputs of the pure generators, calls them, and creates the files that a configuration refers to.

use super::container_config::{ContainerConfigRequest, ContainerInputs, generate_container_config};
use super::container_files::{
    create_container_files, create_pod_log_dir, read_env_files, read_resolv_conf,
    restart_count_from_log_dir,
};
use super::dns::{DnsWarning, ResolvConf};
use super::env::configmap_secret::wanted_configmaps_and_secrets;
use super::env::{EnvInputs, make_environment, variables_of_services};
use super::sandbox_config::{SandboxInputs, generate_pod_sandbox_config};
use super::settings::GenerateSettings;
use super::user_namespaces::ranges::IdRange;
use super::user_namespaces::{self, UserNamespaces};
use crate::apiserver::runtime_class::{RuntimeClassError, RuntimeClasses};
use crate::apiserver::service::Services;
use crate::base::run_file_io;
use crate::cri::FeaturesReader;
use crate::cri::v1::{ContainerConfig, LinuxContainerResources, PodSandboxConfig};
use crate::model::{Pod, PodExt as _, PodUid};
use crate::resources::{self, DeviceManagers, InvalidQuantity};
use crate::runtime::kuberuntime::log_paths;
use crate::state::pod_cache::PodRef;
use crate::volumes::VolumeManager;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Container;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

/// Builds CRI configurations.
pub(in crate::runtime::kuberuntime) struct ConfigBuilder {
    pub(in crate::runtime::kuberuntime) settings: GenerateSettings,
    pub(in crate::runtime::kuberuntime) volumes: VolumeManager,
    pub(in crate::runtime::kuberuntime) resolv_conf: Option<PathBuf>,
    pub(in crate::runtime::kuberuntime) user_namespaces: UserNamespaces,
    pub(in crate::runtime::kuberuntime) features: FeaturesReader,
    pub(in crate::runtime::kuberuntime) services: Services,
    pub(in crate::runtime::kuberuntime) runtime_classes: RuntimeClasses,
    pub(in crate::runtime::kuberuntime) devices: DeviceManagers,
}

/// The configuration of a new sandbox.
pub(in crate::runtime::kuberuntime) struct NewSandbox {
    pub(in crate::runtime::kuberuntime) config: PodSandboxConfig,
    /// Events to emit when the sandbox is created.
    pub(in crate::runtime::kuberuntime) warnings: Vec<DnsWarning>,
    /// The log directory is new, so no container of the pod has a log file yet.
    pub(in crate::runtime::kuberuntime) fresh_logs: bool,
}

impl ConfigBuilder {
    /// The runtime handler of the pod's RuntimeClass; empty for the default one.
    pub(in crate::runtime::kuberuntime) async fn runtime_handler(
        &self,
        pod: &Pod,
    ) -> Result<String, RuntimeClassError> {
        self.runtime_classes.handler(pod).await
    }

    /// Whether the pod's runtime handler supports recursive read-only mounts; false if the handler is unknown.
    pub(in crate::runtime::kuberuntime) fn supports_recursive_read_only(&self, pod: &Pod) -> bool {
        let handler = self.runtime_classes.handler_now(pod).ok();
        let features = handler.and_then(|handler| self.features.borrow().of_handler(&handler).ok());
        features.is_some_and(|features| features.recursive_read_only_mounts)
    }

    /// The host ids of the pod's user namespace, if it has one.
    async fn user_namespace(&self, pod: &Pod) -> anyhow::Result<Option<IdRange>> {
        if !user_namespaces::is_wanted(pod) {
            return Ok(None);
        }
        let handler = self.runtime_handler(pod).await?;
        let features = self.features.borrow().of_handler(&handler);
        let ids = self.user_namespaces.of_pod(pod, &handler, features).await?;
        Ok(Some(ids))
    }

    /// Releases the user namespace of a pod that has no processes left.
    pub(in crate::runtime::kuberuntime) async fn release_user_namespace(&self, uid: &PodUid) {
        self.user_namespaces.release(uid).await;
    }

    /// The configuration of a new sandbox; creates its log directory.
    pub(in crate::runtime::kuberuntime) async fn new_sandbox(
        &self,
        pod: &Pod,
        attempt: u32,
        cgroup_parent: &str,
    ) -> anyhow::Result<NewSandbox> {
        let pod_ref = PodRef::of(pod);
        let logs = log_paths::pod_logs_dir(&self.settings.pod_logs_dir, &pod_ref)?;
        let resolv_conf = self.resolv_conf.clone();
        // One blocking call for both, because switching threads is a measurable part of a pod's start.
        let (host, fresh_logs) = run_file_io(move || {
            let fresh = create_pod_log_dir(&logs)
                .with_context(|| format!("cannot create the log directory {}", logs.display()))?;
            anyhow::Ok((read_host_resolv(resolv_conf)?, fresh))
        })
        .await??;
        let ids = self.user_namespace(pod).await?;
        let inputs = SandboxInputs {
            attempt,
            host_resolv: host.as_ref(),
            cgroup_parent,
            user_namespace: ids,
        };
        let (config, warnings) = generate_pod_sandbox_config(pod, &self.settings, &inputs)?;
        Ok(NewSandbox { config, warnings, fresh_logs })
    }

    /// The configuration of an existing sandbox, which CreateContainer needs.
    pub(in crate::runtime::kuberuntime) async fn sandbox(
        &self,
        pod: &Pod,
        attempt: u32,
        cgroup_parent: &str,
    ) -> anyhow::Result<PodSandboxConfig> {
        let resolv_conf = self.resolv_conf.clone();
        let host = run_file_io(move || read_host_resolv(resolv_conf)).await??;
        let ids = self.user_namespace(pod).await?;
        let inputs = SandboxInputs {
            attempt,
            host_resolv: host.as_ref(),
            cgroup_parent,
            user_namespace: ids,
        };
        Ok(generate_pod_sandbox_config(pod, &self.settings, &inputs)?.0)
    }

    /// The CRI resources of a container.
    pub(in crate::runtime::kuberuntime) fn resources(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<LinuxContainerResources, InvalidQuantity> {
        let settings = &self.settings;
        resources::container_resources(pod, container, &settings.node, &settings.enforcement)
    }

    /// The configuration of a container; creates the files that it refers to.
    pub(in crate::runtime::kuberuntime) async fn container(
        &self,
        request: ContainerConfigRequest<'_>,
        cancel: &CancellationToken,
    ) -> anyhow::Result<ContainerConfig> {
        let ContainerConfigRequest { pod, container, .. } = request;
        let node = &*self.settings.node;
        let host_ips = self.settings.host_ips.get();
        let pod_ips = if pod.host_network() { &host_ips } else { request.pod_ips };
        let request = ContainerConfigRequest { pod_ips, ..request };
        let devices = self.devices.run_options(pod, container);
        let devices = cancel.run_until_cancelled(devices).await;
        let devices = devices.context("the sync was cancelled")??;
        let objects = wanted_configmaps_and_secrets(pod, container);
        let services = self.services.of(pod).await;
        let services = services
            .context("services have not yet been read at least once, cannot construct envvars")?;
        let env_inputs = EnvInputs {
            services: &variables_of_services(&services),
            pod_ips,
            node,
            host_ips: &host_ips,
            files: &read_env_files(container, request.volumes).await?,
            configmaps_and_secrets: &self
                .volumes
                .configmaps_and_secrets(pod, objects, cancel)
                .await?,
        };
        let environment = make_environment(pod, container, &env_inputs)?;
        let files =
            create_container_files(&self.volumes, &self.settings, &request, &environment, cancel);
        let inputs = ContainerInputs {
            request,
            environment: &environment,
            files: &files.await?,
            user_namespace: self.user_namespace(pod).await?,
            recursive_read_only_mounts: self.supports_recursive_read_only(pod),
            devices: &devices,
        };
        generate_container_config(&self.settings, &inputs)
    }

    /// The restart count of a new instance according to the container's log files; 0 without any.
    pub(in crate::runtime::kuberuntime) async fn restart_count_from_logs(
        &self,
        pod: &Pod,
        container: &str,
    ) -> u32 {
        let Ok(logs) =
            log_paths::container_logs_dir(&self.settings.pod_logs_dir, &PodRef::of(pod), container)
        else {
            return 0;
        };
        let shown = logs.display().to_string();
        let counted = run_file_io(move || restart_count_from_log_dir(&logs)).await;
        match counted {
            Ok(Ok(count)) => count,
            Ok(Err(error)) => {
                tracing::warn!(path = shown, err = %error, "Cannot calculate restartCount from the log directory");
                0
            }
            Err(_) => 0,
        }
    }
}

/// Reads the node's `resolv.conf`. Done for every sandbox, because the file may change. Blocking.
fn read_host_resolv(path: Option<PathBuf>) -> anyhow::Result<Option<ResolvConf>> {
    match path {
        Some(path) => {
            read_resolv_conf(&path).with_context(|| format!("cannot read {}", path.display()))
        }
        None => Ok(None),
    }
}
