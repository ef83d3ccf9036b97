//! The devices of volumes of mode Block: loop devices that are attached to a file in the volume's directory. Needs root.

use super::{DriverVolumes, Mounts};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The file with the data of a device.
const DISK: &str = "disk";

/// The loop devices of this machine, each with the file that it is attached to.
fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = entries.filter_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let device = Path::new("/dev").join(entry.file_name());
        Some((device, PathBuf::from(backing.trim_end())))
    });
    devices.collect()
}

/// Attaches a loop device to a file, or to a device, as a Go kubelet does.
pub(crate) fn losetup(args: &[&str], path: &Path) -> io::Result<String> {
    let ended = Command::new("losetup").args(args).arg(path).output()?;
    if !ended.status.success() {
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        return Err(io::Error::other(text));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned())
}

/// Detaches all loop devices that are attached to something below a directory.
pub(crate) fn detach_below(directory: &Path) {
    for (device, backing) in loop_devices() {
        if backing.starts_with(directory) {
            let _ = losetup(&["-d"], &device);
        }
    }
}

/// What is attached below a directory.
pub(crate) fn attached_below(directory: &Path) -> Vec<PathBuf> {
    let all = loop_devices().into_iter().map(|(_, backing)| backing);
    all.filter(|backing| backing.starts_with(directory)).collect()
}

impl DriverVolumes {
    /// Whether volumes may be devices.
    pub(super) fn has_disks(&self) -> bool {
        self.mounts != Mounts::None
    }

    /// The file with the data of a volume's device.
    pub(crate) fn disk(&self, handle: &str) -> PathBuf {
        self.data(handle).join(DISK)
    }

    /// The device of a volume, if it is attached.
    pub(crate) fn device(&self, handle: &str) -> Option<PathBuf> {
        let disk = self.disk(handle);
        let mut devices = loop_devices().into_iter();
        let found = devices.find(|(_, backing)| *backing == disk);
        found.map(|(device, _)| device)
    }

    /// Attaches the device of a volume, whose file is made if there is none.
    pub(super) fn attach_disk(&self, handle: &str) -> io::Result<PathBuf> {
        if let Some(device) = self.device(handle) {
            return Ok(device);
        }
        let disk = self.disk(handle);
        let capacity = self.get(handle).map_or(0, |volume| volume.capacity);
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&disk)?;
        file.set_len(capacity.unsigned_abs().max(1 << 20))?;
        Ok(losetup(&["-f", "--show"], &disk)?.into())
    }

    /// Gives the device of a volume this capacity, if it is attached.
    pub(super) fn grow_disk(&self, handle: &str, capacity: i64) -> io::Result<()> {
        let Some(device) = self.device(handle) else {
            return Ok(());
        };
        let disk = fs::OpenOptions::new().write(true).open(self.disk(handle))?;
        disk.set_len(capacity.unsigned_abs())?;
        losetup(&["-c"], &device).map(drop)
    }

    /// Detaches it.
    pub(super) fn detach_disk(&self, handle: &str) -> io::Result<()> {
        match self.device(handle) {
            Some(device) => losetup(&["-d"], &device).map(drop),
            None => Ok(()),
        }
    }

    /// Makes a device appear at a path.
    pub(super) fn show_device(&self, device: &Path, target: &Path) -> io::Result<()> {
        use std::os::unix::fs::FileTypeExt as _;
        if !target.exists() {
            fs::write(target, "")?;
        }
        if target.metadata()?.file_type().is_block_device() {
            return Ok(());
        }
        self.mount(device, target, false)
    }
}
