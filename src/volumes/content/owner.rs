//! `fsGroup`: what belongs to the pod's group, and what the group may do with it. Blocking.

use rustix::{
    fd::BorrowedFd,
    fs::{AtFlags, Gid, Mode, Stat},
};
use std::io;

/// What a group may do with files of volumes that pods only read.
pub(in crate::volumes) const READ_ONLY: u32 = 0o440;
/// What a group may do with files of volumes that pods write to.
pub(in crate::volumes) const READ_WRITE: u32 = 0o660;
/// What it may do with directories besides, and that new files in them belong to it as well.
const DIRECTORY: u32 = 0o2110;

/// The pod's group, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeGroup(pub Option<u32>);

impl VolumeGroup {
    /// The mode of something that had this mode and now belongs to the group.
    pub(in crate::volumes) fn widen(self, mode: u32, rights: u32, directory: bool) -> u32 {
        match (self.0, directory) {
            (None, _) => mode,
            (Some(_), false) => mode | rights,
            (Some(_), true) => mode | rights | DIRECTORY,
        }
    }

    /// Gives an open file or directory exactly this mode and, if there is one, to the group.
    pub(in crate::volumes) fn own(
        self,
        file: BorrowedFd<'_>,
        mode: u32,
        rights: u32,
        directory: bool,
    ) -> io::Result<()> {
        if let Some(group) = self.0 {
            rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))?;
        }
        // After the owner: giving a file away takes its set-id bits.
        let mode = self.widen(mode, rights, directory);
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }

    /// Gives a link to the group; with [`AtFlags::EMPTY_PATH`] and no name, what is open.
    pub(in crate::volumes) fn own_link(
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

    /// Whether something belongs to it; true where there is no group.
    pub(in crate::volumes) fn owns(self, stat: &Stat) -> bool {
        self.0.is_none_or(|group| stat.st_gid == group)
    }
}
