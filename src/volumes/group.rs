//! `fsGroup`: the group of files, and its permissions. Blocking.

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Gid, Mode, Stat};
use std::io;

/// Group permissions of files in read-only volumes.
pub(in crate::volumes) const READ_ONLY: u32 = 0o440;
/// Group permissions of files in writable volumes.
pub(in crate::volumes) const READ_WRITE: u32 = 0o660;
/// Additional mode of directories: execute for the group, and setgid, so that new files in them get the group.
const DIRECTORY_MODE: u32 = 0o2110;

/// The pod's `fsGroup`, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeGroup(pub Option<u32>);

impl VolumeGroup {
    /// The mode with the group's permissions (`rights`) added; the mode itself without a group.
    pub(in crate::volumes) fn with_group_permissions(
        self,
        mode: u32,
        rights: u32,
        directory: bool,
    ) -> u32 {
        match (self.0, directory) {
            (None, _) => mode,
            (Some(_), false) => mode | rights,
            (Some(_), true) => mode | rights | DIRECTORY_MODE,
        }
    }

    /// Sets the mode and, if there is one, the group of an open file or directory.
    pub(in crate::volumes) fn set_group_and_mode(
        self,
        file: BorrowedFd<'_>,
        mode: u32,
        rights: u32,
        directory: bool,
    ) -> io::Result<()> {
        if let Some(group) = self.0 {
            rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))?;
        }
        // After the owner, because `chown` clears setuid and setgid.
        let mode = self.with_group_permissions(mode, rights, directory);
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }

    /// Sets the group of a symbolic link; with [`AtFlags::EMPTY_PATH`] and an empty name, of the open file.
    pub(in crate::volumes) fn set_link_group(
        self,
        directory: BorrowedFd<'_>,
        name: &str,
        flags: AtFlags,
    ) -> Result<(), rustix::io::Errno> {
        let Some(group) = self.0 else {
            return Ok(());
        };
        let flags = flags | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(directory, name, None, Some(Gid::from_raw(group)), flags)
    }

    /// Whether a file has this group; true without a group.
    pub(in crate::volumes) fn matches(self, stat: &Stat) -> bool {
        self.0.is_none_or(|group| stat.st_gid == group)
    }
}
