//! The mount operations, behind a trait so that tests without root can record them.

use super::VolumeError;
use super::error::io_error;
use crate::host::program::{self, Program};
use crate::host::{MountEntry, ProgramEnd, mount};
use futures::future::BoxFuture;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// The mount operations that volumes need. All functions block.
pub trait Mounter: Send + Sync + 'static {
    /// The mount table of the process, oldest mount first.
    fn list(&self) -> io::Result<Vec<MountEntry>>;
    /// Reads a path of the node, without following a link.
    fn symlink_metadata(&self, path: &Path) -> io::Result<Metadata>;
    /// Whether this directory is a mount point.
    fn is_mounted(&self, directory: &Path) -> io::Result<bool>;
    /// Mounts a tmpfs with this size limit and root directory mode.
    fn tmpfs(&self, target: &Path, size_bytes: u64, mode: u32) -> io::Result<()>;
    /// Mounts a hugetlbfs with this page size.
    fn huge_pages(&self, target: &Path, page_bytes: u64) -> io::Result<()>;
    /// Bind-mounts `source` on `target`.
    fn bind(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Unmounts; a directory that is not mounted is no error.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// Unmounts also what something has open.
    fn detach(&self, target: &Path) -> io::Result<()> {
        self.unmount(target)
    }
    /// Runs a program of the node that formats, checks or mounts a device.
    fn run(&self, program: Program) -> io::Result<ProgramEnd>;
    /// The same without a thread: it may wait for another machine. Does not block.
    fn execute(&self, program: Program) -> BoxFuture<'static, io::Result<ProgramEnd>>;
    /// The directory with `dev` and `sys`. Does not block.
    fn machine_root(&self) -> &Path {
        Path::new("/")
    }
}

/// Performs the operations on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMounter;

impl Mounter for HostMounter {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        mount::list()
    }

    fn symlink_metadata(&self, path: &Path) -> io::Result<Metadata> {
        fs::symlink_metadata(path)
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

    fn detach(&self, target: &Path) -> io::Result<()> {
        mount::detach(target)
    }

    fn run(&self, program: Program) -> io::Result<ProgramEnd> {
        program::run(program)
    }

    fn execute(&self, program: Program) -> BoxFuture<'static, io::Result<ProgramEnd>> {
        Box::pin(program::execute(program))
    }
}

/// Unmounts everything below a directory, the newest mount first. Blocking.
pub(super) fn unmount_beneath(directory: &Path, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    let mounts = mounter.list().map_err(io_error("list the mounts below", directory))?;
    let beneath = mounts.iter().rev().filter(|mount| mount.is_beneath(directory));
    for mount in beneath {
        let path = &mount.mount_point;
        mounter.unmount(path).map_err(io_error("unmount", path))?;
    }
    Ok(())
}
