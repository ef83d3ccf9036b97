//! mount(2) and umount2(2).

use super::{MountEntry, parse_mountinfo};
use rustix::{
    fs::{AtFlags, CWD, StatxAttributes, StatxFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
};
use std::{ffi::CString, fs, io, path::Path};

/// All mounts this process sees, oldest first.
pub fn list() -> io::Result<Vec<MountEntry>> {
    Ok(parse_mountinfo(&fs::read("/proc/self/mountinfo")?))
}

/// Mounts a tmpfs. `size_bytes` bounds it; `mode` is that of its root directory. Its pages stay out
/// of swap where the kernel knows how (6.3 and later).
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

/// Mounts a file system whose pages are all of this size, which the kernel must offer.
pub fn huge_pages(target: &Path, page_bytes: u64) -> io::Result<()> {
    let options =
        CString::new(format!("pagesize={page_bytes}")).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = MountFlags::empty();
    let options = options.as_c_str();
    Ok(rustix::mount::mount(
        "nodev",
        target,
        "hugetlbfs",
        flags,
        options,
    )?)
}

/// Whether something is mounted on exactly this directory; false when there is none. A link is not
/// followed.
pub fn is_mount_point(directory: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = match rustix::fs::statx(CWD, directory, flags, StatxFlags::TYPE) {
        Err(Errno::NOENT) => return Ok(false),
        stat => stat?,
    };
    if stat
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT)
    {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Kernels before 5.8 do not say.
    Ok(list()?.iter().any(|m| m.mount_point == directory))
}

/// Makes `source` visible at `target` too, both of a kind (file or directory).
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

/// Unmounts what is on top of `target`; links are not followed. Not mounted counts as done.
pub fn unmount(target: &Path) -> io::Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}
