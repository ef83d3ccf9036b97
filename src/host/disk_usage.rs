//! Disk usage of a directory. Blocking; slow for large trees.

use super::remove::open_beneath;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
};
use std::{
    collections::HashSet, fs::Metadata, io, os::unix::fs::MetadataExt as _, path::Path,
    time::Duration,
};

/// Number of entries between two pauses.
const STRETCH: u64 = 1000;
/// Duration of a pause: at most 200,000 entries per second, so that other processes can use the disk.
const REST: Duration = Duration::from_millis(5);
/// Maximum depth of directories: each level needs a descriptor and 24 KiB of memory.
const MAX_DEPTH: usize = 128;
/// Maximum number of remembered hard-linked inodes: about 30 MiB of memory.
const MAX_LINKED: usize = 1_000_000;

/// Disk usage of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of allocated blocks, not file lengths.
    pub bytes: u64,
    /// Number of inodes, including the directory itself.
    pub inodes: u64,
}

/// Sums up a directory tree, as du(1) does: hard-linked files count once, symbolic links are not followed, other file
/// systems are skipped. Files removed during the walk are skipped too.
///
/// # Errors
/// The directory cannot be opened; `FileTooLarge` with more than `most` entries, a million hard-linked files, or
/// directories nested more than 128 deep: this process's memory must not depend on what a container writes into a
/// volume.
pub fn disk_usage(directory: &Path, most: u64) -> io::Result<DiskUsage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&top)?;
    let mut sum = Sum {
        usage: DiskUsage::default(),
        device: stat.st_dev,
        entries: 0,
        linked: HashSet::new(),
        most,
    };
    if sum.add(&stat) && sum.below(top) {
        Ok(sum.usage)
    } else {
        Err(io::ErrorKind::FileTooLarge.into())
    }
}

/// Sums up the files in a directory without its subdirectories and itself; or a single file. `None` if the path does
/// not exist.
///
/// # Errors
/// The path cannot be read; `FileTooLarge` with more than `most` entries.
pub fn files_usage(path: &Path, most: u64) -> io::Result<Option<DiskUsage>> {
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok(Some(usage_of(&metadata)));
    }
    let (mut sum, mut entries) = (None, 0);
    for entry in std::fs::read_dir(path)? {
        entries += 1;
        if entries > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // The file was removed during the walk.
        let metadata = entry.and_then(|entry| entry.metadata());
        if let Ok(metadata) = metadata
            && !metadata.is_dir()
        {
            let sum = sum.get_or_insert_with(DiskUsage::default);
            let one = usage_of(&metadata);
            sum.bytes = sum.bytes.saturating_add(one.bytes);
            sum.inodes += one.inodes;
        }
    }
    Ok(sum)
}

fn usage_of(metadata: &Metadata) -> DiskUsage {
    DiskUsage {
        bytes: metadata.blocks().saturating_mul(512),
        inodes: 1,
    }
}

struct Sum {
    usage: DiskUsage,
    device: u64,
    /// Number of directory entries; hard-linked files have several.
    entries: u64,
    /// Inodes of hard-linked files.
    linked: HashSet<u64>,
    most: u64,
}

impl Sum {
    /// Sums up everything below a directory, which a pod may change at any moment. False if a limit is exceeded.
    fn below(&mut self, top: OwnedFd) -> bool {
        // Only the directories between `top` and the current entry are kept: a list of directories still to be
        // visited could become arbitrarily long.
        let mut open: Vec<Dir> = Dir::new(top).into_iter().collect();
        loop {
            let depth = open.len();
            let Some(directory) = open.last_mut() else {
                return true;
            };
            let Some(Ok(entry)) = directory.read() else {
                open.pop();
                continue;
            };
            let (Ok(parent), name) = (directory.fd(), entry.file_name()) else {
                continue;
            };
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = match rustix::fs::statat(parent, name, flags) {
                Ok(stat) if !matches!(name.to_bytes(), b"." | b"..") => stat,
                _ => continue,
            };
            if !self.add(&stat) {
                return false;
            }
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if is_directory && stat.st_dev == self.device {
                if depth > MAX_DEPTH {
                    return false;
                }
                let below = open_beneath(parent, name).and_then(Dir::new);
                open.extend(below);
            }
        }
    }

    /// False if a limit is exceeded.
    #[expect(
        clippy::disallowed_methods,
        reason = "walking blocks anyway, and this thread is there for it"
    )]
    fn add(&mut self, stat: &Stat) -> bool {
        self.entries += 1;
        if self.entries.is_multiple_of(STRETCH) {
            std::thread::sleep(REST);
        }
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let mut is_new = || is_directory || stat.st_nlink == 1 || self.linked.insert(stat.st_ino);
        if stat.st_dev == self.device && is_new() {
            let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
            self.usage.bytes = self.usage.bytes.saturating_add(blocks.saturating_mul(512));
            self.usage.inodes += 1;
        }
        self.entries <= self.most && self.linked.len() <= MAX_LINKED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn files_of_a_directory_are_those_that_lie_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert_eq!(files_usage(directory.path(), 9).unwrap(), None);
        fs::create_dir(at("below")).unwrap();
        fs::write(at("below/file"), vec![1; 100_000]).unwrap();
        assert_eq!(files_usage(directory.path(), 9).unwrap(), None);
        fs::write(at("0.log"), vec![1; 10_000]).unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        let found = files_usage(directory.path(), 9).unwrap().unwrap();
        assert_eq!(found.inodes, 2);
        assert!((10_000..30_000).contains(&found.bytes), "{found:?}");
        let one = files_usage(&at("0.log"), 9).unwrap().unwrap();
        assert_eq!(one.inodes, 1);
        assert!(files_usage(directory.path(), 2).is_err());
        assert!(files_usage(&at("none"), 9).is_err());
    }

    #[test]
    fn links_are_not_followed_and_a_file_of_two_names_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let empty = disk_usage(directory.path(), 100).unwrap();
        assert_eq!(empty.inodes, 1);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(at("d/file"), at("again")).unwrap();
        symlink("/", at("root")).unwrap();
        let usage = disk_usage(directory.path(), 100).unwrap();
        assert_eq!(usage.inodes, 4);
        let added = usage.bytes - empty.bytes;
        assert!((98_304..200_000).contains(&added), "{added}");
    }

    #[test]
    fn directories_are_entered_down_to_a_depth_and_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let at = |depth| directory.path().join(vec!["d"; depth].join("/"));
        fs::create_dir_all(at(MAX_DEPTH + 1)).unwrap();
        let whole = u64::try_from(MAX_DEPTH).unwrap() + 2;
        let error = disk_usage(directory.path(), 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        fs::remove_dir(at(MAX_DEPTH + 1)).unwrap();
        assert_eq!(
            disk_usage(directory.path(), 1000).unwrap().inodes,
            whole - 1
        );
    }

    #[test]
    fn every_name_of_a_file_counts_towards_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        for name in 0..4 {
            let name = directory.path().join(name.to_string());
            fs::hard_link(directory.path().join("file"), name).unwrap();
        }
        let error = disk_usage(directory.path(), 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(disk_usage(directory.path(), 6).unwrap().inodes, 2);
    }

    #[test]
    fn a_directory_with_too_many_entries_is_an_error_and_so_is_none() {
        let directory = tempfile::tempdir().unwrap();
        for name in 0..5 {
            fs::write(directory.path().join(name.to_string()), "").unwrap();
        }
        let error = disk_usage(directory.path(), 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(disk_usage(directory.path(), 6).unwrap().inodes, 6);
        let missing = disk_usage(&directory.path().join("no"), 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
