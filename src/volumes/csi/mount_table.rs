//! What is mounted. Pure.

use crate::host::MountEntry;
use std::io;
use std::path::{Path, PathBuf};

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

    /// The mount points below `pods` of what is mounted on `target`, except for those in the `known` directories.
    pub fn references(&self, target: &Path, pods: &Path, known: &[PathBuf]) -> Vec<PathBuf> {
        let mounts = || self.0.iter().flatten();
        let Some(top) = mounts().rfind(|mount| mount.mount_point == target) else {
            return Vec::new();
        };
        let same = mounts().filter(|mount| {
            let is_known = known.iter().any(|directory| mount.is_beneath(directory));
            let is_same = (&mount.device, &mount.root) == (&top.device, &top.root);
            is_same && mount.is_beneath(pods) && !is_known
        });
        same.map(|mount| mount.mount_point.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_table_has_everything_mounted() {
        let mounts = crate::host::parse_mountinfo(b"1 2 8:1 / /k/a/mount rw - ext4 /dev/x rw\n");
        let table = MountTable::new(Ok(mounts));
        let paths = ["/k/a", "/k/a/mount", "/k/a/mount/b", "/k/b", "/k/a/mountain"];
        let mounted = paths.map(|path| table.is_mounted(Path::new(path)));
        assert_eq!(mounted, [true, true, false, false, false]);
        assert!(table.is_mount_point(Path::new("/k/a/mount")));
        assert!(!table.is_mount_point(Path::new("/k/a")));
        let unreadable = MountTable::new(Err(io::ErrorKind::NotFound.into()));
        assert!(unreadable.is_mounted(Path::new("/k/b")));
        assert!(!unreadable.is_mount_point(Path::new("/k/b")));
    }

    #[test]
    fn references_are_mounts_of_the_same_directory_of_the_same_device_in_pods() {
        let mounts = crate::host::parse_mountinfo(
            b"1 2 8:1 /old /k/stage rw - ext4 /dev/x rw\n\
              2 2 8:2 / /k/stage rw - ext4 /dev/y rw\n\
              3 2 8:2 / /k/pods/a/mount rw - ext4 /dev/y rw\n\
              4 2 8:2 /part /k/pods/b/mount rw - ext4 /dev/y rw\n\
              5 2 8:1 /old /k/pods/c/mount rw - ext4 /dev/x rw\n\
              6 2 8:2 / /elsewhere rw - ext4 /dev/y rw\n\
              7 2 8:2 / /k/pods/d/other/mount rw - ext4 /dev/y rw\n",
        );
        let table = MountTable::new(Ok(mounts));
        let find = |target: &str| {
            let known = [PathBuf::from("/k/pods/d/other")];
            table.references(Path::new(target), Path::new("/k/pods"), &known)
        };
        assert_eq!(find("/k/stage"), [Path::new("/k/pods/a/mount")]);
        assert_eq!(find("/k/unmounted"), <[&Path; 0]>::default());
    }
}
