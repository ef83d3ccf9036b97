//! Project quotas: the file system counts the usage of a project's files. Blocking, but short.
//!
//! Supported by ext4 and XFS if created and mounted with the feature. Needs Linux 5.14 (quotactl_fd(2)).

#![allow(unsafe_code, reason = "rustix has neither quotactl_fd(2) nor the ioctls of project IDs")]

use super::DiskUsage;
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use std::path::Path;
use std::{io, mem};

/// New files in the directory inherit its project.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
/// The type of project quotas; not in the `libc` crate.
const PRJQUOTA: libc::c_int = 2;
/// The unit of limits, in bytes.
const LIMIT_UNIT: u64 = 1024;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FsXAttr {
    xflags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

const FS_IOC_FSGETXATTR: u32 = opcode::read::<FsXAttr>(b'X', 31);
const FS_IOC_FSSETXATTR: u32 = opcode::write::<FsXAttr>(b'X', 32);

/// The project that files in a directory inherit, if any.
pub fn project_of(directory: &Path) -> io::Result<Option<u32>> {
    let attributes = attributes(&open(directory)?)?;
    let inherited = attributes.xflags & FS_XFLAG_PROJINHERIT != 0 && attributes.project != 0;
    Ok(inherited.then_some(attributes.project))
}

/// Sets the project of a directory, which files created in it from now on inherit. Existing files are not changed.
pub fn set_project(directory: &Path, project: u32) -> io::Result<()> {
    let directory = open(directory)?;
    let before = attributes(&directory)?;
    let attributes = FsXAttr { xflags: before.xflags | FS_XFLAG_PROJINHERIT, project, ..before };
    // SAFETY: the operation reads one `struct fsxattr`.
    let set = unsafe { Setter::<FS_IOC_FSSETXATTR, _>::new(attributes) };
    // SAFETY: as above.
    Ok(unsafe { ioctl(&directory, set) }?)
}

/// The usage of all files of a project on the directory's file system.
///
/// # Errors
/// The file system has no project quotas, or the kernel is too old.
pub fn project_usage(directory: &Path, project: u32) -> io::Result<DiskUsage> {
    match quotactl(&open(directory)?, libc::Q_GETQUOTA, project, no_quota()) {
        Ok(quota) => Ok(DiskUsage {
            bytes: quota.dqb_curspace,
            inodes: quota.dqb_curinodes,
            is_partial: false,
        }),
        // XFS has no entry for a project without files.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(DiskUsage::default()),
        Err(error) => Err(error),
    }
}

/// Limits the usage of a project, in steps of 1,024 bytes; `None` removes the limit.
pub fn limit_project(directory: &Path, project: u32, bytes: Option<u64>) -> io::Result<()> {
    let limit = bytes.unwrap_or(0) / LIMIT_UNIT;
    let quota = libc::dqblk {
        dqb_bhardlimit: limit,
        dqb_bsoftlimit: limit,
        dqb_valid: libc::QIF_BLIMITS,
        ..no_quota()
    };
    quotactl(&open(directory)?, libc::Q_SETQUOTA, project, quota).map(drop)
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

fn attributes(directory: &OwnedFd) -> io::Result<FsXAttr> {
    // SAFETY: the operation writes one `struct fsxattr`, for which any bytes are valid.
    let get = unsafe { Getter::<FS_IOC_FSGETXATTR, FsXAttr>::new() };
    // SAFETY: as above.
    Ok(unsafe { ioctl(directory, get) }?)
}

fn no_quota() -> libc::dqblk {
    // SAFETY: the struct consists of integers only.
    unsafe { mem::zeroed() }
}

fn quotactl(
    directory: &OwnedFd,
    operation: libc::c_int,
    project: u32,
    mut quota: libc::dqblk,
) -> io::Result<libc::dqblk> {
    // SAFETY: both operations access only the `struct if_dqblk` that `dqblk` points to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            directory.as_raw_fd(),
            libc::QCMD(operation, PRJQUOTA),
            project,
            &raw mut quota,
        )
    };
    if result == 0 { Ok(quota) } else { Err(io::Error::last_os_error()) }
}
