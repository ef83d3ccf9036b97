//! Writes the files of a volume atomically: readers see either the old version or the new one (upstream's
//! `AtomicWriter`). Blocking.
//!
//! The layout is upstream's: the files are in a directory named after the time, `..data` is a symbolic link to it,
//! and each user-visible name is a symbolic link into `..data`. A new version is written beside the old one and
//! becomes current by renaming one link. All accesses are relative to file descriptors and follow no links, because a
//! privileged container may have changed the volume.

use super::payload::{FileContent, Payload};
use crate::base::clock;
use crate::host::files::{PATH_ONLY, open_without_links, reopen};
use crate::host::remove;
use crate::volumes::group::{READ_ONLY, VolumeGroup};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The link to the current version.
const DATA: &str = "..data";
/// The temporary name of that link until it is renamed.
const NEW_DATA: &str = "..data_tmp";
/// The prefix of names that are reserved for the writer.
const RESERVED_PREFIX: &[u8] = b"..";
const VERSION_MODE: u32 = 0o755;
/// How many names for a version directory are tried.
const NAME_TRIES: usize = 16;

/// Whether the content changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// A new version was written.
    Now,
    /// The volume already had this content.
    Before,
}

/// Makes the volume contain exactly these files, and sets their group if there is one. Removes what an interrupted
/// write left.
///
/// # Errors
/// A file operation failed; the volume then keeps its old content.
pub fn write(volume: &Path, payload: &Payload, group: VolumeGroup) -> io::Result<Written> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(volume, flags, Mode::empty())?;
    let current = current_version(root.as_fd());
    let current_matches = match &current {
        Some(version) => is_current(root.as_fd(), version, payload, group),
        None => false,
    };
    let (version, written) = match current {
        Some(version) if current_matches => (version, Written::Before),
        _ => {
            let version = make_version(volume, root.as_fd(), payload, group)?;
            if let Err(error) = switch(root.as_fd(), &version, group) {
                remove::tree(&volume.join(&version))?;
                return Err(error.into());
            }
            (version, Written::Now)
        }
    };
    update_links(volume, root.as_fd(), &version, payload, group)?;
    Ok(written)
}

/// Whether a version was completely written before.
pub(super) fn is_written(volume: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(volume, flags, Mode::empty())
        .is_ok_and(|root| current_version(root.as_fd()).is_some())
}

/// The target of `..data`; `None` if that is not a link of the writer.
fn current_version(root: BorrowedFd<'_>) -> Option<String> {
    let target = rustix::fs::readlinkat(root, DATA, Vec::new()).ok()?;
    let target = target.into_string().ok()?;
    let plain =
        target.as_bytes().starts_with(RESERVED_PREFIX) && !target.contains('/') && target != "..";
    let there = open_dir(root, &target).is_ok();
    (plain && there).then_some(target)
}

/// Whether a version consists of exactly these files. False if it cannot be read.
fn is_current(root: BorrowedFd<'_>, version: &str, payload: &Payload, group: VolumeGroup) -> bool {
    let Ok(version) = open_dir(root, version) else {
        return false;
    };
    let version = version.as_fd();
    let same = |path: &str, content: &FileContent| has_content(version, path, content, group);
    payload.files().all(|(path, content)| same(path, content).unwrap_or(false))
        && has_only(version, payload).unwrap_or(false)
}

fn has_content(
    version: BorrowedFd<'_>,
    path: &str,
    content: &FileContent,
    group: VolumeGroup,
) -> io::Result<bool> {
    let (file, _) = reopen(open_without_links(version, path, PATH_ONLY, 0)?)?;
    let stat = rustix::fs::fstat(&file)?;
    let mode = group.with_group_permissions(content.mode, READ_ONLY, false);
    let length = content.data.len() as u64;
    let owned = content.owner.is_none_or(|owner| stat.st_uid == owner);
    if stat.st_mode & 0o7777 != mode || !group.matches(&stat) || !owned {
        return Ok(false);
    }
    let mut bytes = Vec::with_capacity(content.data.len());
    file.take(length + 1).read_to_end(&mut bytes)?;
    Ok(bytes == content.data)
}

/// Whether the directory has no file that is not in the payload, and no empty directory.
fn has_only(version: BorrowedFd<'_>, payload: &Payload) -> io::Result<bool> {
    let mut directories = BTreeSet::new();
    for (path, _) in payload.files() {
        directories.extend(path.match_indices('/').filter_map(|(at, _)| path.get(..at)));
    }
    let mut pending = vec![String::new()];
    while let Some(directory) = pending.pop() {
        let at = match directory.as_str() {
            "" => ".",
            path => path,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        for entry in Dir::read_from(open_without_links(version, at, flags, 0)?)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                return Ok(false);
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let path = match directory.as_str() {
                "" => name.to_string(),
                parent => format!("{parent}/{name}"),
            };
            if directories.contains(path.as_str()) {
                pending.push(path);
            } else if payload.get(&path).is_none() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Writes all files to a new version directory, which is removed if that fails.
fn make_version(
    volume: &Path,
    root: BorrowedFd<'_>,
    payload: &Payload,
    group: VolumeGroup,
) -> io::Result<String> {
    let name = make_version_dir(root)?;
    let filled = fill(root, &name, payload, group);
    if let Err(error) = filled {
        remove::tree(&volume.join(&name))?;
        return Err(error);
    }
    Ok(name)
}

fn make_version_dir(root: BorrowedFd<'_>) -> io::Result<String> {
    let now = clock::timestamp().strftime("..%Y_%m_%d_%H_%M_%S");
    let mut tries = 0;
    loop {
        let name = format!("{now}.{}", fastrand::u32(..));
        match rustix::fs::mkdirat(root, &name, Mode::from_raw_mode(VERSION_MODE)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) if tries < NAME_TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

fn fill(root: BorrowedFd<'_>, name: &str, payload: &Payload, group: VolumeGroup) -> io::Result<()> {
    let version = open_dir(root, name)?;
    group.set_group_and_mode(version.as_fd(), VERSION_MODE, READ_ONLY, true)?;
    let mut made = BTreeSet::new();
    for (path, content) in payload.files() {
        for (at, _) in path.match_indices('/') {
            let directory = path.get(..at).unwrap_or_default();
            if made.insert(directory) {
                make_dir(version.as_fd(), directory, group)?;
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = File::from(open_without_links(version.as_fd(), path, flags, 0o600)?);
        file.write_all(&content.data)?;
        if let Some(owner) = content.owner {
            rustix::fs::fchown(&file, Some(Uid::from_raw(owner)), None)?;
        }
        group.set_group_and_mode(file.as_fd(), content.mode, READ_ONLY, false)?;
    }
    Ok(())
}

fn make_dir(version: BorrowedFd<'_>, path: &str, group: VolumeGroup) -> io::Result<()> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let parent = open_without_links(version, parent, OFlags::PATH | OFlags::DIRECTORY, 0)?;
    rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(VERSION_MODE))?;
    let made = open_dir(parent.as_fd(), name)?;
    group.set_group_and_mode(made.as_fd(), VERSION_MODE, READ_ONLY, true)
}

/// Makes a version the current one.
fn switch(root: BorrowedFd<'_>, version: &str, group: VolumeGroup) -> Result<(), Errno> {
    match rustix::fs::unlinkat(root, NEW_DATA, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    rustix::fs::symlinkat(version, root, NEW_DATA)?;
    group.set_link_group(root, NEW_DATA, AtFlags::empty())?;
    rustix::fs::renameat(root, NEW_DATA, root, DATA)
}

/// Creates missing links, and removes outdated links and version directories.
fn update_links(
    volume: &Path,
    root: BorrowedFd<'_>,
    version: &str,
    payload: &Payload,
    group: VolumeGroup,
) -> io::Result<()> {
    let first_name = |path| str::split(path, '/').next().unwrap_or_default();
    let mut missing: BTreeSet<&str> = payload.files().map(|(path, _)| first_name(path)).collect();
    let kept = [".", "..", DATA, version].map(str::as_bytes);
    // Listed before anything is removed, because some file systems skip entries if the directory changes meanwhile.
    let mut surplus = Vec::new();
    for entry in Dir::read_from(root)? {
        let name = entry?.file_name().to_owned();
        let wanted = name.to_str().is_ok_and(|name| missing.remove(name));
        if !wanted && !kept.contains(&name.to_bytes()) {
            surplus.push(name);
        }
    }
    for name in surplus {
        if name.to_bytes().starts_with(RESERVED_PREFIX) {
            remove::tree(&volume.join(OsStr::from_bytes(name.to_bytes())))?;
        } else if leads_into_data(root, &name) {
            rustix::fs::unlinkat(root, &name, AtFlags::empty())?;
        }
    }
    for name in missing {
        rustix::fs::symlinkat(format!("{DATA}/{name}"), root, name)?;
        group.set_link_group(root, name, AtFlags::empty())?;
    }
    Ok(())
}

/// Whether an entry is a link of the writer; mount points of other volumes are not.
fn leads_into_data(root: BorrowedFd<'_>, name: &CStr) -> bool {
    rustix::fs::readlinkat(root, name, Vec::new())
        .is_ok_and(|target| target.to_bytes().starts_with(b"..data/"))
}

fn open_dir(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    open_without_links(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}
