//! Small files whose content or kind is not in our hands.

use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::{
    fs::{File, Metadata},
    io::{self, Read, Seek, SeekFrom, Write},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

/// How to open what is to be reopened with [`reopen`].
pub const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens for reading what was opened with [`PATH_ONLY`], if it is a regular file; `InvalidInput` otherwise. So
/// no pipe or device is ever opened, which may have an effect or take for ever.
pub fn reopen(found: OwnedFd) -> io::Result<(File, Metadata)> {
    let metadata = File::from(found.try_clone()?).metadata()?;
    if metadata.is_file() {
        Ok((File::from(open_again(&found)?), metadata))
    } else {
        let text = "not a regular file";
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

/// Opens for reading what an `O_PATH` descriptor refers to.
pub(super) fn open_again(found: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    // Neither flag has an effect on regular files but the first on some network file systems.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a regular file for reading; a link, a pipe or a device is `InvalidInput`.
fn open_regular(path: &Path, follow_links: bool) -> io::Result<File> {
    let mut flags = PATH_ONLY;
    if !follow_links {
        flags |= OFlags::NOFOLLOW;
    }
    let found = rustix::fs::open(path, flags, Mode::empty())?;
    reopen(found).map(|(file, _)| file)
}

/// The last `limit` bytes of a regular file that others may be writing. Links are not followed.
pub fn read_tail(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path, false)?;
    let wanted = u64::try_from(limit).unwrap_or(u64::MAX);
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(wanted)))?;
    let mut bytes = Vec::new();
    file.take(wanted).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first `limit` bytes of a regular file, links followed. A missing file is empty.
pub fn read_head_or_empty(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = match open_regular(path, true) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(u64::try_from(limit).unwrap_or(u64::MAX))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first `limit` bytes of a regular file below a directory that others write to. Links are
/// followed as if the directory were the root: none leads out of it.
pub fn read_within(directory: &Path, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(root, path, PATH_ONLY, Mode::empty(), resolve)?;
    let (file, _) = reopen(found)?;
    let mut bytes = Vec::new();
    file.take(u64::try_from(limit).unwrap_or(u64::MAX))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file in place, keeping its inode (containers may have it mounted), with exactly this
/// mode. Links are not followed.
pub fn write_in_place(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    file.write_all(bytes)
}

/// Makes a directory (its parent must be there) with exactly this mode, whatever the umask. One
/// that exists is left as it is; anything else of that name is `AlreadyExists`. Returns whether it
/// was made now.
pub fn create_dir(path: &Path, mode: u32) -> io::Result<bool> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode & 0o777)) {
        Ok(()) => {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
            Ok(true)
        }
        Err(rustix::io::Errno::EXIST) if path.symlink_metadata()?.is_dir() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
