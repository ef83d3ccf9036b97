//! Disks of mode Block: the device is bound in the disk's directory, once per pod, and linked to from the pod's.

use super::super::bind::make_dir;
use super::DiskVolume;
use crate::base::{atomic_file, if_exists, spawn_blocking};
use crate::model::PodUid;
use crate::volumes::csi::devices;
use crate::volumes::csi::paths::DevicePaths;
use crate::volumes::disk_dirs::{self, BLOCK_DIRECTORY, DiskPlugin};
use crate::volumes::error::{cannot, io_error};
use crate::volumes::pod_volumes::Attempt;
use crate::volumes::{VolumeError, VolumeManagerInner, component};
use anyhow::Context as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of a pod's links to its devices of a plugin.
fn links(pod: &Path, plugin: DiskPlugin) -> PathBuf {
    pod.join(BLOCK_DIRECTORY).join(plugin.plugin().directory())
}

/// Maps the device into the pod; returns the link.
pub(super) async fn map(
    attempt: &Attempt,
    volume: &DiskVolume,
    directory: PathBuf,
    device: PathBuf,
) -> Result<PathBuf, VolumeError> {
    let (manager, pod) = (attempt.manager.clone(), attempt.pod.clone());
    let links = links(pod.directory.path(), volume.dir.plugin);
    let paths = DevicePaths {
        map: directory.join(component(pod.uid.as_str())?),
        link: links.join(component(&volume.name)?),
    };
    let (made, name) = (paths.clone(), volume.name.clone());
    let map = move || -> Result<(), VolumeError> {
        let _creating = pod.volumes.creation_guard()?;
        let mapped = make_dir(&links).and_then(|()| {
            let mapped = devices::map(&device, &made, manager.mounter.as_ref());
            mapped.with_context(cannot("map", &device))
        });
        let opened = mapped.map_err(|source| VolumeError::Map {
            step: "MapBlockVolume",
            volume: name,
            source,
        })?;
        manager.open_devices.lock().insert(made.map, opened);
        Ok(())
    };
    spawn_blocking(map).await??;
    let (csi, of) = (&attempt.manager.csi, &attempt.pod.mounting);
    csi.report_map(of, &volume.name, "globalMapPath", paths.map.parent());
    csi.report_map(of, &volume.name, "volumeMapPath", paths.link.parent());
    Ok(paths.link)
}

/// Undoes what was mapped into a pod.
pub(in crate::volumes::kinds) async fn tear_down(
    manager: Arc<VolumeManagerInner>,
    uid: PodUid,
    plugin: DiskPlugin,
) -> Result<(), VolumeError> {
    let unmap = move || -> Result<(), VolumeError> {
        let pod = manager.root.pod(&uid)?;
        let of_pod = links(pod.path(), plugin);
        let disks = disk_dirs::list(&manager.root, plugin);
        for dir in disks.map_err(io_error("list the disks of", &of_pod))? {
            let map = dir.path(&manager.root).join(component(uid.as_str())?);
            let found = if_exists(map.symlink_metadata()).map_err(io_error("read", &map))?;
            if !dir.is_block || found.is_none() {
                continue;
            }
            drop(manager.open_devices.lock().remove(&map));
            let unmapped = devices::unmap_device(&map, manager.mounter.as_ref());
            unmapped.map_err(|error| VolumeError::TearDown {
                volume: dir.name.clone(),
                why: format!("{error:#}"),
            })?;
        }
        let entries = if_exists(fs::read_dir(&of_pod)).map_err(io_error("list", &of_pod))?;
        for entry in entries.into_iter().flatten().flatten() {
            let link = entry.path();
            if_exists(fs::remove_file(&link)).map_err(io_error("remove", &link))?;
        }
        Ok(())
    };
    spawn_blocking(unmap).await?
}

/// Whether the directory of a disk has something of a pod.
pub(super) fn is_mapped(directory: &Path, files: &[&str]) -> anyhow::Result<bool> {
    let entries = if_exists(fs::read_dir(directory)).with_context(cannot("list", directory))?;
    for entry in entries.into_iter().flatten() {
        let name = entry.with_context(cannot("list", directory))?.file_name();
        let name = name.to_string_lossy();
        if !files.contains(&&*name) && !atomic_file::is_leftover(&name) {
            return Ok(true);
        }
    }
    Ok(false)
}
