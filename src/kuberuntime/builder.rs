//! From a pod to what the runtime is asked for: gathers the inputs of the pure generators and makes
//! the files they refer to.

use super::{
    container_config::{ContainerInputs, generate_container_config},
    container_files::{make_container_files, read_resolv_conf, restart_count_from_log_dir},
    dns::{DnsWarning, ResolvConf},
    env::{EnvInputs, make_environment},
    log_paths,
    sandbox_config::{SandboxInputs, generate_pod_sandbox_config},
    security_context::ImageUser,
    settings::{ConfigError, SpecSettings},
};
use crate::{
    base::with_own_files,
    cri::v1::{ContainerConfig, PodSandboxConfig},
    model::Pod,
    pod_cache::Owner,
    volumes::{VolumeManager, VolumePaths},
};
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Container;
use std::{path::PathBuf, sync::Arc};

/// Makes configurations.
pub(super) struct Builder {
    settings: SpecSettings,
    volumes: VolumeManager,
    resolv_conf: Option<PathBuf>,
}

/// One container to configure.
pub(super) struct ContainerRequest<'a> {
    pub(super) pod: &'a Arc<Pod>,
    pub(super) container: &'a Container,
    pub(super) restart_count: u32,
    pub(super) image_ref: &'a str,
    pub(super) image_user: &'a ImageUser,
    pub(super) pod_ips: &'a [String],
    pub(super) volumes: &'a VolumePaths,
}

impl Builder {
    pub(super) fn new(
        settings: SpecSettings,
        volumes: VolumeManager,
        resolv_conf: Option<PathBuf>,
    ) -> Self {
        Self {
            settings,
            volumes,
            resolv_conf,
        }
    }

    /// The configuration of a sandbox, and what to warn about when it is created.
    pub(super) async fn sandbox(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> anyhow::Result<(PodSandboxConfig, Vec<DnsWarning>)> {
        let host = self.host_resolv().await?;
        let inputs = SandboxInputs {
            attempt,
            host_resolv: host.as_ref(),
            cgroup_parent: "",
        };
        Ok(generate_pod_sandbox_config(pod, &self.settings, &inputs)?)
    }

    /// The node's file is read anew for every sandbox, as it may change.
    async fn host_resolv(&self) -> anyhow::Result<Option<ResolvConf>> {
        let Some(path) = self.resolv_conf.clone() else {
            return Ok(None);
        };
        let shown = path.display().to_string();
        with_own_files(move || read_resolv_conf(&path))
            .await?
            .with_context(|| format!("cannot read {shown}"))
    }

    /// The configuration of a container, with the files that it refers to made.
    pub(super) async fn container(
        &self,
        request: ContainerRequest<'_>,
    ) -> anyhow::Result<ContainerConfig> {
        let ContainerRequest { pod, container, .. } = request;
        let node = &*self.settings.node;
        let pod_ips = match crate::model::PodExt::host_network(&**pod) {
            true => &node.host_ips,
            false => request.pod_ips,
        };
        let environment = make_environment(pod, container, &EnvInputs { pod_ips, node })
            .map_err(ConfigError::from)?;
        let files = make_container_files(
            &self.volumes,
            &self.settings,
            pod,
            container,
            pod_ips,
            request.volumes,
            &environment,
        )
        .await?;
        let inputs = ContainerInputs {
            restart_count: request.restart_count,
            image_ref: request.image_ref,
            image_user: request.image_user,
            environment: &environment,
            volumes: request.volumes,
            files: &files,
        };
        Ok(generate_container_config(
            pod,
            container,
            &self.settings,
            &inputs,
        )?)
    }

    /// The restart count that a container's log files prove, for one the runtime has no instance of.
    pub(super) async fn restart_count_from_logs(&self, pod: &Pod, container: &str) -> u32 {
        let Ok(logs) =
            log_paths::container_logs_dir(&self.settings.pod_logs_dir, &Owner::of(pod), container)
        else {
            return 0;
        };
        let shown = logs.display().to_string();
        let counted = with_own_files(move || restart_count_from_log_dir(&logs)).await;
        match counted {
            Ok(Ok(count)) => count,
            Ok(Err(error)) => {
                tracing::warn!(path = shown, err = %error, "Cannot count a container's log files");
                0
            }
            Err(_) => 0,
        }
    }
}
