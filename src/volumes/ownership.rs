//! `fsGroup` of volumes on paths of the node: changes the group of all files. Blocking.
//!
//! Upstream: `pkg/volume/volume_linux.go`.

use super::{
    PodDir,
    error::cannot,
    group::{READ_WRITE, VolumeGroup},
    paths::VolumePlugin,
    pod_dirs::write_marker,
};
use crate::host::TreeWalk;
use anyhow::Context as _;
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{CStr, OsStr},
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// `fsGroupChangePolicy`: when the group of a volume's files is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ChangePolicy {
    /// Whenever no other pod uses the volume.
    #[default]
    Always,
    /// Only if the volume's root directory does not have the expected group and mode.
    OnRootMismatch,
}

/// Changes the group of a volume, named by its PersistentVolume, once per pod. If another pod already uses it
/// (`shared`), or another kubelet has bound it for this pod, it is not changed.
///
/// Files that cannot be changed (they are immutable, or their file system has no groups) are left as they are, as
/// upstream does: whether the pod can use them is for the pod to find out.
pub(super) fn set_up(
    pod: &PodDir,
    volume: &str,
    directory: &Path,
    (group, policy): (VolumeGroup, ChangePolicy),
    shared: impl FnOnce() -> bool,
) -> anyhow::Result<()> {
    let marker = pod.ownership_marker(volume)?;
    if marker.join("ready").exists() || pod.volume(VolumePlugin::LOCAL, volume)?.exists() {
        return Ok(());
    }
    if !shared() {
        let unchanged = set_group(directory, group, policy);
        let unchanged = unchanged.with_context(cannot("set the group of", directory))?;
        unchanged.warn(volume, directory);
    }
    write_marker(pod, &marker, b"", 0o644)
}

/// The root directory is changed last, so that its group shows that all content was changed.
fn set_group(directory: &Path, group: VolumeGroup, policy: ChangePolicy) -> io::Result<Unchanged> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    let mut unchanged = Unchanged::default();
    if policy == ChangePolicy::OnRootMismatch && has_group_and_mode(&root, group)? {
        return Ok(unchanged);
    }
    let mut walk = TreeWalk::new(rustix::fs::openat(&root, c".", flags, Mode::empty())?)?;
    while let Some(name) = walk.next_entry() {
        let Some(parent) = walk.directory() else {
            continue;
        };
        match set_entry_group(parent, &name, group, &mut unchanged) {
            Ok(Some(child)) => walk.enter(child),
            // It was removed meanwhile.
            Ok(None) | Err(Errno::NOENT) => {}
            Err(error) => unchanged.add(parent, &name, error),
        }
    }
    unchanged.is_partial = walk.is_partial();
    let stat = rustix::fs::fstat(&root)?;
    if let Err(error) = change(root.as_fd(), &stat, group) {
        unchanged.add(root.as_fd(), c"", error);
    }
    Ok(unchanged)
}

/// The files of a volume that could not be changed.
#[derive(Default)]
struct Unchanged {
    count: usize,
    first: Option<(PathBuf, Errno)>,
    /// Whether there may be more in directories that could not be read, or were moved meanwhile.
    is_partial: bool,
}

impl Unchanged {
    fn add(&mut self, parent: BorrowedFd<'_>, name: &CStr, error: Errno) {
        self.count += 1;
        self.first.get_or_insert_with(|| {
            let parent = fs::read_link(of_descriptor(parent)).unwrap_or_default();
            (parent.join(OsStr::from_bytes(name.to_bytes())), error)
        });
    }

    fn warn(&self, volume: &str, directory: &Path) {
        let directory = directory.display();
        if let Some((path, error)) = &self.first {
            let (count, path) = (self.count, path.display());
            tracing::warn!(volume, %directory, count, %path, err = %error, "Failed to set the group of files of a volume");
        }
        if self.is_partial {
            tracing::warn!(volume, %directory, "Failed to set the group of a volume's files: not all of its directories could be read");
        }
    }
}

fn has_group_and_mode(directory: impl AsFd, group: VolumeGroup) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let mode = mode_of(&stat);
    Ok(group.matches(&stat) && group.with_group_permissions(mode, READ_WRITE, true) == mode)
}

/// Changes an entry; a symbolic link itself, never its target. Returns a directory, opened.
fn set_entry_group(
    parent: BorrowedFd<'_>,
    name: &CStr,
    group: VolumeGroup,
    unchanged: &mut Unchanged,
) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&entry)?;
    if let Err(error) = change(entry.as_fd(), &stat, group) {
        unchanged.add(parent, name, error);
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&entry, c".", flags, Mode::empty()).map(Some)
}

/// Sets the group, and its permissions also if that fails, as upstream does.
fn change(entry: BorrowedFd<'_>, stat: &Stat, group: VolumeGroup) -> Result<(), Errno> {
    let owned = group.set_link_group(entry, "", AtFlags::EMPTY_PATH);
    let is_directory = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => return owned,
        file_type => file_type == FileType::Directory,
    };
    let mode = group.with_group_permissions(mode_of(stat), READ_WRITE, is_directory);
    // `fchmod` fails on an `O_PATH` descriptor, and opening the file itself may have side effects if it is a device.
    let changed = rustix::fs::chmod(of_descriptor(entry), Mode::from_raw_mode(mode));
    owned.and(changed)
}

fn of_descriptor(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn mode_of(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}
