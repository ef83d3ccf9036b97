//! How much a directory takes up. Blocking; a large tree takes long.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use std::{
    collections::HashSet,
    ffi::OsStr,
    io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Entries between two rests.
const STRETCH: u64 = 1000;
/// How long a rest is. Together: at most 200,000 entries a second, so that others get at the disk.
const REST: Duration = Duration::from_millis(5);

/// What a directory takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of blocks that are in use, not the lengths of files.
    pub bytes: u64,
    /// Files, directories and all else, the directory itself included.
    pub inodes: u64,
}

/// Adds up what is below a directory, as du(1) does: a file of several names counts once, links are not
/// followed, other file systems are left out. What goes meanwhile is left out as well.
///
/// # Errors
/// The directory cannot be looked at, or there are more than `most` entries (`FileTooLarge`).
pub fn disk_usage(directory: &Path, most: u64) -> io::Result<DiskUsage> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&top)?;
    let mut sum = Sum {
        usage: DiskUsage::default(),
        several_names: HashSet::new(),
        most,
    };
    sum.add(&stat)?;
    let mut waiting = vec![PathBuf::from(".")];
    while let Some(path) = waiting.pop() {
        sum.children(top.as_fd(), &path, &mut waiting)?;
    }
    Ok(sum.usage)
}

struct Sum {
    usage: DiskUsage,
    several_names: HashSet<(u64, u64)>,
    most: u64,
}

impl Sum {
    #[expect(
        clippy::disallowed_methods,
        reason = "walking blocks anyway, and this thread is there for it"
    )]
    fn add(&mut self, stat: &rustix::fs::Stat) -> io::Result<()> {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let file = (stat.st_dev, stat.st_ino);
        if !is_directory && stat.st_nlink > 1 && !self.several_names.insert(file) {
            return Ok(());
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.usage.bytes = self.usage.bytes.saturating_add(blocks.saturating_mul(512));
        self.usage.inodes += 1;
        if self.usage.inodes > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.usage.inodes.is_multiple_of(STRETCH) {
            std::thread::sleep(REST);
        }
        Ok(())
    }

    /// The entries of one directory, which is below `top` and stays there: the tree belongs to a pod that
    /// may exchange its parts at any moment.
    fn children(
        &mut self,
        top: std::os::fd::BorrowedFd<'_>,
        path: &Path,
        waiting: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = rustix::fs::openat2(top, path, flags, Mode::empty(), resolve);
        let Ok(opened) = opened else { return Ok(()) };
        let Ok(entries) = Dir::read_from(&opened) else {
            return Ok(());
        };
        for entry in entries {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let look = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let Ok(stat) = rustix::fs::statat(&opened, name, look) else {
                continue;
            };
            self.add(&stat)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                waiting.push(path.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

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
