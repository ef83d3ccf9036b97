//! What an earlier kubelet has left of CSI volumes: this one before it was killed, an older or newer version of it, or a
//! Go kubelet. Blocking.
//!
//! Read once at the start. The Node's `volumesInUse` must not shrink before, because a volume that is missing there is
//! detached. Nothing on or below a mount is opened: a server that is gone must not stop the start.

mod merge;
#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod tests;

pub use merge::{
    Evidence, FoundBlock, FoundPublish, FoundStage, Leftover, OnDisk, Recovered, RecoveredVolume,
    UnknownVolume, merge,
};

use super::identity::{
    BLOCK_DIRECTORY, BLOCK_PUBLISH, BLOCK_STAGING, NameField, check_driver, check_file_name,
};
use super::mount_table::MountTable;
use super::paths::{self, PublishDir, StageDir};
use super::vol_data::{self, VolDataError};
use super::{files, record};
use crate::base::if_exists;
use crate::model::PodUid;
use crate::volumes::KubeletRoot;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileType};
use std::io;
use std::path::Path;

/// Finds the volumes of an earlier kubelet.
pub fn recover(root: &KubeletRoot, mounts: &MountTable) -> Recovered {
    merge(scan(root, mounts), mounts)
}

/// Removes leftovers, and returns those that cannot be removed. With mounts that were read after the leftovers were found.
pub fn remove_leftovers(leftovers: &[Leftover], mounts: &MountTable) -> Vec<(Leftover, io::Error)> {
    let failed = leftovers.iter().filter_map(|leftover| {
        let removed = match leftover {
            Leftover::Stage(directory) => files::remove_stage(directory, mounts),
            Leftover::Publish(_, directory) => files::remove_published(directory, mounts),
            Leftover::Block(directory, published) => {
                let mut published = published.iter();
                let removed = published.try_for_each(|it| files::remove_published(it, mounts));
                removed.and_then(|()| files::remove_stage(directory, mounts))
            }
        };
        removed.err().map(|error| (leftover.clone(), error))
    });
    failed.collect()
}

/// Reads everything.
fn scan(root: &KubeletRoot, mounts: &MountTable) -> OnDisk {
    let mut found = OnDisk::default();
    match record::read_all(root) {
        Ok(records) => found.records = Some(records),
        Err(error) => found.unlisted(&paths::records(root), &error),
    }
    let mut links = BTreeMap::<String, BTreeSet<PodUid>>::new();
    for name in found.directories(&root.pods_dir()) {
        let uid = PodUid::from(name.as_str());
        let Ok(pod) = root.pod(&uid) else { continue };
        let volumes = paths::pod_volumes(&pod);
        for volume in found.names(&paths::pod_devices(&pod)) {
            links.entry(volume).or_default().insert(uid.clone());
        }
        for spec_name in found.directories(&volumes) {
            let is_uid = check_file_name(NameField::PodUid, &name).is_ok();
            match PublishDir::new(&pod, &spec_name) {
                Ok(directory) if is_uid => {
                    let data = unless_mounted(directory.path(), mounts, || {
                        vol_data::read_published(&directory, &uid, &spec_name)
                    });
                    found.published.push(FoundPublish {
                        directory,
                        pod: uid.clone(),
                        spec_name,
                        data,
                    });
                }
                _ => found.foreign(&volumes.join(&spec_name), mounts),
            }
        }
    }
    let drivers = paths::drivers(root);
    for driver in found.directories(&drivers) {
        if driver == BLOCK_DIRECTORY {
            continue;
        }
        let directory = drivers.join(&driver);
        if check_driver(&driver).is_err() {
            found.foreign(&directory, mounts);
            continue;
        }
        for name in found.directories(&directory) {
            let Ok(stage) = StageDir::found(root, &driver, &name) else {
                found.foreign(&directory.join(&name), mounts);
                continue;
            };
            let data = unless_mounted(stage.path(), mounts, || {
                vol_data::read_staged(&stage, &driver, &name)
            });
            found.staged.push(FoundStage { directory: stage, driver: driver.clone(), name, data });
        }
    }
    scan_block_volumes(root, mounts, links, &mut found);
    found
}

/// Finds block volumes by all of their directories. `links` are the pods with links to devices, by PersistentVolume.
fn scan_block_volumes(
    root: &KubeletRoot,
    mounts: &MountTable,
    mut links: BTreeMap<String, BTreeSet<PodUid>>,
    found: &mut OnDisk,
) {
    let all = paths::block_volumes(root);
    let mut names: BTreeSet<String> = links.keys().cloned().collect();
    let parents = [&all, &all.join(BLOCK_STAGING), &all.join(BLOCK_PUBLISH)];
    for directory in parents {
        names.extend(found.directories(directory));
    }
    for name in names {
        if [BLOCK_STAGING, BLOCK_PUBLISH].contains(&name.as_str()) {
            continue;
        }
        let Ok(directory) = StageDir::found_block(root, &name) else {
            for parent in parents {
                found.foreign(&parent.join(&name), mounts);
            }
            continue;
        };
        let mut uids = links.remove(&name).unwrap_or_default();
        if let Some(devices) = directory.devices() {
            for of_pods in [&devices.maps, &devices.published] {
                let entries = found.names(of_pods).into_iter();
                uids.extend(entries.map(|name| PodUid::from(name.as_str())));
            }
        }
        let pods = uids.into_iter().filter_map(|uid| {
            let pod = root.pod(&uid).ok()?;
            let directory = PublishDir::block(root, &pod, &uid, &name).ok()?;
            Some((uid, directory))
        });
        let pods = pods.collect();
        let data =
            unless_mounted(directory.path(), mounts, || vol_data::read_block(&directory, &name));
        found.block.push(FoundBlock { directory, name, pods, data });
    }
}

/// A file in a directory that is itself a mount is not read: that may hang, and it is not the kubelet's.
fn unless_mounted<T>(
    directory: &Path,
    mounts: &MountTable,
    read: impl FnOnce() -> Result<T, VolDataError>,
) -> Result<T, VolDataError> {
    if mounts.is_mount_point(directory) {
        let why = "something is mounted on its directory";
        return Err(VolDataError::Unreadable(why.to_owned()));
    }
    read()
}

impl OnDisk {
    /// The names of the directories in a directory, sorted; none if it does not exist.
    fn directories(&mut self, path: &Path) -> Vec<String> {
        self.entries(path, |kind| kind.is_dir())
    }

    /// The names of all entries of a directory, sorted; none if it does not exist.
    fn names(&mut self, path: &Path) -> Vec<String> {
        self.entries(path, |_| true)
    }

    fn entries(&mut self, path: &Path, is_wanted: impl Fn(FileType) -> bool) -> Vec<String> {
        let mut names = Vec::new();
        let listed = if_exists(fs::read_dir(path)).and_then(|entries| {
            for entry in entries.into_iter().flatten() {
                let entry = entry?;
                if is_wanted(entry.file_type()?) {
                    // A name that is not UTF-8 becomes one that is refused by the checks or is not found.
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            Ok(())
        });
        if let Err(error) = listed {
            self.unlisted(path, &error);
        }
        names.sort();
        names
    }

    fn unlisted(&mut self, path: &Path, error: &io::Error) {
        let why = format!("the directory cannot be listed: {error}");
        self.unknown.push(UnknownVolume::any(path, why));
    }

    /// A directory that is no kubelet's. Only a mount makes it one of the unknown volumes.
    fn foreign(&mut self, path: &Path, mounts: &MountTable) {
        if mounts.is_mounted(path) {
            let why = "it has a mount, but not the name of a volume";
            self.unknown.push(UnknownVolume::any(path, why));
        }
    }
}
