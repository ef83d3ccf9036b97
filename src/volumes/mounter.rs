//! Mounting needs root, so it is behind a trait: tests record.

use crate::host::{MountEntry, mount};
use std::{io, path::Path};

/// The mount operations that volumes need. All block.
pub trait Mounter: Send + Sync + 'static {
    /// All mounts, oldest first.
    fn list(&self) -> io::Result<Vec<MountEntry>>;
    /// Mounts a tmpfs of at most `size_bytes`, its root directory with this mode.
    fn tmpfs(&self, target: &Path, size_bytes: u64, mode: u32) -> io::Result<()>;
    /// Makes `source` visible at `target` too.
    fn bind(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Unmounts; not mounted counts as done.
    fn unmount(&self, target: &Path) -> io::Result<()>;
}

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMounter;

impl Mounter for HostMounter {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        mount::list()
    }

    fn tmpfs(&self, target: &Path, size_bytes: u64, mode: u32) -> io::Result<()> {
        mount::tmpfs(target, Some(size_bytes), mode)
    }

    fn bind(&self, source: &Path, target: &Path) -> io::Result<()> {
        mount::bind(source, target)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        mount::unmount(target)
    }
}
