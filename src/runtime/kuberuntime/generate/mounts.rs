//! The mounts and block devices of a container, and the content of hosts files. Pure.

use super::env::Environment;
use super::env::expansion::expand_strictly;
use super::hostname::PodHostname;
use crate::cri::v1;
use crate::model::{Pod, PodExt};
use crate::volumes::{SubPathRequest, VolumePath, VolumePaths, components};
use anyhow::{Context as _, anyhow, bail, ensure};
use k8s_openapi::api::core::v1::{Container, VolumeDevice, VolumeMount};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The hosts file of containers.
const ETC_HOSTS: &str = "/etc/hosts";

/// Paths on the node of the kubelet's own files that a container mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFiles {
    /// Bound sub-paths by index of the volume mount.
    pub sub_paths: BTreeMap<usize, PathBuf>,
    /// The managed hosts file, if this container gets it.
    pub hosts_file: Option<PathBuf>,
    /// The termination message file, if `terminationMessagePath` is set.
    pub termination_log: Option<PathBuf>,
}

/// The images of image volumes, by volume name, with the runtime's references.
pub type ImageVolumes = BTreeMap<String, v1::ImageSpec>;

/// The sub-paths that have to be bound before the container can be created.
pub fn sub_path_requests(
    container: &Container,
    volumes: &VolumePaths,
    images: &ImageVolumes,
    environment: &Environment,
) -> anyhow::Result<Vec<SubPathRequest>> {
    let mut requests = Vec::new();
    for (mount_index, mount) in volume_mounts(container).iter().enumerate() {
        let Some(sub_path) = sub_path(mount, environment)? else {
            continue;
        };
        if images.contains_key(&mount.name) {
            continue;
        }
        let path = find(container, mount, volumes)?;
        let spec_name = path.persistent_volume.as_ref().unwrap_or(&mount.name);
        requests.push(SubPathRequest {
            mount_index,
            volume: mount.name.clone(),
            spec_name: spec_name.clone(),
            volume_path: path.host_path.clone(),
            sub_path,
        });
    }
    Ok(requests)
}

/// The volumes that a container mounts or has as devices, by name.
pub fn volumes_of(container: &Container, volumes: &VolumePaths) -> Vec<(String, VolumePath)> {
    let mounts = volume_mounts(container).iter().map(|mount| &mount.name);
    let devices = container.volume_devices.iter().flatten();
    let names: BTreeSet<_> = mounts.chain(devices.map(|device| &device.name)).collect();
    let named = |name: &String| Some((name.clone(), volumes.get(name)?.clone()));
    names.into_iter().filter_map(named).collect()
}

/// Whether the container gets the managed hosts file: not if it mounts its own, nor in a pod without an address.
pub fn wants_hosts_file(pod: &Pod, container: &Container, pod_ips: &[String]) -> bool {
    (pod.host_network() || !pod_ips.is_empty())
        && !volume_mounts(container)
            .iter()
            .any(|mount| Path::new(&mount.mount_path) == Path::new(ETC_HOSTS))
}

/// The container's mounts in the order of the spec, then hosts file and termination log.
pub fn container_mounts(
    container: &Container,
    volumes: &VolumePaths,
    images: &ImageVolumes,
    files: &ContainerFiles,
    environment: &Environment,
    recursive_read_only_supported: bool,
) -> anyhow::Result<Vec<v1::Mount>> {
    let mut mounts = Vec::new();
    for (index, mount) in volume_mounts(container).iter().enumerate() {
        let common = v1::Mount {
            container_path: absolute(&mount.mount_path),
            readonly: mount.read_only == Some(true),
            propagation: propagation(mount)?.into(),
            recursive_read_only: recursive_read_only(mount, recursive_read_only_supported)?,
            ..Default::default()
        };
        let sub_path = sub_path(mount, environment)?;
        mounts.push(match images.get(&mount.name) {
            Some(image) => v1::Mount {
                readonly: true,
                image: Some(image.clone()),
                image_sub_path: sub_path.unwrap_or_default(),
                ..common
            },
            None => {
                let volume = find(container, mount, volumes)?;
                let host_path = match sub_path {
                    None => &volume.host_path,
                    Some(_) => files.sub_paths.get(&index).with_context(|| {
                        format!("subPath of volume {:?} was not prepared", mount.name)
                    })?,
                };
                v1::Mount {
                    host_path: text(host_path),
                    selinux_relabel: volume.managed,
                    readonly: common.readonly || volume.read_only,
                    ..common
                }
            }
        });
    }
    let managed = |container_path: &str, host_path: &Path| v1::Mount {
        container_path: container_path.to_string(),
        host_path: text(host_path),
        selinux_relabel: true,
        ..Default::default()
    };
    if let Some(hosts) = &files.hosts_file {
        mounts.push(managed(ETC_HOSTS, hosts));
    }
    let message_path = container.termination_message_path.as_deref();
    if let (Some(log), Some(path)) = (&files.termination_log, message_path)
        && !path.is_empty()
    {
        mounts.push(managed(path, log));
    }
    Ok(mounts)
}

/// The volumes that the container has as devices (upstream's `makeBlockVolumes`).
pub fn volume_devices(
    container: &Container,
    volumes: &VolumePaths,
) -> anyhow::Result<Vec<v1::Device>> {
    let device = |device: &VolumeDevice| {
        let volume = volumes.get(&device.name).filter(|volume| volume.is_device);
        let volume = volume.with_context(|| {
            let (volume, container) = (&device.name, &container.name);
            format!("cannot find volume {volume:?} to pass into container {container:?}")
        })?;
        Ok(v1::Device {
            container_path: device.device_path.clone(),
            host_path: text(&volume.host_path),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        })
    };
    container.volume_devices.iter().flatten().map(device).collect()
}

/// The groups of the pod's volumes that the pod does not name itself (upstream's
/// `GetExtraSupplementalGroupsForPod`), in order.
pub fn volume_groups(pod: &Pod, volumes: &VolumePaths) -> BTreeSet<i64> {
    let context = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let named = context.and_then(|context| context.supplemental_groups.as_deref());
    let named = named.unwrap_or_default();
    let groups = volumes.values().filter_map(|volume| volume.group);
    groups.filter(|group| !named.contains(group)).collect()
}

/// Content of the hosts file of a pod with its own network.
pub fn pod_hosts(pod: &Pod, hostname: &PodHostname, pod_ips: &[String]) -> String {
    let mut out = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    let name = &hostname.name;
    for ip in pod_ips {
        let _ = match hostname.domain.as_str() {
            "" => writeln!(out, "{ip}\t{name}"),
            domain => writeln!(out, "{ip}\t{name}.{domain}\t{name}"),
        };
    }
    out.push_str(&host_aliases(pod));
    out
}

/// Content of the hosts file of a pod in the node's network: the node's own, and the aliases.
pub fn node_hosts(pod: &Pod, node_file: &[u8]) -> Vec<u8> {
    let mut out = b"# Kubernetes-managed hosts file (host network).\n".to_vec();
    out.extend_from_slice(node_file);
    out.extend_from_slice(host_aliases(pod).as_bytes());
    out
}

fn host_aliases(pod: &Pod) -> String {
    let aliases = pod.spec().and_then(|spec| spec.host_aliases.as_deref());
    let aliases = aliases.unwrap_or_default();
    let mut out = String::new();
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(out, "{}\t{names}", alias.ip);
    }
    out
}

fn volume_mounts(container: &Container) -> &[VolumeMount] {
    container.volume_mounts.as_deref().unwrap_or_default()
}

fn find<'a>(
    container: &Container,
    mount: &VolumeMount,
    volumes: &'a VolumePaths,
) -> anyhow::Result<&'a VolumePath> {
    volumes.get(&mount.name).with_context(|| {
        let (volume, container) = (&mount.name, &container.name);
        format!("cannot find volume {volume:?} to mount into container {container:?}")
    })
}

/// The subPath of a mount with variables expanded; an error if it leaves the volume.
fn sub_path(mount: &VolumeMount, variables: &Environment) -> anyhow::Result<Option<String>> {
    let sub_path = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        Some(expression) => expand_strictly(expression, variables)
            .map_err(|name| anyhow!("missing value for {name:?}"))?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if sub_path.is_empty() {
        return Ok(None);
    }
    ensure!(!sub_path.starts_with('/'), "error SubPath `{sub_path}` must not be an absolute path");
    ensure!(
        components(&sub_path).is_ok(),
        "unable to provision SubPath `{sub_path}`: must not contain '..'"
    );
    Ok(Some(sub_path))
}

fn propagation(mount: &VolumeMount) -> anyhow::Result<v1::MountPropagation> {
    use v1::MountPropagation as Propagation;
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::PropagationPrivate),
        Some("HostToContainer") => Ok(Propagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(Propagation::PropagationBidirectional),
        Some(other) => bail!("invalid MountPropagation mode: {other:?}"),
    }
}

/// Whether a mount is read-only with everything below it (upstream's `resolveRecursiveReadOnly`).
pub fn recursive_read_only(mount: &VolumeMount, supported: bool) -> anyhow::Result<bool> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let volume = &mount.name;
    ensure!(
        mount.read_only == Some(true),
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but it is not read-only"
    );
    let propagation = mount.mount_propagation.as_deref().unwrap_or("None");
    ensure!(
        propagation == "None",
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"
    );
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => bail!(
            "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but it is not supported by the runtime"
        ),
        other => bail!(
            "failed to resolve recursive read-only mode: unknown recursive read-only mode {other:?}"
        ),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_string() } else { format!("/{path}") }
}

/// CRI paths are strings; the kubelet's own paths are UTF-8.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
