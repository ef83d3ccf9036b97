//! Tears down a pod's volumes, also after a crash: mounts are read from the kernel, and volumes are found by their
//! paths. Blocking.

use super::error::io_error;
use super::steps::{self, TearDownStep};
use super::{Mounter, PodDir, VolumeError, record};
use crate::base::if_exists;
use crate::host::remove;
use std::fs;
use std::path::Path;

/// Unmounts this kubelet's mounts for the pod and removes its volumes. Mounts of others below the pod's directory are
/// not touched and are an error. `release` releases the quota projects of removed volumes. Idempotent.
pub(super) fn tear_down_volumes(
    pod: &PodDir,
    mounter: &dyn Mounter,
    release: impl Fn(),
) -> Result<(), VolumeError> {
    let mut used = record::exists(pod) || exists(&pod.empty_dir_markers())?;
    for directory in &steps::directories(pod) {
        used |= exists(directory)?;
    }
    if !used {
        // No record, so mounts could only be those of another kubelet.
        return if has_entries(&pod.volumes())? { ensure_no_mounts(pod, mounter) } else { Ok(()) };
    }
    record::check(pod)?;
    let mounts = mounter.list().map_err(io_error("list the mounts below", pod.path()))?;
    let steps = steps::tear_down(pod, &mounts).map_err(VolumeError::StillMounted)?;
    steps.into_iter().try_for_each(|step| execute(pod, step, mounter, &release))
}

fn execute(
    pod: &PodDir,
    step: TearDownStep,
    mounter: &dyn Mounter,
    release: impl Fn(),
) -> Result<(), VolumeError> {
    match step {
        TearDownStep::Unmount(path) => mounter.unmount(&path).map_err(io_error("unmount", &path)),
        TearDownStep::CheckMounts => ensure_no_mounts(pod, mounter),
        TearDownStep::Remove(tree) => remove::tree(&tree).map_err(io_error("remove", &tree)),
        TearDownStep::ReleaseProjects => {
            release();
            Ok(())
        }
        TearDownStep::RemoveRecord => record::remove(pod),
    }
}

/// Removes the pod's directory after its volumes were torn down. `volumes` is removed only if it is empty: a volume
/// of another plugin or another kubelet that still exists is an error and keeps its data.
pub(super) fn remove_pod_directory(pod: &PodDir, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    if !exists(pod.path())? {
        return Ok(());
    }
    ensure_no_mounts(pod, mounter)?;
    let volumes = pod.volumes();
    if exists(&volumes)? {
        for plugin in fs::read_dir(&volumes).map_err(io_error("list", &volumes))?.flatten() {
            remove_empty(&plugin.path())?;
        }
        remove_empty(&volumes)?;
    }
    remove::tree(pod.path()).map_err(io_error("remove", pod.path()))
}

fn ensure_no_mounts(pod: &PodDir, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    let mounts = mounter.list().map_err(io_error("list the mounts below", pod.path()))?;
    match mounts.into_iter().find(|m| m.is_beneath(pod.path())) {
        Some(mount) => Err(VolumeError::StillMounted(mount.mount_point)),
        None => Ok(()),
    }
}

fn exists(path: &Path) -> Result<bool, VolumeError> {
    let found = if_exists(path.symlink_metadata()).map_err(io_error("read", path))?;
    Ok(found.is_some())
}

fn has_entries(directory: &Path) -> Result<bool, VolumeError> {
    let entries = if_exists(fs::read_dir(directory)).map_err(io_error("list", directory))?;
    Ok(entries.is_some_and(|mut entries| entries.next().is_some()))
}

fn remove_empty(directory: &Path) -> Result<(), VolumeError> {
    let removed = if_exists(fs::remove_dir(directory)).map(drop);
    removed.map_err(io_error("remove", directory))
}
