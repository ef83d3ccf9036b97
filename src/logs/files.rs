//! Log files on disk: finding and opening them. Everything here blocks.

use super::names::{self, Rotated};
use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Opens without waiting for the other end of a pipe, and refuses all but regular files.
pub(super) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY);
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )),
    }
}

/// `None` for "not found".
pub(super) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The name of a log file, which is the beginning of its rotated files' names.
pub(super) fn log_name(log: &Path) -> io::Result<&str> {
    let name = log.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the path of a log file"))
}

/// Every rotated file of a log, in no order, unfinished ones included; none when the directory is
/// missing.
pub(super) fn rotated(log: &Path) -> io::Result<Vec<Rotated>> {
    let name = log_name(log)?;
    let directory = log.parent().unwrap_or(Path::new("/"));
    let Some(entries) = found(fs::read_dir(directory))? else {
        return Ok(Vec::new());
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?.file_name();
        files.extend(entry.to_str().and_then(|entry| Rotated::parse(name, entry)));
    }
    Ok(files)
}

/// The rotated files of a log that hold something, oldest first.
pub(super) fn history(log: &Path) -> io::Result<Vec<Rotated>> {
    rotated(log).map(names::in_use)
}
