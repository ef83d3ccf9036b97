//! Taking a pod's volumes down, also after a crash: what is mounted is read from the kernel, what
//! was made is found by its place. Blocking.

use super::{Mounter, PodDir, VolumeError, paths::Plugin, pod_dirs::io_error, record};
use crate::host::{MountEntry, remove};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Unmounts what this kubelet mounted for the pod and removes its volumes. What others mounted below
/// the pod's directory is never touched and is an error. Doing it again is fine.
pub(super) fn volumes(pod: &PodDir, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    let places = places(pod);
    let mut used = record::exists(pod) || exists(&pod.empty_dir_notes())?;
    for place in &places {
        used |= exists(place)?;
    }
    if !used {
        return Ok(());
    }
    record::check(pod)?;
    unmount_ours(pod, &places, mounter)?;
    // The notes go first: after a crash in between, a volume is set up afresh.
    for tree in std::iter::once(&pod.empty_dir_notes()).chain(&places) {
        remove::tree(tree).map_err(io_error("remove", tree))?;
    }
    record::remove(pod)
}

/// Where this kubelet mounts and makes things for a pod; sub-paths first, as they are mounted from
/// volumes.
fn places(pod: &PodDir) -> Vec<PathBuf> {
    let volumes = Plugin::ALL.map(|plugin| pod.volumes_of(plugin));
    std::iter::once(pod.sub_paths()).chain(volumes).collect()
}

/// Removes the pod's directory once its volumes are down. `volumes` is only ever removed empty: a
/// volume of another kind (or another kubelet) that is still there is an error and keeps its data.
pub(super) fn directory(pod: &PodDir, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    if !exists(pod.path())? {
        return Ok(());
    }
    refuse_mounts(pod, mounter)?;
    let volumes = pod.volumes();
    if exists(&volumes)? {
        for plugin in fs::read_dir(&volumes)
            .map_err(io_error("list", &volumes))?
            .flatten()
        {
            remove_empty(&plugin.path())?;
        }
        remove_empty(&volumes)?;
    }
    remove::tree(pod.path()).map_err(io_error("remove", pod.path()))
}

fn unmount_ours(pod: &PodDir, ours: &[PathBuf], mounter: &dyn Mounter) -> Result<(), VolumeError> {
    let mounts = mounter
        .list()
        .map_err(io_error("list the mounts below", pod.path()))?;
    let mut below = mounts;
    below.retain(|mount| mount.is_beneath(pod.path()));
    let foreign = |mount: &&MountEntry| !ours.iter().any(|place| mount.is_beneath(place));
    if let Some(mount) = below.iter().find(foreign) {
        return Err(VolumeError::StillMounted(mount.mount_point.clone()));
    }
    // The youngest first: mounts on mounts.
    for mount in below.iter().rev() {
        mounter
            .unmount(&mount.mount_point)
            .map_err(io_error("unmount", &mount.mount_point))?;
    }
    if below.is_empty() {
        Ok(())
    } else {
        refuse_mounts(pod, mounter)
    }
}

fn refuse_mounts(pod: &PodDir, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    let mounts = mounter
        .list()
        .map_err(io_error("list the mounts below", pod.path()))?;
    match mounts.into_iter().find(|m| m.is_beneath(pod.path())) {
        Some(mount) => Err(VolumeError::StillMounted(mount.mount_point)),
        None => Ok(()),
    }
}

fn exists(path: &Path) -> Result<bool, VolumeError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

fn remove_empty(directory: &Path) -> Result<(), VolumeError> {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", directory)(error))
        }
        _ => Ok(()),
    }
}
