//! emptyDir volumes: scratch space that lives as long as the pod.

use super::KindRow;
use super::content::{DISK_MODE, MEMORY_MODE};
use super::plan::Planning;
use crate::model::{Pod, PodExt as _, Quantity, requests};
use crate::volumes::error::cannot;
use crate::volumes::group::{READ_WRITE, VolumeGroup};
use crate::volumes::pod_dirs::{create_dir, write_marker};
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{Mounter, Unsupported, VolumeError, VolumePath, VolumePlugin};
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

pub(super) const KIND: KindRow =
    KindRow { plugins: &[VolumePlugin::EMPTY_DIR], plan, ..KindRow::NONE };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::volumes) struct EmptyDir {
    medium: Medium,
    /// The pod's `fsGroup`.
    group: VolumeGroup,
    /// Its project quota, if its usage may be monitored by one.
    pub(in crate::volumes) quota: Option<ProjectQuota>,
}

/// Where an emptyDir's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
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
pub(in crate::volumes) enum ProjectQuota {
    /// The volume has no limit, and neither has the quota.
    Unlimited,
    /// The volume has a limit, which eviction enforces; the quota's limit is so high that it is never reached.
    OutOfReach,
}

impl ProjectQuota {
    /// The quota's limit in bytes: upstream's `maxQuota` of ext4.
    fn limit(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::OutOfReach => Some((1 << 58) - 1),
        }
    }
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some(source) = &planning.volume.empty_dir else {
        return Ok(None);
    };
    let medium = medium(planning, source)?;
    Ok(Some(Arc::new(EmptyDir {
        medium,
        group: planning.group()?,
        quota: project_quota(planning.pod, source, medium)?,
    })))
}

impl Kind for EmptyDir {
    fn directory(&self) -> Option<(VolumePlugin, bool)> {
        Some((VolumePlugin::EMPTY_DIR, self.medium != Medium::Disk))
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        attempt.create(move |attempt| self.make(attempt))
    }
}

impl EmptyDir {
    /// Sets up a volume unless a marker shows that this was done (and, in memory, it is still mounted), so that changes of
    /// its mode and owner by containers are kept.
    fn make(&self, attempt: &Attempt) -> anyhow::Result<ReadyVolume> {
        let (pod, manager, medium) = (&attempt.pod.directory, &attempt.manager, self.medium);
        let directory = pod.volume(VolumePlugin::EMPTY_DIR, &attempt.name)?;
        let marker = pod.empty_dir_marker(&attempt.name)?;
        let mounted = match medium {
            Medium::Disk => true,
            Medium::Memory { .. } | Medium::HugePages { .. } => {
                manager.mounter.is_mounted(&directory).with_context(cannot("read", &directory))?
            }
        };
        let quota = manager.quotas.as_ref().zip(self.quota);
        let project = if mounted && marker.join("ready").exists() && directory.is_dir() {
            quota.and_then(|(quotas, _)| quotas.recorded(&directory))
        } else {
            create_dir(&pod.volumes_of(VolumePlugin::EMPTY_DIR), 0o750)?;
            create_dir(&directory, DISK_MODE)?;
            if !mounted {
                self.mount(&directory, manager.mounter.as_ref())?;
            }
            set_group_and_mode(&directory, medium, self.group)
                .with_context(cannot("set the group and mode of", &directory))?;
            // Before the marker, because only files created afterwards belong to the project.
            let pods = manager.root.pods_dir();
            let project =
                quota.and_then(|(quotas, quota)| quotas.assign(&directory, &pods, quota.limit()));
            write_marker(pod, &marker, b"", 0o644)?;
            project
        };
        let path = VolumePath { managed: true, project, ..VolumePath::of(directory) };
        Ok(path.into())
    }

    fn mount(&self, directory: &Path, mounter: &dyn Mounter) -> anyhow::Result<()> {
        match self.medium {
            Medium::Disk => Ok(()),
            Medium::Memory { size } => mounter
                .tmpfs(directory, size, MEMORY_MODE)
                .with_context(cannot("mount a tmpfs on", directory)),
            Medium::HugePages { page } => mounter
                .huge_pages(directory, page)
                .with_context(cannot("mount huge pages on", directory)),
        }
    }
}

fn medium(planning: &Planning<'_>, source: &EmptyDirVolumeSource) -> anyhow::Result<Medium> {
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory { size: planning.memory_size(source.size_limit.as_ref())? }),
        huge if huge.starts_with("HugePages") => {
            Ok(Medium::HugePages { page: huge_page_size(planning.pod, huge)? })
        }
        other => Err(Unsupported(format!("emptyDir medium {other:?}")).into()),
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
    let is_limited = [own, of_pod].iter().flatten().any(|limit| limit.value() > 0);
    Ok(Some(if is_limited { ProjectQuota::OutOfReach } else { ProjectQuota::Unlimited }))
}

/// The page size in bytes: that of the medium (`HugePages-2Mi`), or the only one that the pod requests (upstream's
/// `getPageSizeMountOption`).
fn huge_page_size(pod: &Pod, medium: &str) -> anyhow::Result<u64> {
    let bytes = |text: &str| Quantity::parse(text).map(Quantity::value).unwrap_or(0);
    let mut requested =
        requests::of_pod_level::<Quantity>(pod).map_err(VolumeError::from)?.requests;
    for container in pod.containers().iter().chain(pod.init_containers()) {
        requested.extend(
            requests::of_container::<Quantity>(container).map_err(VolumeError::from)?.requests,
        );
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
        (None, _) => Err(anyhow!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )),
        _ => Err(anyhow!(
            "medium: {medium} can't be used if container requests multiple huge page sizes"
        )),
    }
}

fn set_group_and_mode(directory: &Path, medium: Medium, group: VolumeGroup) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    let mode = match medium {
        // A directory created before a crash may have a mode restricted by the umask.
        Medium::Disk => DISK_MODE,
        Medium::Memory { .. } => MEMORY_MODE,
        Medium::HugePages { .. } => rustix::fs::fstat(&opened)?.st_mode & 0o7777,
    };
    group.set_group_and_mode(opened.as_fd(), mode, READ_WRITE, true)
}
