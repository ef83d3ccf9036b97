//! The configuration of a container. Pure.

use super::env::Environment;
use super::env::expansion::expand_all;
use super::mounts::{self, ContainerFiles, ImageVolumes};
use super::security_context::{self, ImageUser};
use super::settings::GenerateSettings;
use super::stop_signal::stop_signal;
use super::user_namespaces::ranges::IdRange;
use crate::cri::v1;
use crate::model::Pod;
use crate::resources;
use crate::resources::devices::RunOptions;
use crate::runtime::kuberuntime::{labels, log_paths};
use crate::volumes::VolumePaths;
use k8s_openapi::api::core::v1::Container;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a sync knows about a container that it is going to create.
#[derive(Clone, Copy, Debug)]
pub struct ContainerConfigRequest<'a> {
    /// The pod.
    pub pod: &'a Arc<Pod>,
    /// The container.
    pub container: &'a Container,
    /// How often it was restarted; also its attempt number and the number of its log file.
    pub restart_count: u32,
    /// The restart counts of existing instances, whose termination logs are kept.
    pub other_restart_counts: &'a [u32],
    /// The image reference that the runtime returned for the pull.
    pub image_ref: &'a str,
    /// The user in the image's configuration.
    pub image_user: &'a ImageUser,
    /// Addresses of the pod.
    pub pod_ips: &'a [String],
    /// Its volumes on the node.
    pub volumes: &'a VolumePaths,
    /// Its volumes that are images: the runtime mounts them itself.
    pub images: &'a ImageVolumes,
}

/// The inputs of a container's configuration besides the node.
#[derive(Clone, Copy, Debug)]
pub struct ContainerInputs<'a> {
    /// The container.
    pub request: ContainerConfigRequest<'a>,
    /// Its environment variables ([`super::env::make_environment`]).
    pub environment: &'a Environment,
    /// Files of the kubelet's own.
    pub files: &'a ContainerFiles,
    /// The host ids of the pod's user namespace; `None` without one.
    pub user_namespace: Option<IdRange>,
    /// The pod's runtime handler supports recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// The additions of device plugins and DRA drivers.
    pub devices: &'a RunOptions,
}

/// Everything CreateContainer needs (upstream's `generateContainerConfig`). An error is what users
/// see as `CreateContainerConfigError`.
pub fn generate_container_config(
    settings: &GenerateSettings,
    inputs: &ContainerInputs<'_>,
) -> anyhow::Result<v1::ContainerConfig> {
    let ContainerConfigRequest { pod, container, restart_count, image_user, volumes, .. } =
        inputs.request;
    security_context::verify_run_as_non_root(pod, container, image_user)?;
    let mut security = security_context::container_security_context(
        pod,
        container,
        image_user,
        settings,
        inputs.user_namespace,
    )?;
    let groups = mounts::volume_groups(pod, volumes);
    security.supplemental_groups.extend(groups);
    let node = &settings.node;
    let resources = resources::container_resources(pod, container, node, &settings.enforcement)?;
    let devices = inputs.devices;
    let environment = &with_devices(devices, inputs.environment);
    let mut mounts = devices.mounts.clone();
    mounts.extend(mounts::container_mounts(
        container,
        volumes,
        inputs.request.images,
        inputs.files,
        inputs.environment,
        inputs.recursive_read_only_mounts,
    )?);
    let mut device_nodes = devices.devices.clone();
    device_nodes.extend(mounts::volume_devices(container, volumes)?);
    // Idmapped mounts: files have the same owner ids in the pod's user namespace as on the node.
    let mappings = security_context::id_mappings(inputs.user_namespace);
    for mount in &mut mounts {
        mount.uid_mappings.clone_from(&mappings);
        mount.gid_mappings.clone_from(&mappings);
        mount.selinux_relabel &= node.selinux;
    }
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: restart_count,
        }),
        image: Some(v1::ImageSpec {
            image: inputs.request.image_ref.to_string(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expand_all(container.command.as_deref(), environment),
        args: expand_all(container.args.as_deref(), environment),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment.iter().map(key_value).collect(),
        mounts,
        devices: device_nodes,
        cdi_devices: devices.cdi_devices.clone(),
        labels: labels::container_labels(pod, container),
        annotations: annotations(inputs),
        log_path: log_paths::container_log_path(&container.name, restart_count)?,
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        stop_signal: stop_signal(container).into(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security),
        }),
        ..Default::default()
    })
}

/// Adds the environment variables of device plugins. They come first, and a variable of the pod overrides them.
fn with_devices<'e>(devices: &RunOptions, environment: &'e Environment) -> Cow<'e, Environment> {
    if devices.envs.is_empty() {
        return Cow::Borrowed(environment);
    }
    let own: HashSet<&String> = environment.iter().map(|(name, _)| name).collect();
    let added = devices.envs.iter().filter(|(name, _)| !own.contains(name));
    let added = added.map(|(name, value)| (name.clone(), value.clone()));
    Cow::Owned(added.chain(environment.iter().cloned()).collect())
}

/// The annotations of device plugins and the kubelet's own, which override them.
fn annotations(inputs: &ContainerInputs<'_>) -> HashMap<String, String> {
    let request = inputs.request;
    let (pod, container) = (request.pod, request.container);
    let own = labels::container_annotations(pod, container, request.restart_count);
    let of_devices = inputs.devices.annotations.clone();
    of_devices.into_iter().chain(own).collect()
}

fn key_value((name, value): &(String, String)) -> v1::KeyValue {
    v1::KeyValue { key: name.clone(), value: value.clone().into_bytes() }
}
