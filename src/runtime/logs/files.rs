//! Log files on disk: finding and opening them. Everything here blocks.

use super::names::{self, Rotated};
use crate::base::if_exists;
use crate::host::files::{PATH_ONLY, reopen};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Identifies a file independently of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Number of path components that containers may be able to replace: the directories of the pod and of the
/// container, and the log. Symbolic links in them are rejected; components above them belong to the
/// administrator, who may use links.
const UNTRUSTED_COMPONENTS: usize = 3;

/// Opens a log, which must be a regular file; other types are not opened. Symbolic links in place of the log
/// or of its directories are rejected, because a container with write access to them (one that mounts the
/// node's logs, for example) could otherwise read any file of the node through its logs.
pub(super) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    reopen(open_below(path, UNTRUSTED_COMPONENTS, PATH_ONLY)?)
}

/// Whether the directory of a log exists. A symbolic link in place of it or of the pod's directory is an
/// error.
pub(super) fn has_directory(log: &Path) -> io::Result<bool> {
    let directory = log.parent().unwrap_or(Path::new("/"));
    let opened = open_below(directory, UNTRUSTED_COMPONENTS - 1, OFlags::PATH | OFlags::DIRECTORY);
    Ok(if_exists(opened)?.is_some())
}

/// Opens a path whose last `untrusted` components must not be symbolic links.
fn open_below(path: &Path, untrusted: usize, flags: OFlags) -> io::Result<OwnedFd> {
    let above = path.ancestors().nth(untrusted).unwrap_or(Path::new("/"));
    let rest = path.strip_prefix(above).map_err(io::Error::other)?;
    let to_directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::open(above, to_directory, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = openat2(above, rest, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    opened.map_err(|error| match error {
        Errno::LOOP | Errno::XDEV => io::Error::new(
            io::ErrorKind::InvalidInput,
            "the log or its directory is a symbolic link",
        ),
        error => error.into(),
    })
}

/// The name of a log file, which is the beginning of its rotated files' names.
pub(super) fn log_name(log: &Path) -> io::Result<&str> {
    let name = log.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the path of a log file"))
}

/// Every rotated file of a log, unsorted and including unfinished ones; empty if the directory is missing.
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

/// The rotated files of a log without unfinished and duplicate ones, oldest first.
pub(super) fn history(log: &Path) -> io::Result<Vec<Rotated>> {
    rotated(log).map(names::in_use)
}
