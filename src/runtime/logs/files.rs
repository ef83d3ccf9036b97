//! Log files on disk: finding and opening them. Everything here blocks.

use super::names::{self, Rotated};
use crate::host::files::{PATH_ONLY, if_exists, reopen};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};
use std::{
    fs::{self, File, Metadata},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
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

/// A log lies in a directory of its container, which lies in a directory of its pod. What is above is the
/// administrator's, who may have put links there; these and the log are not.
const OWN: usize = 3;

/// Opens a regular file, and nothing else, not even to see what it is. A link in place of
/// a log or of one of its directories is refused too, wherever it leads: who can write there (a container
/// with the node's logs mounted, say) could have any file of the node read out.
pub(super) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    reopen(open_below(path, OWN, PATH_ONLY)?)
}

/// Whether the directory of a log is there. A link on the way to it is an error.
pub(super) fn has_directory(log: &Path) -> io::Result<bool> {
    let directory = log.parent().unwrap_or(Path::new("/"));
    let opened = open_below(directory, OWN - 1, OFlags::PATH | OFlags::DIRECTORY);
    Ok(if_exists(opened)?.is_some())
}

/// Opens something; its last `own` names are not links.
fn open_below(path: &Path, own: usize, flags: OFlags) -> io::Result<OwnedFd> {
    let above = path.ancestors().nth(own).unwrap_or(Path::new("/"));
    let rest = path.strip_prefix(above).map_err(io::Error::other)?;
    let to_directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::open(above, to_directory, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = openat2(above, rest, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    opened.map_err(|error| match error {
        Errno::LOOP | Errno::XDEV => io::Error::new(
            io::ErrorKind::InvalidInput,
            "there is a link in place of a log or its directory",
        ),
        error => error.into(),
    })
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
    let Some(entries) = if_exists(fs::read_dir(directory))? else {
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
