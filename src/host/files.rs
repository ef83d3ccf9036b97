//! Access to small files that others may replace or write to.

use crate::base::if_exists;
use rustix::fs::{Access, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Whether this process may write to a file or directory, and its file system is writable.
///
/// # Errors
/// It may not, or the file does not exist.
pub fn may_write(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(path, Access::WRITE_OK)?)
}

/// Flags for opening a file that is later passed to [`reopen`].
pub const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens a file that was opened with [`PATH_ONLY`] for reading, if it is a regular file; `InvalidInput` otherwise.
/// Thus pipes and devices are never opened, which may have side effects or block.
pub fn reopen(found: OwnedFd) -> io::Result<(File, Metadata)> {
    let found = File::from(found);
    let metadata = found.metadata()?;
    if metadata.is_file() {
        Ok((File::from(open_again(&found)?), metadata))
    } else {
        let text = "not a regular file";
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

/// Opens the file of an `O_PATH` descriptor for reading.
pub(super) fn open_again(found: &impl AsRawFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    // For regular files neither flag has an effect, except for `NONBLOCK` on some network file systems.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a regular file for reading; other types of files are `InvalidInput`.
fn open_regular(path: &Path, follow_links: bool) -> io::Result<File> {
    let mut flags = PATH_ONLY;
    if !follow_links {
        flags |= OFlags::NOFOLLOW;
    }
    let found = rustix::fs::open(path, flags, Mode::empty())?;
    reopen(found).map(|(file, _)| file)
}

/// The last `limit` bytes of a regular file that others may be writing to. Symbolic links are not followed.
pub fn read_tail(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path, false)?;
    let wanted = u64::try_from(limit).unwrap_or(u64::MAX);
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(wanted)))?;
    let mut bytes = Vec::new();
    file.take(wanted).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first `limit` bytes of a regular file, following symbolic links. A missing file is empty.
pub fn read_head_or_empty(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let Some(file) = if_exists(open_regular(path, true))? else {
        return Ok(Vec::new());
    };
    let mut bytes = Vec::new();
    file.take(u64::try_from(limit).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first `limit` bytes of a regular file below a directory that others write to. Symbolic links are resolved as
/// if the directory were the root, so they cannot lead out of it.
pub fn read_within(directory: &Path, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(root, path, PATH_ONLY, Mode::empty(), resolve)?;
    let (file, _) = reopen(found)?;
    let mut bytes = Vec::new();
    file.take(u64::try_from(limit).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a path below the directory `root`, which is already open, with [`PATH_ONLY`]. Symbolic links are followed if
/// they end inside. The kernel rejects an absolute link even if it leads back inside: such a link is resolved first, and
/// the result is opened without following links, so concurrent changes have no effect.
///
/// # Errors
/// `XDEV` for paths outside.
pub fn open_beneath(root: &Path, opened: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let open = |path: &Path, resolve: ResolveFlags| {
        let itself = Path::new(".");
        let path = if path.as_os_str().is_empty() { itself } else { path };
        let resolve = resolve | ResolveFlags::BENEATH;
        rustix::fs::openat2(opened, path, PATH_ONLY, Mode::empty(), resolve)
    };
    match open(path, ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::XDEV) => {}
        result => return result,
    }
    let resolved = |path: &Path| {
        let error = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        path.canonicalize().map_err(error)
    };
    let (base, real) = (resolved(root)?, resolved(&root.join(path))?);
    let within = real.strip_prefix(base).map_err(|_| Errno::XDEV)?;
    open(within, ResolveFlags::NO_SYMLINKS)
}

/// Opens a path below a directory without following links.
pub fn open_without_links(
    directory: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(directory, path, flags, Mode::from_raw_mode(mode), resolve)
}

/// Overwrites a file in place and sets its mode. Keeps the inode, because containers may have the file mounted.
/// Symbolic links are not followed.
pub fn write_in_place(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    file.write_all(bytes)
}

/// Creates a directory in an existing one, with this mode regardless of the umask. An existing directory is not
/// changed; any other file of that name is `AlreadyExists`. Returns whether it was created.
pub fn create_dir(path: &Path, mode: u32) -> io::Result<bool> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode & 0o777)) {
        Ok(()) => {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
            Ok(true)
        }
        Err(Errno::EXIST) if path.symlink_metadata()?.is_dir() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
