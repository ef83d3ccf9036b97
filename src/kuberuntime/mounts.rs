//! What a container sees of the node's file system. Pure.

use super::env::Environment;
use super::expansion::expand_strictly;
use super::hostname::PodHostname;
use crate::cri::v1;
use crate::model::{Pod, PodExt};
use crate::volumes::{SubPathRequest, VolumePaths, components};
use k8s_openapi::api::core::v1::{Container, VolumeMount};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Where containers look for hosts.
const ETC_HOSTS: &str = "/etc/hosts";

/// Why a volume cannot be mounted into a container; texts as upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// The pod has no such volume.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume {
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
    },
    /// `mountPropagation` is none of the three.
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    /// `recursiveReadOnly` is none of the three.
    #[error("unknown recursive read-only mode {0:?}")]
    RecursiveMode(String),
    /// Recursively read-only, but not read-only.
    #[error("volume {0:?} requested recursive read-only mode, but it is not read-only")]
    NotReadOnly(String),
    /// Recursively read-only, but later mounts would appear.
    #[error(
        "volume {volume:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"
    )]
    RecursiveWithPropagation {
        /// Name of the volume.
        volume: String,
        /// What it asks for.
        propagation: String,
    },
    /// The runtime cannot.
    #[error(
        "volume {0:?} requested recursive read-only mode, but it is not supported by the runtime"
    )]
    RecursiveUnsupported(String),
    /// `subPathExpr` refers to a variable the container does not have.
    #[error("missing value for {0:?}")]
    MissingVariable(String),
    /// A sub-path that does not stay in its volume.
    #[error(
        "unable to provision SubPath `{0}`: must be a relative path that does not contain '..'"
    )]
    SubPath(String),
    /// A sub-path was not prepared before the mounts were asked for.
    #[error("subPath of volume {0:?} was not prepared")]
    NotPrepared(String),
}

/// Where on the node everything is that a container mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFiles {
    /// Bound sub-paths by index of the volume mount.
    pub sub_paths: BTreeMap<usize, PathBuf>,
    /// The managed hosts file, if this container gets it.
    pub hosts_file: Option<PathBuf>,
    /// The file for its last words, if it wants one.
    pub termination_log: Option<PathBuf>,
}

/// The sub-paths that have to be bound before the container can be created.
pub fn sub_path_requests(
    container: &Container,
    volumes: &VolumePaths,
    environment: &Environment,
) -> Result<Vec<SubPathRequest>, MountError> {
    let mut requests = Vec::new();
    for (mount_index, mount) in volume_mounts(container).iter().enumerate() {
        let Some(sub_path) = sub_path(mount, environment)? else {
            continue;
        };
        if components(&sub_path).is_err() {
            return Err(MountError::SubPath(sub_path));
        }
        requests.push(SubPathRequest {
            mount_index,
            volume: mount.name.clone(),
            volume_path: find(container, mount, volumes)?.host_path.clone(),
            sub_path,
        });
    }
    Ok(requests)
}

/// Whether the container gets the managed hosts file: not when it brings its own, and not in a pod
/// that has no address.
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
    files: &ContainerFiles,
    recursive_read_only_supported: bool,
) -> Result<Vec<v1::Mount>, MountError> {
    let mut mounts = Vec::new();
    for (index, mount) in volume_mounts(container).iter().enumerate() {
        let volume = find(container, mount, volumes)?;
        let host_path = match has_sub_path(mount) {
            false => &volume.host_path,
            true => files
                .sub_paths
                .get(&index)
                .ok_or_else(|| MountError::NotPrepared(mount.name.clone()))?,
        };
        mounts.push(v1::Mount {
            container_path: absolute(&mount.mount_path),
            host_path: text(host_path),
            readonly: mount.read_only == Some(true),
            selinux_relabel: volume.managed,
            propagation: propagation(mount)?.into(),
            recursive_read_only: recursive_read_only(mount, recursive_read_only_supported)?,
            ..Default::default()
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
) -> Result<&'a crate::volumes::VolumePath, MountError> {
    volumes
        .get(&mount.name)
        .ok_or_else(|| MountError::NoVolume {
            volume: mount.name.clone(),
            container: container.name.clone(),
        })
}

fn has_sub_path(mount: &VolumeMount) -> bool {
    [&mount.sub_path, &mount.sub_path_expr]
        .into_iter()
        .flatten()
        .any(|path| !path.is_empty())
}

fn sub_path(mount: &VolumeMount, variables: &Environment) -> Result<Option<String>, MountError> {
    if let Some(expression) = mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        let expanded = expand_strictly(expression, variables);
        return expanded.map(Some).map_err(MountError::MissingVariable);
    }
    Ok(mount.sub_path.clone().filter(|path| !path.is_empty()))
}

fn propagation(mount: &VolumeMount) -> Result<v1::MountPropagation, MountError> {
    use v1::MountPropagation as Propagation;
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::PropagationPrivate),
        Some("HostToContainer") => Ok(Propagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(Propagation::PropagationBidirectional),
        Some(other) => Err(MountError::Propagation(other.to_string())),
    }
}

fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, MountError> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let volume = mount.name.clone();
    if mount.read_only != Some(true) {
        return Err(MountError::NotReadOnly(volume));
    }
    let propagation = mount.mount_propagation.as_deref().unwrap_or("None");
    if propagation != "None" {
        return Err(MountError::RecursiveWithPropagation {
            volume,
            propagation: propagation.to_string(),
        });
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(MountError::RecursiveUnsupported(volume)),
        other => Err(MountError::RecursiveMode(other.to_string())),
    }
}

fn absolute(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_string(),
        false => format!("/{path}"),
    }
}

/// The runtime takes paths as text; the kubelet's own are text throughout.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
