//! The system calls mount(2) and umount2(2).

use super::{MountEntry, parse_mountinfo};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::path::Path;
use std::{fs, io};

/// The mount table of this process, oldest mount first.
pub fn list() -> io::Result<Vec<MountEntry>> {
    Ok(parse_mountinfo(&fs::read("/proc/self/mountinfo")?))
}

/// Mounts a tmpfs with this size limit and this mode of its root directory. With `noswap`, if the kernel supports it
/// (6.3 and later).
pub fn tmpfs(target: &Path, size_bytes: Option<u64>, mode: u32) -> io::Result<()> {
    let mut options = format!("mode={mode:o}");
    if let Some(size) = size_bytes {
        options.push_str(&format!(",size={size}"));
    }
    let flags = MountFlags::empty();
    let attempt = |options: String| {
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount("tmpfs", target, "tmpfs", flags, options.as_c_str())
    };
    match attempt(format!("{options},noswap")) {
        Err(Errno::INVAL) => Ok(attempt(options)?),
        result => Ok(result?),
    }
}

/// Mounts a hugetlbfs with this page size, which the kernel has to support.
pub fn huge_pages(target: &Path, page_bytes: u64) -> io::Result<()> {
    let options =
        CString::new(format!("pagesize={page_bytes}")).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = MountFlags::empty();
    let options = options.as_c_str();
    Ok(rustix::mount::mount("nodev", target, "hugetlbfs", flags, options)?)
}

/// Whether the directory itself is a mount point; false if it does not exist. A symbolic link is not followed.
pub fn is_mount_point(directory: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = match rustix::fs::statx(CWD, directory, flags, StatxFlags::TYPE) {
        Err(Errno::NOENT) => return Ok(false),
        stat => stat?,
    };
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Kernels before 5.8 do not report this in `statx`.
    Ok(list()?.iter().any(|m| m.mount_point == directory))
}

/// Bind-mounts `source` on `target`; both are files or both directories.
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

/// Unmounts the topmost mount of `target`, without following symbolic links. A path that is not mounted is no error.
pub fn unmount(target: &Path) -> io::Result<()> {
    unmount_with(target, UnmountFlags::NOFOLLOW)
}

/// The same, also while something has it open: the path is free at once.
pub fn detach(target: &Path) -> io::Result<()> {
    unmount_with(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
}

fn unmount_with(target: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(target, flags) {
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}
