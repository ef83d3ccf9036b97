//! A file system that never answers, as one of a server that is gone.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// Every access below its path hangs until it is dropped.
pub struct DeadFs {
    path: PathBuf,
    device: Option<File>,
}

impl DeadFs {
    /// Mounts one; `None` where the machine does not allow that, which `CI=true` makes a failure.
    pub fn mount(path: &Path) -> Option<DeadFs> {
        match Self::try_mount(path) {
            Ok(dead) => Some(dead),
            Err(error) if std::env::var("CI").as_deref() == Ok("true") => {
                panic!("no FUSE: {error}")
            }
            Err(error) => {
                println!("SKIPPED: a file system that hangs cannot be mounted: {error}");
                None
            }
        }
    }

    fn try_mount(path: &Path) -> std::io::Result<DeadFs> {
        std::fs::create_dir_all(path)?;
        // The requests that the kernel queues here are never read.
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        rustix::mount::mount("dead", path, "fuse", MountFlags::empty(), Some(&*options))?;
        Ok(DeadFs { path: path.to_owned(), device: Some(device) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DeadFs {
    fn drop(&mut self) {
        // Without its device the mount is dead, and whatever hangs gets an error.
        self.device.take();
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
    }
}
