//! mount(2) and umount2(2).

use super::{MountEntry, parse_mountinfo};
use rustix::{
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
