//! The driver's volumes, which are directories, and their mounts.

use super::proto::VolumeCapability;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

/// Whether volumes are mounted, which needs root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounts {
    None,
    Bind,
}

/// A volume, by what the driver believes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverVolume {
    pub(crate) capacity: i64,
    /// The capacity that the node has reached.
    pub(crate) node_capacity: i64,
    /// The name in the request that created it.
    pub(crate) name: String,
    pub(crate) is_inline: bool,
    pub(crate) attached_to: BTreeSet<String>,
    /// The staging path, and how it is staged.
    pub(crate) staged: Option<(String, VolumeCapability)>,
    /// By target path, with whether it is read-only.
    pub(crate) published: BTreeMap<String, (VolumeCapability, bool)>,
}

/// All volumes of a driver. They outlive its processes.
#[derive(Clone)]
pub(crate) struct DriverVolumes {
    directory: PathBuf,
    mounts: Mounts,
    volumes: Arc<Mutex<BTreeMap<String, DriverVolume>>>,
    /// How many of the next mounts are left.
    left_mounts: Arc<AtomicU32>,
}

impl DriverVolumes {
    pub(super) fn new(directory: &Path, mounts: Mounts) -> Self {
        Self {
            directory: directory.into(),
            mounts,
            volumes: Arc::default(),
            left_mounts: Arc::default(),
        }
    }

    /// The directory with the data of a volume.
    pub(crate) fn data(&self, handle: &str) -> PathBuf {
        let is_file_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let name: String = handle
            .chars()
            .map(|c| if is_file_name(c) { c } else { '_' })
            .collect();
        self.directory.join(format!("of-{name}"))
    }

    /// Adds a volume and its directory.
    pub(crate) fn create(&self, handle: &str, capacity: i64, is_inline: bool) {
        fs::create_dir_all(self.data(handle)).unwrap();
        let volume = DriverVolume {
            capacity,
            node_capacity: capacity,
            is_inline,
            ..DriverVolume::default()
        };
        self.volumes.lock().unwrap().insert(handle.into(), volume);
    }

    /// Removes a volume with its data.
    pub(crate) fn delete(&self, handle: &str) {
        self.volumes.lock().unwrap().remove(handle);
        let _ = fs::remove_dir_all(self.data(handle));
    }

    pub(crate) fn get(&self, handle: &str) -> Option<DriverVolume> {
        self.volumes.lock().unwrap().get(handle).cloned()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, DriverVolume> {
        self.volumes.lock().unwrap().clone()
    }

    /// Changes a volume, if it exists.
    pub(crate) fn change(&self, handle: &str, change: impl FnOnce(&mut DriverVolume)) {
        if let Some(volume) = self.volumes.lock().unwrap().get_mut(handle) {
            change(volume);
        }
    }

    /// Mounts a directory on another one.
    pub(super) fn mount(&self, source: &Path, target: &Path, readonly: bool) -> io::Result<()> {
        if self.mounts == Mounts::None {
            return Ok(());
        }
        mount_bind(source, target)?;
        if readonly {
            let flags = MountFlags::BIND | MountFlags::RDONLY;
            mount_remount(target, flags, "")?;
        }
        Ok(())
    }

    /// This many of the next calls that unmount succeed and leave the mount.
    pub(crate) fn leave_mounts(&self, times: u32) {
        self.left_mounts.store(times, Ordering::SeqCst);
    }

    /// Unmounts a directory. One that is not mounted is no error.
    pub(super) fn unmount(&self, target: &Path) -> io::Result<()> {
        if self.mounts == Mounts::None {
            return Ok(());
        }
        let left = &self.left_mounts;
        let leave = |times: u32| times.checked_sub(1);
        if left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave)
            .is_ok()
        {
            return Ok(());
        }
        match unmount(target, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            unmounted => Ok(unmounted?),
        }
    }
}
