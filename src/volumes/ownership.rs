//! `fsGroup` of volumes on paths of the node: changes the group of all files. Blocking.
//!
//! Upstream: `pkg/volume/volume_linux.go`.

use super::{
    PodDir,
    content::{READ_WRITE, VolumeGroup},
    error::cannot,
    paths::VolumePlugin,
    pod_dirs::write_marker,
};
use anyhow::Context as _;
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{io, path::Path};

/// Maximum depth of directories; deeper ones are an error, because every directory on the path is kept open.
const MAX_DEPTH: usize = 128;

/// `fsGroupChangePolicy`: when the group of a volume's files is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangePolicy {
    /// Whenever no other pod uses the volume.
    #[default]
    Always,
    /// Only if the volume's root directory does not have the expected group and mode.
    OnRootMismatch,
}

/// Changes the group of a volume, named by its PersistentVolume, once per pod. If another pod already uses it
/// (`shared`), or another kubelet has bound it for this pod, it is not changed.
pub(super) fn set_up(
    pod: &PodDir,
    volume: &str,
    directory: &Path,
    (group, policy): (VolumeGroup, ChangePolicy),
    shared: impl FnOnce() -> bool,
) -> anyhow::Result<()> {
    let marker = pod.ownership_marker(volume)?;
    if marker.join("ready").exists() || pod.volume(VolumePlugin::Local, volume)?.exists() {
        return Ok(());
    }
    if !shared() {
        set_group(directory, group, policy).with_context(cannot("set the group of", directory))?;
    }
    write_marker(pod, &marker, b"", 0o644)
}

/// The root directory is changed last, so that its group shows that all content was changed.
fn set_group(directory: &Path, group: VolumeGroup, policy: ChangePolicy) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    let mode = mode_of(&rustix::fs::fstat(&opened)?);
    if policy == ChangePolicy::OnRootMismatch && has_group_and_mode(&opened, group)? {
        return Ok(());
    }
    set_content_group(opened.as_fd(), group, 0)?;
    group.set_group_and_mode(opened.as_fd(), mode, READ_WRITE, true)
}

fn has_group_and_mode(directory: impl AsFd, group: VolumeGroup) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let mode = mode_of(&stat);
    Ok(group.matches(&stat) && group.with_group_permissions(mode, READ_WRITE, true) == mode)
}

/// Changes symbolic links themselves, never their targets.
fn set_content_group(
    directory: BorrowedFd<'_>,
    group: VolumeGroup,
    depth: usize,
) -> io::Result<()> {
    if depth == MAX_DEPTH {
        let text = format!("there are directories below a depth of {MAX_DEPTH}");
        return Err(io::Error::other(text));
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let child = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&child)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(&child, c".", flags, Mode::empty())?;
                set_content_group(opened.as_fd(), group, depth + 1)?;
                group.set_group_and_mode(opened.as_fd(), mode_of(&stat), READ_WRITE, true)?;
            }
            FileType::Symlink => set_entry_group(child.as_fd(), group)?,
            _ => {
                set_entry_group(child.as_fd(), group)?;
                // `fchmod` fails on an `O_PATH` descriptor, and opening the file itself may have side effects if it
                // is a device.
                let path = format!("/proc/self/fd/{}", child.as_raw_fd());
                let mode = group.with_group_permissions(mode_of(&stat), READ_WRITE, false);
                rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
            }
        }
    }
    Ok(())
}

fn set_entry_group(entry: BorrowedFd<'_>, group: VolumeGroup) -> io::Result<()> {
    Ok(group.set_link_group(entry, "", AtFlags::EMPTY_PATH)?)
}

fn mode_of(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}
