//! Mounting needs root, so it is behind a trait: tests record.

use crate::host::{MountEntry, ProgramEnd, mount, program};
use std::{io, path::Path, time::Duration};

/// The mount operations that volumes need. All block.
pub trait Mounter: Send + Sync + 'static {
    /// All mounts, oldest first.
    fn list(&self) -> io::Result<Vec<MountEntry>>;
    /// Whether something is mounted on exactly this directory.
    fn is_mounted(&self, directory: &Path) -> io::Result<bool>;
    /// Mounts a tmpfs of at most `size_bytes`, its root directory with this mode.
    fn tmpfs(&self, target: &Path, size_bytes: u64, mode: u32) -> io::Result<()>;
    /// Mounts a file system of huge pages of this size.
    fn huge_pages(&self, target: &Path, page_bytes: u64) -> io::Result<()>;
    /// Makes `source` visible at `target` too.
    fn bind(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Unmounts; not mounted counts as done.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// Runs a program of the node that formats, checks or mounts a device.
    fn run(&self, program: &str, args: &[String], limit: Duration) -> io::Result<ProgramEnd>;
}

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMounter;

impl Mounter for HostMounter {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        mount::list()
    }

    fn is_mounted(&self, directory: &Path) -> io::Result<bool> {
        mount::is_mount_point(directory)
    }

    fn tmpfs(&self, target: &Path, size_bytes: u64, mode: u32) -> io::Result<()> {
        mount::tmpfs(target, Some(size_bytes), mode)
    }

    fn huge_pages(&self, target: &Path, page_bytes: u64) -> io::Result<()> {
        mount::huge_pages(target, page_bytes)
    }

    fn bind(&self, source: &Path, target: &Path) -> io::Result<()> {
        mount::bind(source, target)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        mount::unmount(target)
    }

    fn run(&self, program: &str, args: &[String], limit: Duration) -> io::Result<ProgramEnd> {
        program::run(program, args, limit)
    }
}
