//! Disk usage of a directory. Blocking; slow for large trees.

use super::remove::open_beneath;
use super::tree_walk::TreeWalk;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// Number of entries between two pauses.
const STRETCH: u64 = 1000;
/// Duration of a pause: at most 200,000 entries per second, so that other processes can use the disk.
const REST: Duration = Duration::from_millis(5);
/// Fractions of an inode or byte in sums: a file with several names is counted in parts.
const FRACTIONS: u128 = 1 << 32;

/// Disk usage of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of allocated blocks, not file lengths.
    pub bytes: u64,
    /// Number of inodes, including the directory itself.
    pub inodes: u64,
    /// Whether there is more than this: the directory was not read to the end.
    pub is_partial: bool,
}

/// Sums up a directory tree, as du(1) does: symbolic links are not followed, other file systems are skipped, and a file
/// with several names counts once if all of them are in the tree. Files removed during the walk are skipped too.
pub struct DiskWalk {
    walk: TreeWalk,
    device: u64,
    /// In [`FRACTIONS`].
    bytes: u128,
    inodes: u128,
    /// Number of directory entries.
    entries: u64,
    is_finished: bool,
}

impl DiskWalk {
    /// # Errors
    /// The directory cannot be opened.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&root)?;
        let mut walk = Self {
            walk: TreeWalk::new(root)?,
            device: stat.st_dev,
            bytes: 0,
            inodes: 0,
            entries: 0,
            is_finished: false,
        };
        walk.add(&stat);
        Ok(walk)
    }

    /// Continues for at most this number of entries. Whether the walk is finished.
    #[expect(
        clippy::disallowed_methods,
        reason = "walking blocks anyway, and this thread is there for it"
    )]
    pub fn advance(&mut self, most: u64) -> bool {
        for _ in 0..most {
            let Some(name) = self.walk.next_entry() else {
                self.is_finished = true;
                return true;
            };
            self.entries += 1;
            if self.entries.is_multiple_of(STRETCH) {
                std::thread::sleep(REST);
            }
            let Some(parent) = self.walk.directory() else {
                continue;
            };
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = match rustix::fs::statat(parent, &name, flags) {
                Ok(stat) => stat,
                Err(error) => {
                    self.walk.skip(error);
                    continue;
                }
            };
            if stat.st_dev != self.device {
                continue;
            }
            if is_directory(&stat) {
                match open_beneath(parent, &name) {
                    Ok(child) => self.walk.enter(child),
                    // A mount of the same file system, or replaced by a file since.
                    Err(Errno::XDEV | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => self.walk.skip(error),
                }
            }
            self.add(&stat);
        }
        false
    }

    /// The usage found so far.
    pub fn usage(&self) -> DiskUsage {
        let rounded = |sum: u128| u64::try_from((sum + FRACTIONS / 2) / FRACTIONS);
        DiskUsage {
            bytes: rounded(self.bytes).unwrap_or(u64::MAX),
            inodes: rounded(self.inodes).unwrap_or(u64::MAX),
            is_partial: !self.is_finished || self.walk.is_partial(),
        }
    }

    /// Adds a file or directory. Each name of a file counts for its part of it, because remembering the files that were
    /// counted would take memory for each. Containers cannot give a file a name outside of its volume.
    fn add(&mut self, stat: &Stat) {
        let names = if is_directory(stat) { 1 } else { u128::from(stat.st_nlink).max(1) };
        let blocks = u128::try_from(stat.st_blocks).unwrap_or_default();
        self.bytes += blocks * 512 * FRACTIONS / names;
        self.inodes += FRACTIONS / names;
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Sums up a directory tree by a [`DiskWalk`] of at most `most` entries.
///
/// # Errors
/// The directory cannot be opened.
pub fn disk_usage(directory: &Path, most: u64) -> io::Result<DiskUsage> {
    let mut walk = DiskWalk::start(directory)?;
    walk.advance(most);
    Ok(walk.usage())
}

/// Sums up the files in a directory without its subdirectories and itself; or a single file. `None` if there are none.
/// The sum is partial if there are more than `most` entries.
///
/// # Errors
/// The path cannot be read.
pub fn files_usage(path: &Path, most: u64) -> io::Result<Option<DiskUsage>> {
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok(Some(usage_of(&metadata)));
    }
    let (mut sum, mut entries) = (None, 0);
    for entry in std::fs::read_dir(path)? {
        entries += 1;
        if entries > most {
            sum.get_or_insert_with(DiskUsage::default).is_partial = true;
            break;
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
    DiskUsage { bytes: metadata.blocks().saturating_mul(512), inodes: 1, is_partial: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

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
        let partial = files_usage(directory.path(), 2).unwrap().unwrap();
        assert!(partial.is_partial && partial.bytes <= found.bytes, "{partial:?}");
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

    /// Nested directories, too deep for one path.
    fn nest(directory: &Path, levels: usize) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut innermost = rustix::fs::open(directory, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&innermost, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&innermost, "e", Mode::RWXU).unwrap();
            innermost = rustix::fs::openat(&innermost, "d", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn directories_are_entered_at_any_depth() {
        let directory = tempfile::tempdir().unwrap();
        nest(directory.path(), 3000);
        fs::write(directory.path().join("file"), vec![1; 1 << 20]).unwrap();
        let usage = disk_usage(directory.path(), 100_000).unwrap();
        assert_eq!(usage.inodes, 6002);
        assert!(usage.bytes >= 1 << 20, "{usage:?}");
    }

    #[test]
    fn a_file_of_many_names_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), vec![1; 100_000]).unwrap();
        let before = disk_usage(directory.path(), 10).unwrap();
        for name in 0..6 {
            let name = directory.path().join(name.to_string());
            fs::hard_link(directory.path().join("file"), name).unwrap();
        }
        assert_eq!(disk_usage(directory.path(), 10).unwrap(), before);
    }

    #[test]
    fn a_walk_that_is_cut_short_finds_no_more_than_there_is_and_can_go_on() {
        let directory = tempfile::tempdir().unwrap();
        nest(directory.path(), 100);
        for name in 0..50 {
            fs::write(directory.path().join(name.to_string()), vec![1; 10_000]).unwrap();
        }
        fs::hard_link(directory.path().join("0"), directory.path().join("d/again")).unwrap();
        let all = disk_usage(directory.path(), 1000).unwrap();
        assert_eq!((all.inodes, all.is_partial), (251, false));
        let mut last = DiskUsage::default();
        for most in 0..=251 {
            let some = disk_usage(directory.path(), most).unwrap();
            assert!(some.is_partial, "{most}: {some:?}");
            assert!(
                some.bytes >= last.bytes && some.bytes <= all.bytes && some.inodes <= all.inodes,
                "{most}: {some:?} of {all:?}"
            );
            last = some;
        }
        let mut walk = DiskWalk::start(directory.path()).unwrap();
        let turns = 1 + (0..).take_while(|_| !walk.advance(60)).count();
        assert_eq!((walk.usage(), turns), (all, 5));
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let missing = disk_usage(&directory.path().join("no"), 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
