//! The driver's volumes, which are directories, and their mounts.

use super::proto::VolumeCapability;
use super::{DriverConfig, kept};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, io};

/// Whether volumes are mounted, which needs root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounts {
    None,
    Bind,
    /// Each volume is a file system in memory, which ends where the volume does.
    Tmpfs,
}

/// A volume, by what the driver believes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverVolume {
    pub(crate) capacity: i64,
    /// The capacity that the node has reached.
    pub(crate) node_capacity: i64,
    /// Why it is abnormal, if it is.
    pub(crate) abnormal: Option<String>,
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
    pub(super) mounts: Mounts,
    volumes: Arc<Mutex<BTreeMap<String, DriverVolume>>>,
    /// How many of the next mounts are left.
    left_mounts: Arc<AtomicU32>,
    /// The file in which they are kept.
    file: Option<PathBuf>,
}

impl DriverVolumes {
    /// The volumes that an earlier driver left, if they are kept.
    pub(super) fn new(config: &DriverConfig) -> Self {
        let file = config.is_kept.then(|| config.base.join("volumes.json"));
        let volumes = file.as_deref().map(kept::read).unwrap_or_default();
        Self {
            directory: config.base.join("volumes"),
            mounts: config.mounts,
            volumes: Arc::new(Mutex::new(volumes)),
            left_mounts: Arc::default(),
            file,
        }
    }

    fn modify(&self, modify: impl FnOnce(&mut BTreeMap<String, DriverVolume>)) {
        let mut volumes = self.volumes.lock().unwrap();
        modify(&mut volumes);
        if let Some(file) = &self.file {
            kept::write(file, &volumes);
        }
    }

    /// The directory with the data of a volume. It is no mount point: the Go kubelet does not have a volume unstaged
    /// while it sees another mount of the same directory.
    pub(crate) fn data(&self, handle: &str) -> PathBuf {
        let own = self.own_directory(handle);
        match self.mounts {
            Mounts::Tmpfs => own.join("data"),
            _ => own,
        }
    }

    fn own_directory(&self, handle: &str) -> PathBuf {
        let is_file_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let name: String = handle.chars().map(|c| if is_file_name(c) { c } else { '_' }).collect();
        self.directory.join(format!("of-{name}"))
    }

    /// Adds a volume and its directory.
    pub(crate) fn create(&self, handle: &str, capacity: i64, is_inline: bool) {
        let own = self.own_directory(handle);
        fs::create_dir_all(&own).unwrap();
        if self.mounts == Mounts::Tmpfs {
            let size = CString::new(format!("size={capacity},mode=755")).unwrap();
            mount("tmpfs", &own, "tmpfs", MountFlags::empty(), &*size).unwrap();
            fs::create_dir_all(self.data(handle)).unwrap();
        }
        let volume = DriverVolume {
            capacity,
            node_capacity: capacity,
            is_inline,
            ..DriverVolume::default()
        };
        self.modify(|volumes| drop(volumes.insert(handle.into(), volume)));
    }

    /// Removes a volume with its data.
    pub(crate) fn delete(&self, handle: &str) {
        self.modify(|volumes| drop(volumes.remove(handle)));
        let _ = self.detach_disk(handle);
        if self.mounts == Mounts::Tmpfs {
            unmount(self.own_directory(handle), UnmountFlags::NOFOLLOW).unwrap();
        }
        let _ = fs::remove_dir_all(self.own_directory(handle));
    }

    pub(crate) fn get(&self, handle: &str) -> Option<DriverVolume> {
        self.volumes.lock().unwrap().get(handle).cloned()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, DriverVolume> {
        self.volumes.lock().unwrap().clone()
    }

    /// Changes a volume, if it exists.
    pub(crate) fn change(&self, handle: &str, change: impl FnOnce(&mut DriverVolume)) {
        self.modify(|volumes| {
            if let Some(volume) = volumes.get_mut(handle) {
                change(volume);
            }
        });
    }

    /// Gives the node all of the capacity of a volume.
    pub(super) fn grow(&self, handle: &str, capacity: i64) -> io::Result<()> {
        if self.mounts == Mounts::Tmpfs {
            let size = format!("size={capacity}");
            mount_remount(self.own_directory(handle), MountFlags::empty(), size)?;
        }
        self.grow_disk(handle, capacity)?;
        self.change(handle, |volume| volume.node_capacity = capacity);
        Ok(())
    }

    /// Mounts a directory on another one.
    pub(super) fn mount(&self, source: &Path, target: &Path, readonly: bool) -> io::Result<()> {
        if self.mounts == Mounts::None {
            return Ok(());
        }
        // A driver that was killed may have mounted it and not written so.
        if self.file.is_some() && is_mount_point(target)? {
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
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave).is_ok() {
            return Ok(());
        }
        match unmount(target, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            unmounted => Ok(unmounted?),
        }
    }
}

fn is_mount_point(path: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.any(|point| Path::new(point) == path))
}
