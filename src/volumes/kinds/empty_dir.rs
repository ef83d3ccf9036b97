//! emptyDir volumes. Blocking.

use super::{
    Mounter, PodDir,
    content::{DISK_MODE, MEMORY_MODE, READ_WRITE, VolumeGroup},
    error::cannot,
    paths::VolumePlugin,
    plan::Medium,
    pod_dirs::{create_dir, write_marker},
    project_quotas::ProjectQuotas,
};
use crate::model::ProjectId;
use anyhow::Context as _;
use rustix::{
    fd::AsFd,
    fs::{Mode, OFlags},
};
use std::path::{Path, PathBuf};

/// A request to count the volume's usage by a quota project.
pub(super) struct ProjectRequest<'a> {
    pub(super) quotas: &'a ProjectQuotas,
    /// The directory of all pods.
    pub(super) pods: &'a Path,
    /// Limit in bytes, if there is one.
    pub(super) limit: Option<u64>,
}

/// Sets up a volume unless a marker shows that this was done (and, in memory, it is still mounted), so that changes of
/// its mode and owner by containers are kept. Returns its path, and its project if one was requested.
pub(super) fn set_up(
    pod: &PodDir,
    volume: &str,
    medium: Medium,
    group: VolumeGroup,
    project: Option<ProjectRequest<'_>>,
    mounter: &dyn Mounter,
) -> anyhow::Result<(PathBuf, Option<ProjectId>)> {
    let directory = pod.volume(VolumePlugin::EmptyDir, volume)?;
    let marker = pod.empty_dir_marker(volume)?;
    let mounted = match medium {
        Medium::Disk => true,
        Medium::Memory { .. } | Medium::HugePages { .. } => mounter
            .is_mounted(&directory)
            .with_context(cannot("read", &directory))?,
    };
    if mounted && marker.join("ready").exists() && directory.is_dir() {
        let project = project.and_then(|request| request.quotas.recorded(&directory));
        return Ok((directory, project));
    }
    create_dir(&pod.volumes_of(VolumePlugin::EmptyDir), 0o750)?;
    create_dir(&directory, DISK_MODE)?;
    if !mounted {
        mount(&directory, medium, mounter)?;
    }
    set_group_and_mode(&directory, medium, group)
        .with_context(cannot("set the group and mode of", &directory))?;
    // Before the marker, because only files created afterwards belong to the project.
    let project = project.and_then(|it| it.quotas.assign(&directory, it.pods, it.limit));
    write_marker(pod, &marker, b"", 0o644)?;
    Ok((directory, project))
}

fn mount(directory: &Path, medium: Medium, mounter: &dyn Mounter) -> anyhow::Result<()> {
    match medium {
        Medium::Disk => Ok(()),
        Medium::Memory { size } => mounter
            .tmpfs(directory, size, MEMORY_MODE)
            .with_context(cannot("mount a tmpfs on", directory)),
        Medium::HugePages { page } => mounter
            .huge_pages(directory, page)
            .with_context(cannot("mount huge pages on", directory)),
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
