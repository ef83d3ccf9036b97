//! Which volumes a pod needs, and how each is set up. Pure.

use super::content::{self, ContentVolume, VolumeGroup};
use super::csi::spec::CsiVolumeSpec;
use super::{
    Unsupported, VolumeError, error::aggregate, ownership::ChangePolicy, paths::VolumePlugin,
    record::VolumeRecord,
};
use crate::apiserver::claim::PersistentVolumeClaimKey;
use crate::base::named_enum;
use crate::model::{ClaimRef, NodeFacts, Pod, PodExt, Quantity, requests};
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// One volume to set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedVolume {
    /// Its name in the pod.
    pub name: String,
    /// How it is set up.
    pub kind: VolumeKind,
}

/// The kinds of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// Scratch space that lives as long as the pod.
    EmptyDir {
        /// On disk, in memory or in huge pages.
        medium: Medium,
        /// The pod's `fsGroup`.
        group: VolumeGroup,
        /// Its project quota, if its usage may be monitored by one.
        quota: Option<ProjectQuota>,
    },
    /// A path of the node.
    HostPath {
        /// The path.
        path: String,
        /// The required type.
        check: HostPathCheck,
    },
    /// The volume of a claim.
    Claim(ClaimVolume),
    /// A volume of a CSI driver that the pod defines inline.
    Csi(InlineCsiVolume),
    /// A content volume: configMap, secret, downwardAPI or projected, whose files the kubelet writes.
    Content(ContentVolume),
    /// A volume that this kubelet cannot set up. Every attempt fails, so the pod waits as it does with upstream for a
    /// volume that cannot be mounted: nothing that is only missing here may fail a pod.
    Unsupported(Unsupported),
}

impl VolumeKind {
    /// Whether its data is in memory; `None` for data outside the pod's directory.
    pub(super) fn is_in_memory(&self) -> Option<bool> {
        match self {
            Self::EmptyDir { medium, .. } => Some(*medium != Medium::Disk),
            Self::Content(volume) => Some(volume.memory.is_some()),
            Self::HostPath { .. } | Self::Claim(_) | Self::Csi(_) | Self::Unsupported(_) => None,
        }
    }
}

impl PlannedVolume {
    /// The record to write before the volume is created; `None` if nothing is created.
    pub(super) fn record(&self) -> Option<VolumeRecord> {
        let (plugin, mounted) = match &self.kind {
            VolumeKind::EmptyDir { medium, .. } => {
                (VolumePlugin::EmptyDir, *medium != Medium::Disk)
            }
            VolumeKind::Content(volume) => (volume.plugin, volume.memory.is_some()),
            VolumeKind::HostPath { .. }
            | VolumeKind::Claim(_)
            | VolumeKind::Csi(_)
            | VolumeKind::Unsupported(_) => {
                return None;
            }
        };
        Some(VolumeRecord::new(&self.name, plugin, mounted))
    }

    /// The claim, if it is the volume of one.
    pub(super) fn claim(&self) -> Option<ClaimRef> {
        match &self.kind {
            VolumeKind::Claim(claim) => Some(ClaimRef {
                namespace: claim.key.namespace.clone(),
                name: claim.key.name.clone(),
            }),
            _ => None,
        }
    }

    /// The volume's specification, if it is a content volume.
    pub(super) fn content(&self) -> Option<&ContentVolume> {
        match &self.kind {
            VolumeKind::Content(volume) => Some(volume),
            _ => None,
        }
    }
}

/// A volume that a pod mounts by its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The claim.
    pub key: PersistentVolumeClaimKey,
    /// A container names it in `volumeMounts`.
    pub is_mounted: bool,
    /// A container names it in `volumeDevices`.
    pub is_mapped: bool,
    /// The pod mounts it read-only.
    pub read_only: bool,
    /// The pod's `fsGroup`.
    pub group: VolumeGroup,
    /// The pod's `fsGroupChangePolicy`.
    pub change_policy: ChangePolicy,
}

/// A volume of a CSI driver that a pod defines inline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineCsiVolume {
    /// The volume.
    pub spec: Arc<CsiVolumeSpec>,
    /// The pod's `fsGroup`.
    pub group: VolumeGroup,
    /// The pod's `fsGroupChangePolicy`.
    pub change_policy: ChangePolicy,
}

/// Where an emptyDir's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Below the kubelet's root directory.
    Disk,
    /// In a tmpfs.
    Memory {
        /// Size limit in bytes.
        size: u64,
    },
    /// In huge pages.
    HugePages {
        /// Page size in bytes.
        page: u64,
    },
}

/// A project quota that only monitors usage and never makes writes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectQuota {
    /// The volume has no limit, and neither has the quota.
    Unlimited,
    /// The volume has a limit, which eviction enforces; the quota's limit is so high that it is never reached.
    OutOfReach,
}

impl ProjectQuota {
    /// The quota's limit in bytes: upstream's `maxQuota` of ext4.
    pub(super) fn limit(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::OutOfReach => Some((1 << 58) - 1),
        }
    }
}

named_enum! {
    /// `hostPath.type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum HostPathCheck {
        /// Anything; need not exist.
        None = "",
        /// A directory; created with mode 0755 if nothing exists.
        DirectoryOrCreate = "DirectoryOrCreate",
        /// A directory.
        Directory = "Directory",
        /// A file; created with mode 0644 if nothing exists.
        FileOrCreate = "FileOrCreate",
        /// A file.
        File = "File",
        /// A unix socket.
        Socket = "Socket",
        /// A character device.
        CharDevice = "CharDevice",
        /// A block device.
        BlockDevice = "BlockDevice",
    }
}

/// The volumes that a container of the pod mounts or uses as device, in spec order; as upstream, others are not set
/// up. `certificates` is whether pods can have certificates.
pub fn plan(
    pod: &Pod,
    node: &NodeFacts,
    certificates: bool,
) -> Result<Vec<PlannedVolume>, VolumeError> {
    let used = UsedNames::of(pod);
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref());
    volumes
        .unwrap_or_default()
        .iter()
        // The runtime mounts image volumes.
        .filter(|volume| volume.image.is_none() && used.contains(&volume.name))
        .map(|volume| {
            let kind = match unsupported_source(volume, &used, certificates) {
                Some(what) => VolumeKind::Unsupported(what),
                None => kind_of(pod, volume, &used, node)?,
            };
            Ok(PlannedVolume {
                name: volume.name.clone(),
                kind,
            })
        })
        .collect()
}

/// The names of volumes that containers use.
struct UsedNames<'a> {
    mounted: BTreeSet<&'a str>,
    mapped: BTreeSet<&'a str>,
}

impl<'a> UsedNames<'a> {
    fn of(pod: &'a Pod) -> Self {
        let mut used = Self {
            mounted: BTreeSet::new(),
            mapped: BTreeSet::new(),
        };
        let containers = pod.containers().iter().chain(pod.init_containers());
        let containers = containers.map(|one| (&one.volume_mounts, &one.volume_devices));
        let ephemeral = pod.ephemeral_containers().iter();
        let ephemeral = ephemeral.map(|one| (&one.volume_mounts, &one.volume_devices));
        for (mounts, devices) in containers.chain(ephemeral) {
            let mounts = mounts.iter().flatten();
            used.mounted.extend(mounts.map(|mount| &*mount.name));
            let devices = devices.iter().flatten();
            used.mapped.extend(devices.map(|device| &*device.name));
        }
        used
    }

    fn contains(&self, name: &str) -> bool {
        self.mounted.contains(name) || self.mapped.contains(name)
    }
}

/// What this kubelet lacks for any volume of this specification, if it lacks something.
fn unsupported_source(
    volume: &Volume,
    used: &UsedNames<'_>,
    certificates: bool,
) -> Option<Unsupported> {
    let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    if used.mapped.contains(volume.name.as_str()) && !is_claim {
        let source = source_name(volume);
        return Some(Unsupported(format!(
            "volumeDevices of a volume with {source}"
        )));
    }
    let sources = volume.projected.as_ref().and_then(|it| it.sources.as_ref());
    let mut sources = sources.into_iter().flatten();
    let wants_certificate = sources.any(|source| source.pod_certificate.is_some());
    (wants_certificate && !certificates).then(|| {
        Unsupported("podCertificate without the feature gate PodCertificateRequest".into())
    })
}

fn kind_of(
    pod: &Pod,
    volume: &Volume,
    used: &UsedNames<'_>,
    node: &NodeFacts,
) -> Result<VolumeKind, VolumeError> {
    let fail = |source| VolumeError::SetUp {
        volume: volume.name.clone(),
        source,
    };
    if let Some(empty_dir) = &volume.empty_dir {
        let medium = medium(pod, empty_dir, node, &fail)?;
        return Ok(VolumeKind::EmptyDir {
            medium,
            group: group(pod).map_err(fail)?,
            quota: project_quota(pod, empty_dir, medium)?,
        });
    }
    if let Some(host_path) = &volume.host_path {
        let wanted = host_path.type_.as_deref().unwrap_or_default();
        return Ok(VolumeKind::HostPath {
            path: host_path.path.clone(),
            check: HostPathCheck::parse(wanted)
                .with_context(|| format!("{wanted} is an invalid volume type"))
                .map_err(fail)?,
        });
    }
    if let Some((key, read_only)) = claim_of(pod, volume) {
        return Ok(VolumeKind::Claim(ClaimVolume {
            key,
            is_mounted: used.mounted.contains(volume.name.as_str()),
            is_mapped: used.mapped.contains(volume.name.as_str()),
            read_only,
            group: group(pod).map_err(fail)?,
            change_policy: change_policy(pod),
        }));
    }
    if let Some(source) = &volume.csi {
        let spec = CsiVolumeSpec::from_inline(source, &volume.name, &pod.uid(), pod.namespace());
        return Ok(VolumeKind::Csi(InlineCsiVolume {
            spec: Arc::new(spec.map_err(|error| fail(error.into()))?),
            group: group(pod).map_err(fail)?,
            change_policy: change_policy(pod),
        }));
    }
    let sources = content::sources(pod, volume, node);
    let Some((plugin, sources)) = sources.map_err(|errors| fail(aggregate(&errors)))? else {
        return Ok(VolumeKind::Unsupported(Unsupported(source_name(volume))));
    };
    let points = content::mount_points(pod, &volume.name);
    Ok(VolumeKind::Content(ContentVolume {
        plugin,
        // Configmaps are the only content volumes that upstream keeps on disk.
        memory: match plugin {
            VolumePlugin::ConfigMap => None,
            _ => Some(memory_size(pod, None, node, &fail)?),
        },
        group: group(pod).map_err(fail)?,
        sources,
        mount_points: points.map_err(fail)?,
    }))
}

/// The claim of a volume, if it has one: the claim that it names, or the one that is generated for it; and whether the pod
/// mounts it read-only.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<(PersistentVolumeClaimKey, bool)> {
    let key = |name, generated_for| PersistentVolumeClaimKey {
        namespace: pod.namespace().to_owned(),
        name,
        generated_for,
    };
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only.unwrap_or(false);
        return Some((key(claim.claim_name.clone(), None), read_only));
    }
    volume.ephemeral.as_ref()?;
    let name = format!("{}-{}", pod.name(), volume.name);
    Some((key(name, Some(pod.name().to_owned())), false))
}

fn group(pod: &Pod) -> anyhow::Result<VolumeGroup> {
    let security = pod.spec().and_then(|spec| spec.security_context.as_ref());
    match security.and_then(|context| context.fs_group) {
        None => Ok(VolumeGroup(None)),
        Some(group) => u32::try_from(group)
            .map(|group| VolumeGroup(Some(group)))
            .map_err(|_| Unsupported(format!("fsGroup {group}")).into()),
    }
}

fn change_policy(pod: &Pod) -> ChangePolicy {
    let security = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let policy = security.and_then(|context| context.fs_group_change_policy.as_deref());
    match policy {
        Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
        _ => ChangePolicy::Always,
    }
}

fn medium(
    pod: &Pod,
    empty_dir: &EmptyDirVolumeSource,
    node: &NodeFacts,
    fail: &impl Fn(anyhow::Error) -> VolumeError,
) -> Result<Medium, VolumeError> {
    match empty_dir.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory {
            size: memory_size(pod, empty_dir.size_limit.as_ref(), node, fail)?,
        }),
        huge if huge.starts_with("HugePages") => Ok(Medium::HugePages {
            page: huge_page_size(pod, huge, fail)?,
        }),
        other => {
            let what = format!("emptyDir medium {other:?}");
            Err(fail(Unsupported(what).into()))
        }
    }
}

/// The project quota of a volume. Only in a user namespace are processes unable to move files to another project, so
/// other pods are not monitored by quotas (upstream's `assignQuota`, and `AddPodToVolume` for the limit).
fn project_quota(
    pod: &Pod,
    empty_dir: &EmptyDirVolumeSource,
    medium: Medium,
) -> Result<Option<ProjectQuota>, VolumeError> {
    let host_users = pod.spec().and_then(|spec| spec.host_users).unwrap_or(true);
    if host_users || medium != Medium::Disk {
        return Ok(None);
    }
    let own = empty_dir.size_limit.as_ref();
    let own = own.and_then(|limit| Quantity::from_api(limit).ok());
    let of_pod = requests::of_pod::<Quantity>(pod)?.limit(requests::EPHEMERAL_STORAGE);
    let is_limited = [own, of_pod]
        .iter()
        .flatten()
        .any(|limit| limit.value() > 0);
    Ok(Some(if is_limited {
        ProjectQuota::OutOfReach
    } else {
        ProjectQuota::Unlimited
    }))
}

/// The page size in bytes: that of the medium (`HugePages-2Mi`), or the only one that the pod requests (upstream's
/// `getPageSizeMountOption`).
fn huge_page_size(
    pod: &Pod,
    medium: &str,
    fail: &impl Fn(anyhow::Error) -> VolumeError,
) -> Result<u64, VolumeError> {
    let bytes = |text: &str| Quantity::parse(text).map(Quantity::value).unwrap_or(0);
    let mut requested = requests::of_pod_level::<Quantity>(pod)?.requests;
    for container in pod.containers().iter().chain(pod.init_containers()) {
        requested.extend(requests::of_container::<Quantity>(container)?.requests);
    }
    let mut sizes: BTreeSet<i64> = requested
        .keys()
        .filter_map(|name| name.strip_prefix(requests::HUGEPAGES_PREFIX))
        .map(bytes)
        .collect();
    if let Some(size) = medium.strip_prefix("HugePages-") {
        let size = bytes(size);
        sizes.retain(|requested| *requested == size);
    }
    let mut sizes = sizes.into_iter();
    match (sizes.next(), sizes.next()) {
        (Some(size), None) => Ok(u64::try_from(size).unwrap_or(0)),
        (None, _) => Err(fail(anyhow!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        ))),
        _ => Err(fail(anyhow!(
            "medium: {medium} can't be used if container requests multiple huge page sizes"
        ))),
    }
}

/// The size limit of a volume in memory in bytes: the minimum of its `sizeLimit`, the pod's memory limit and the
/// node's allocatable memory.
fn memory_size(
    pod: &Pod,
    limit: Option<&ApiQuantity>,
    node: &NodeFacts,
    fail: &impl Fn(anyhow::Error) -> VolumeError,
) -> Result<u64, VolumeError> {
    let own = match limit {
        Some(limit) => {
            let limit = Quantity::from_api(limit);
            Some(limit.context("sizeLimit").map_err(fail)?.value())
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

/// The volume's source, by its name in the API: the only key besides `name`.
fn source_name(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object();
    let source = fields.and_then(|fields| fields.keys().find(|key| *key != "name"));
    match source {
        Some(source) => format!("source {source}"),
        None => "no source".to_owned(),
    }
}
