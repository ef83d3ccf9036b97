//! Small files whose content or kind is not in our hands.

use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

/// Opens a regular file for reading; a link, a pipe or a device is `InvalidInput`.
fn open_regular(path: &Path, follow_links: bool) -> io::Result<File> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    if !follow_links {
        flags |= OFlags::NOFOLLOW;
    }
    regular(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn regular(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(file)
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
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?;
    let file = regular(File::from(opened))?;
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
pub fn make_dir(path: &Path, mode: u32) -> io::Result<bool> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode & 0o777)) {
        Ok(()) => {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
            Ok(true)
        }
        Err(rustix::io::Errno::EXIST) if path.symlink_metadata()?.is_dir() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
