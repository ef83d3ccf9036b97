//! `fsGroup` of volumes: changes the group of all files. Blocking.
//!
//! A walk follows no link and crosses no mount, may be cancelled, and changes only what differs.
//!
//! Upstream: `pkg/volume/volume_linux.go`.

use super::PodDir;
use super::error::cannot;
use super::group::{READ_WRITE, VolumeGroup};
use super::paths::VolumePlugin;
use super::pod_dirs::write_marker;
use crate::host::TreeWalk;
use anyhow::Context as _;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{fs, io};

/// The bit of a directory that gives new files its group.
const SETGID: u32 = 0o2000;

/// `fsGroupChangePolicy`: when the group of a volume's files is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ChangePolicy {
    /// Whenever no other pod uses the volume.
    #[default]
    Always,
    /// Only if the volume's root directory does not have the expected group and mode.
    OnRootMismatch,
}

/// A walk over the files of a volume, as seen from outside.
#[derive(Debug, Default)]
pub(super) struct OwnershipWalk {
    is_cancelled: AtomicBool,
    processed: AtomicU64,
}

impl OwnershipWalk {
    /// Ends the walk at the next file.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// The number of files so far.
    pub(super) fn processed(&self) -> u64 {
        self.processed.load(Ordering::Relaxed)
    }
}

/// Changes the group of a volume, named by its PersistentVolume, once per pod. If another pod already uses it
/// (`shared`), or another kubelet has bound it for this pod, it is not changed.
pub(super) fn set_up(
    pod: &PodDir,
    volume: &str,
    directory: &Path,
    owner: (VolumeGroup, ChangePolicy),
    shared: impl FnOnce() -> bool,
    walk: &OwnershipWalk,
) -> anyhow::Result<()> {
    let marker = pod.ownership_marker(volume)?;
    if marker.join("ready").exists() || pod.volume(VolumePlugin::LOCAL, volume)?.exists() {
        return Ok(());
    }
    if !shared() {
        apply(volume, directory, owner, walk)?;
    }
    write_marker(pod, &marker, b"", 0o644)
}

/// Gives the files of a volume to a group.
///
/// Files that cannot be changed (they are immutable, or their file system has no groups) are left as they are, as
/// upstream does: whether the pod can use them is for the pod to find out.
pub(super) fn apply(
    volume: &str,
    directory: &Path,
    (group, policy): (VolumeGroup, ChangePolicy),
    walk: &OwnershipWalk,
) -> anyhow::Result<()> {
    let unchanged = set_group(directory, group, policy, walk);
    let unchanged = unchanged.with_context(cannot("set the group of", directory))?;
    unchanged.warn(volume, directory);
    Ok(())
}

/// The root directory is changed last, so that its group and mode show that all content was changed.
fn set_group(
    directory: &Path,
    group: VolumeGroup,
    policy: ChangePolicy,
    walk: &OwnershipWalk,
) -> io::Result<Unchanged> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    if policy == ChangePolicy::OnRootMismatch && has_group_and_mode(&root, group)? {
        return Ok(Unchanged::default());
    }
    let mut change =
        GroupChange { root: &root, group, has_begun: false, unchanged: Unchanged::default() };
    let mut tree = TreeWalk::new(rustix::fs::openat(&root, c".", flags, Mode::empty())?)?;
    while let Some(name) = tree.next_entry() {
        if walk.is_cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other("the pod does not want the volume any more"));
        }
        walk.processed.fetch_add(1, Ordering::Relaxed);
        let Some(parent) = tree.directory() else {
            continue;
        };
        match change.entry(parent, &name) {
            Ok(Some(child)) => tree.enter(child),
            // It was removed meanwhile, or something is mounted on it.
            Ok(None) | Err(Errno::NOENT | Errno::XDEV) => {}
            Err(error) => change.unchanged.add(parent, &name, error),
        }
    }
    change.unchanged.is_partial = tree.is_partial();
    let stat = rustix::fs::fstat(&root)?;
    change.file(&root, &stat, root.as_fd(), c"");
    Ok(change.unchanged)
}

/// A walk that changes files.
struct GroupChange<'a> {
    root: &'a OwnedFd,
    group: VolumeGroup,
    /// A file has been changed.
    has_begun: bool,
    unchanged: Unchanged,
}

impl GroupChange<'_> {
    /// Changes an entry; a symbolic link itself, never its target. Returns a directory, opened. An entry on which something
    /// is mounted is an error.
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
        let entry = open_entry(parent, name)?;
        let stat = rustix::fs::fstat(&entry)?;
        self.file(&entry, &stat, parent, name);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&entry, c".", flags, Mode::empty()).map(Some)
    }

    /// Changes a file unless it is as it has to be: an unchanged volume is only read.
    fn file(&mut self, file: &OwnedFd, stat: &Stat, parent: BorrowedFd<'_>, name: &CStr) {
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let mode = mode_of(stat);
        let wanted = match file_type {
            FileType::Symlink => mode,
            _ => {
                let is_directory = file_type == FileType::Directory;
                self.group.with_group_permissions(mode, READ_WRITE, is_directory)
            }
        };
        if self.group.matches(stat) && mode == wanted {
            return;
        }
        let changed = self.begin();
        let mode = (file_type != FileType::Symlink).then_some(wanted);
        let changed = changed.and_then(|()| change(file.as_fd(), mode, self.group));
        if let Err(error) = changed {
            self.unchanged.add(parent, name, error);
        }
    }

    /// Before the first change: the root directory no longer has the mode of a volume that belongs to a group, also if
    /// that is another group. So a walk that is interrupted is repeated, whatever the policy.
    fn begin(&mut self) -> Result<(), Errno> {
        if self.has_begun {
            return Ok(());
        }
        self.has_begun = true;
        let mode = mode_of(&rustix::fs::fstat(self.root)?);
        if mode & SETGID == 0 {
            return Ok(());
        }
        rustix::fs::fchmod(self.root, Mode::from_raw_mode(mode & !SETGID))
    }
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

/// Opens an entry without following it if it is a link. An error if something is mounted on it.
fn open_entry(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
        // Before Linux 5.6: only another file system is recognised.
        Err(Errno::NOSYS) => {
            let entry = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            if rustix::fs::fstat(&entry)?.st_dev != rustix::fs::fstat(parent)?.st_dev {
                return Err(Errno::XDEV);
            }
            Ok(entry)
        }
        opened => opened,
    }
}

/// Sets the group, and its permissions also if that fails, as upstream does. A link has no permissions.
fn change(entry: BorrowedFd<'_>, mode: Option<u32>, group: VolumeGroup) -> Result<(), Errno> {
    let owned = group.set_link_group(entry, "", AtFlags::EMPTY_PATH);
    let Some(mode) = mode else { return owned };
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
