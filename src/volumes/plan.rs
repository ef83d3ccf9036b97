//! Which volumes a pod needs and what each of them is. Pure.

use super::{SetUpError, VolumeError};
use crate::model::{Pod, PodExt, Quantity};
use crate::resources::{NodeFacts, requests};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume};
use std::collections::BTreeSet;

/// One volume to set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedVolume {
    /// Its name in the pod.
    pub name: String,
    /// What it is.
    pub kind: VolumeKind,
}

/// The kinds of volumes this kubelet provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// Scratch space that lives as long as the pod.
    EmptyDir {
        /// On disk, or in memory bounded to so many bytes.
        medium: Medium,
        /// Group that owns it (`fsGroup`).
        group: Option<i64>,
    },
    /// A path of the node.
    HostPath {
        /// The path.
        path: String,
        /// What must be there.
        check: HostPathCheck,
    },
}

/// Where an emptyDir's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Below the kubelet's root directory.
    Disk,
    /// In a tmpfs of at most so many bytes.
    Memory {
        /// Bytes.
        size: u64,
    },
}

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathCheck {
    /// Anything, even nothing.
    None,
    /// A directory, made (0755) if nothing is there.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, made (0644) if nothing is there.
    FileOrCreate,
    /// A file.
    File,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl HostPathCheck {
    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::None,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// The volumes that some container of the pod mounts, in spec order; others are left alone, as
/// upstream does.
pub fn plan(pod: &Pod, node: &NodeFacts) -> Result<Vec<PlannedVolume>, VolumeError> {
    let mounted = mounted_names(pod);
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref());
    volumes
        .unwrap_or_default()
        .iter()
        .filter(|volume| mounted.contains(volume.name.as_str()))
        .map(|volume| {
            let kind = kind_of(pod, volume, node)?;
            Ok(PlannedVolume {
                name: volume.name.clone(),
                kind,
            })
        })
        .collect()
}

fn mounted_names(pod: &Pod) -> BTreeSet<&str> {
    let regular = pod.containers().iter().chain(pod.init_containers());
    let ephemeral = pod
        .spec()
        .and_then(|spec| spec.ephemeral_containers.as_deref());
    regular
        .flat_map(|c| c.volume_mounts.as_deref().unwrap_or_default())
        .chain(
            ephemeral
                .unwrap_or_default()
                .iter()
                .flat_map(|c| c.volume_mounts.as_deref().unwrap_or_default()),
        )
        .map(|mount| mount.name.as_str())
        .collect()
}

fn kind_of(pod: &Pod, volume: &Volume, node: &NodeFacts) -> Result<VolumeKind, VolumeError> {
    let fail = |source| VolumeError::SetUp {
        volume: volume.name.clone(),
        source,
    };
    if let Some(empty_dir) = &volume.empty_dir {
        let security = pod.spec().and_then(|spec| spec.security_context.as_ref());
        return Ok(VolumeKind::EmptyDir {
            medium: match empty_dir.medium.as_deref().unwrap_or_default() {
                "" => Medium::Disk,
                "Memory" => Medium::Memory {
                    size: memory_size(pod, empty_dir, node, &fail)?,
                },
                other => {
                    let what = format!("emptyDir medium {other:?}");
                    return Err(fail(SetUpError::Unsupported(what)));
                }
            },
            group: security.and_then(|context| context.fs_group),
        });
    }
    if let Some(host_path) = &volume.host_path {
        let wanted = host_path.type_.as_deref().unwrap_or_default();
        return Ok(VolumeKind::HostPath {
            path: host_path.path.clone(),
            check: HostPathCheck::parse(wanted)
                .ok_or_else(|| fail(SetUpError::InvalidHostPathType(wanted.to_string())))?,
        });
    }
    Err(fail(SetUpError::Unsupported(unsupported_kind(volume))))
}

/// Bytes a memory-backed emptyDir may take: the least of its own limit, what bounds the pod, and
/// what the node has for pods.
fn memory_size(
    pod: &Pod,
    empty_dir: &EmptyDirVolumeSource,
    node: &NodeFacts,
    fail: &impl Fn(SetUpError) -> VolumeError,
) -> Result<u64, VolumeError> {
    let own = match &empty_dir.size_limit {
        Some(limit) => {
            let limit = Quantity::from_api(limit);
            Some(limit.map_err(|e| fail(SetUpError::SizeLimit(e)))?.value())
        }
        None => None,
    };
    let bounds = [own, requests::pod_memory_bound(pod)?];
    let size = bounds
        .into_iter()
        .flatten()
        .filter(|bytes| *bytes > 0)
        .fold(node.allocatable_memory_bytes, i64::min);
    Ok(u64::try_from(size).unwrap_or(0))
}

fn unsupported_kind(volume: &Volume) -> String {
    // The API's own name of whichever source is set: the only key beside `name`.
    let value = serde_json::to_value(volume).unwrap_or_default();
    let kind = value
        .as_object()
        .and_then(|fields| fields.keys().find(|key| *key != "name"));
    match kind {
        Some(kind) => format!("a {kind} volume"),
        None => "a volume without a source".to_string(),
    }
}
