//! Deletes directory trees that containers wrote to, without touching anything outside of them.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Directories nested deeper than this are first moved up, so that containers cannot make this process exhaust its
/// stack or file descriptors.
const MAX_DEPTH: usize = 48;
/// How many times a directory may be non-empty after its entries were removed.
const MAX_FAILURES: usize = 8;

/// Removes a directory tree. Symbolic links are removed, not followed; a mount point in the tree is an error
/// (`CrossesDevices`), and nothing behind it is touched. A missing directory is no error. Blocking.
pub fn tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let name = CString::new(name.as_bytes())?;
    let base = match open_beneath(parent.as_fd(), &name) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Ok(rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?);
        }
        opened => opened?,
    };
    let mut sweep = Sweep { base: base.as_fd(), moved: 0 };
    let mut failures = 0;
    loop {
        let before = sweep.moved;
        sweep.empty(base.as_fd(), 0)?;
        match rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY) if sweep.moved > before => {}
            // Some file systems skip entries if the directory changes while it is read.
            Err(Errno::NOTEMPTY) if failures < MAX_FAILURES => failures += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

struct Sweep<'a> {
    base: BorrowedFd<'a>,
    moved: u64,
}

impl Sweep<'_> {
    /// Removes the content of `dir`; directories nested too deeply are moved into `base` and counted.
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let may_be_directory =
                matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if !may_be_directory {
                ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::empty()))?;
                continue;
            }
            let child = match open_beneath(dir, name) {
                Ok(child) => child,
                Err(Errno::NOENT) => continue,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::empty()))?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if depth >= MAX_DEPTH {
                self.move_up(dir, name)?;
                continue;
            }
            self.empty(child.as_fd(), depth + 1)?;
            drop(child);
            match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
                // The remaining entries are removed in the next pass.
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            let new_name =
                CString::new(format!(".deep-{}", self.moved)).map_err(|_| Errno::INVAL)?;
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(dir, name, self.base, &new_name, flags) {
                Err(Errno::EXIST) => {}
                result => return result,
            }
        }
    }
}

fn ignore_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Opens a subdirectory; fails for a symbolic link (`LOOP`/`NOTDIR`) and for a mount point (`XDEV`).
pub(super) fn open_beneath(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => open_same_device(dir, name, flags),
        result => result,
    }
}

/// Fallback for kernels without openat2: checks only that the file system is the same.
fn open_same_device(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let child = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    if rustix::fs::fstat(&child)?.st_dev == rustix::fs::fstat(dir)?.st_dev {
        Ok(child)
    } else {
        Err(Errno::XDEV)
    }
}
