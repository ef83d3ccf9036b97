//! Walks directory trees that containers write to. Blocking.
//!
//! A container chooses the shape of its tree: memory and descriptors of a walk must not grow with it. The directories
//! between the root and the current entry are kept open down to [`MAX_OPEN`]; of deeper ones only the current one is
//! open, and the walk returns from it through `..`.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Dir, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;

/// Maximum number of open directories; each has a buffer of 24 KiB.
const MAX_OPEN: usize = 64;
/// Maximum number of directories through which the walk returns by `..`; each needs 24 bytes.
const MAX_PASSED: usize = 100_000;

/// A walk over all entries below a directory.
pub struct TreeWalk {
    /// From the root to the current directory, except for those in `passed`, which are between the last two.
    open: Vec<Dir>,
    passed: Vec<PassedDirectory>,
    /// Position behind the last entry of the current directory.
    position: i64,
    is_partial: bool,
}

/// A directory that was closed while the walk is below it.
struct PassedDirectory {
    device: u64,
    inode: u64,
    /// Position of the next entry.
    position: i64,
}

impl TreeWalk {
    /// A walk over the entries below an open directory.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn new(root: OwnedFd) -> io::Result<Self> {
        Ok(Self { open: vec![Dir::new(root)?], passed: Vec::new(), position: 0, is_partial: false })
    }

    /// The name of the next entry; `None` at the end. A directory's entries follow it if it is [entered](Self::enter).
    pub fn next_entry(&mut self) -> Option<CString> {
        loop {
            match self.open.last_mut()?.read() {
                Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Some(Ok(entry)) => {
                    self.position = entry.offset();
                    return Some(entry.file_name().to_owned());
                }
                Some(Err(_)) => self.is_partial = true,
                None => self.leave(),
            }
        }
    }

    /// The directory of the last entry.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.open.last()?.fd().ok()
    }

    /// Continues with the entries below the last entry, which was opened as a directory.
    pub fn enter(&mut self, child: OwnedFd) {
        self.is_partial |= self.go_down(child).is_err();
    }

    fn go_down(&mut self, child: OwnedFd) -> io::Result<()> {
        let child = Dir::new(child)?;
        if self.open.len() < MAX_OPEN {
            self.open.push(child);
            return Ok(());
        }
        let Some(current) = self.open.last_mut() else {
            return Ok(());
        };
        if self.passed.len() == MAX_PASSED {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let Stat { st_dev, st_ino, .. } = current.stat()?;
        self.passed.push(PassedDirectory {
            device: st_dev,
            inode: st_ino,
            position: self.position,
        });
        *current = child;
        Ok(())
    }

    /// Whether entries were left out so far: a directory could not be read, was moved while the walk was below it, or is
    /// nested more than 100,000 deep.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Records that the caller could not read an entry, or a directory below it. Entries that vanish are not missing.
    pub fn skip(&mut self, error: Errno) {
        self.is_partial |= error != Errno::NOENT;
    }

    /// Returns to the directory above the current one.
    fn leave(&mut self) {
        let Some(left) = self.open.pop() else {
            return;
        };
        let Some(above) = self.passed.pop() else {
            return;
        };
        match reopen(&left, &above) {
            Ok(above) => self.open.push(above),
            // The directory was moved or removed. The nearest open directory is above it.
            Err(_) => {
                self.passed.clear();
                self.is_partial = true;
            }
        }
    }
}

/// Opens the directory above one, if it is still the expected one.
fn reopen(below: &Dir, above: &PassedDirectory) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(below.fd()?, c"..", flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&opened)?;
    if (stat.st_dev, stat.st_ino) != (above.device, above.inode) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut directory = Dir::new(opened)?;
    directory.seek(above.position)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::remove::open_beneath;
    use rustix::fs::{Mode, mkdirat, openat, renameat};
    use std::ffi::CStr;
    use std::path::Path;

    const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// Makes nested directories of two files each; returns those.
    fn nest(directory: &Path, levels: usize) -> Vec<OwnedFd> {
        let mut all = vec![rustix::fs::open(directory, DIRECTORY, Mode::empty()).unwrap()];
        for _ in 0..levels {
            let above = all.last().unwrap();
            for name in ["a", "d", "z"] {
                mkdirat(above, name, Mode::RWXU).unwrap();
            }
            let below = openat(above, "d", DIRECTORY, Mode::empty()).unwrap();
            all.push(below);
        }
        all
    }

    /// Walks, and calls `at` with each name. Returns the number of entries, and whether some are missing.
    fn walk(directory: &Path, mut at: impl FnMut(&CStr)) -> (usize, bool) {
        let root = std::fs::File::open(directory).unwrap();
        let mut walk = TreeWalk::new(root.into()).unwrap();
        let mut count = 0;
        while let Some(name) = walk.next_entry() {
            count += 1;
            at(&name);
            match open_beneath(walk.directory().unwrap(), &name) {
                Ok(child) => walk.enter(child),
                Err(error) => walk.skip(error),
            }
        }
        (count, walk.is_partial())
    }

    #[test]
    fn every_entry_at_any_depth_is_found_once() {
        for levels in [0, 1, MAX_OPEN - 1, MAX_OPEN, MAX_OPEN + 1, 1000] {
            let directory = tempfile::tempdir().unwrap();
            drop(nest(directory.path(), levels));
            let found = walk(directory.path(), |_| {});
            assert_eq!(found, (3 * levels, false), "{levels} levels");
        }
    }

    #[test]
    fn a_directory_that_is_moved_away_takes_only_the_entries_below_the_open_ones() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, elsewhere) = (directory.path().join("tree"), directory.path());
        std::fs::create_dir(&tree).unwrap();
        let all = nest(&tree, 200);
        let elsewhere = rustix::fs::open(elsewhere, DIRECTORY, Mode::empty()).unwrap();
        let mut depth = 0;
        let (count, is_partial) = walk(&tree, |name| {
            depth += usize::from(name == c"d");
            if name == c"d" && depth == 150 {
                renameat(&all[100], "d", &elsewhere, "d").unwrap();
            }
        });
        assert_eq!(depth, 200);
        assert!(is_partial);
        assert!((200 + 2 * MAX_OPEN - 2..=600).contains(&count), "{count}");
    }
}
