//! What is mounted. Pure.

use crate::host::MountEntry;
use std::{io, path::Path};

/// The mounts of the node. If they cannot be read, everything counts as mounted, because nothing may be removed below a
/// mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountTable(Option<Vec<MountEntry>>);

impl MountTable {
    /// The table, as [`crate::volumes::Mounter::list`] returned it.
    pub fn new(list: io::Result<Vec<MountEntry>>) -> Self {
        Self(list.ok())
    }

    /// Whether something is or may be mounted on a directory or below it.
    pub fn is_mounted(&self, directory: &Path) -> bool {
        let Some(mounts) = &self.0 else { return true };
        mounts.iter().any(|mount| mount.is_beneath(directory))
    }

    /// Whether something is known to be mounted on this directory itself.
    pub fn is_mount_point(&self, directory: &Path) -> bool {
        let mut mounts = self.0.iter().flatten();
        mounts.any(|mount| mount.mount_point == directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_table_has_everything_mounted() {
        let mounts = crate::host::parse_mountinfo(b"1 2 8:1 / /k/a/mount rw - ext4 /dev/x rw\n");
        let table = MountTable::new(Ok(mounts));
        let paths = [
            "/k/a",
            "/k/a/mount",
            "/k/a/mount/b",
            "/k/b",
            "/k/a/mountain",
        ];
        let mounted = paths.map(|path| table.is_mounted(Path::new(path)));
        assert_eq!(mounted, [true, true, false, false, false]);
        assert!(table.is_mount_point(Path::new("/k/a/mount")));
        assert!(!table.is_mount_point(Path::new("/k/a")));
        let unreadable = MountTable::new(Err(io::ErrorKind::NotFound.into()));
        assert!(unreadable.is_mounted(Path::new("/k/b")));
        assert!(!unreadable.is_mount_point(Path::new("/k/b")));
    }
}
