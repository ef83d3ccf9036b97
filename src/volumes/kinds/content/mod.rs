//! Content volumes, whose files the kubelet writes: configMap, secret, downwardAPI, projected.
//!
//! `plan`, `sources`, `payload` and `mount_points` are pure; this file, `atomic_writer` and `owner` access the file
//! system.

mod atomic_writer;
mod mount_points;
#[path = "../../group.rs"]
mod owner;
mod payload;
mod plan;
mod sources;

pub use atomic_writer::{Written, write as write_files};
pub use owner::VolumeGroup;
pub use payload::{FileContent, Payload};
pub use plan::{
    BundleSource, CertificateSource, ContentVolume, FileItem, ObjectSource, TokenSource,
    VolumeFileSource,
};

pub(super) use mount_points::mount_points;
pub(super) use owner::READ_WRITE;
pub(super) use plan::sources;
pub(super) use sources::{VolumeInputs, is_fixed, may_change, object_keys, payload};

use super::{
    Mounter, PodDir,
    error::cannot,
    pod_dirs::{create_dir, write_marker},
};
use crate::host::files::open_without_links;
use anyhow::Context as _;
use owner::READ_ONLY;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags},
    io::Errno,
};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// Mode of a volume's root directory on disk: every container of the pod may write to an emptyDir.
pub(super) const DISK_MODE: u32 = 0o777;
/// The same in memory: the kernel's default of a tmpfs; sticky, so that users cannot remove each other's files.
pub(super) const MEMORY_MODE: u32 = 0o1777;
const MOUNT_POINT_MODE: u32 = 0o755;

/// SHA-256 of a payload.
pub(super) type PayloadDigest = [u8; 32];

/// Creates the volume and its files if they do not exist yet. Returns its path. Blocking.
pub(super) fn set_up(
    pod: &PodDir,
    name: &str,
    volume: &ContentVolume,
    payload: &Payload,
    mounter: &dyn Mounter,
) -> anyhow::Result<PathBuf> {
    create_dir(&pod.volumes_of(volume.plugin), 0o750)?;
    let directory = pod.volume(volume.plugin, name)?;
    let fresh = create_dir(&directory, DISK_MODE)?;
    if let Some(size) = volume.memory
        && (fresh || !is_mounted(&directory, mounter)?)
    {
        mounter
            .tmpfs(&directory, size, MEMORY_MODE)
            .with_context(cannot("mount a tmpfs on", &directory))?;
    }
    prepare_root(&directory, volume).with_context(cannot("prepare", &directory))?;
    write(&directory, volume, payload)?;
    // Records that the volume was set up and from which specification, at the path where upstream records it.
    let (marker, specification) = (pod.content_marker(name)?, spec_digest(volume));
    write_marker(pod, &marker, specification.as_bytes(), 0o644)?;
    Ok(directory)
}

/// The digest of what identifies a volume: its sources, but not what may change while the pod runs (values of the pod,
/// the size of the tmpfs) or with a version of the kubelet.
fn spec_digest(volume: &ContentVolume) -> String {
    let mut text = format!("{} {:?}\n", volume.plugin, volume.group);
    for source in &volume.sources {
        text += &source.identity();
        text.push('\n');
    }
    let digest = Sha256::digest(text);
    crate::base::hex(digest.iter().take(16))
}

/// Replaces the content of an existing volume. Blocking.
pub(super) fn write(
    directory: &Path,
    volume: &ContentVolume,
    payload: &Payload,
) -> anyhow::Result<()> {
    let written = write_files(directory, payload, volume.group);
    if let Ok(Written::Now) = written {
        tracing::debug!(volume = %directory.display(), files = payload.len(), "Wrote a volume");
    }
    written
        .map(drop)
        .with_context(cannot("write the files of", directory))
}

/// The path of the volume if an earlier kubelet set it up from the same specification and it still exists. Blocking.
pub(super) fn find_existing(
    pod: &PodDir,
    name: &str,
    volume: &ContentVolume,
    mounter: &dyn Mounter,
) -> Option<PathBuf> {
    let ready = pod.content_marker(name).ok()?.join("ready");
    let recorded = std::fs::read_to_string(ready).ok()?;
    let directory = pod.volume(volume.plugin, name).ok()?;
    let mounted = volume.memory.is_none() || is_mounted(&directory, mounter).unwrap_or(false);
    let there = recorded == spec_digest(volume) && mounted && atomic_writer::is_written(&directory);
    there.then_some(directory)
}

/// The digest of a payload.
pub(super) fn digest(payload: &Payload) -> PayloadDigest {
    let mut hasher = Sha256::new();
    for (path, content) in payload.files() {
        hasher.update((path.len() as u64).to_le_bytes());
        hasher.update(path);
        hasher.update(content.mode.to_le_bytes());
        hasher.update(content.owner.map_or(-1, i64::from).to_le_bytes());
        hasher.update((content.data.len() as u64).to_le_bytes());
        hasher.update(&content.data);
    }
    hasher.finalize().into()
}

fn is_mounted(directory: &Path, mounter: &dyn Mounter) -> anyhow::Result<bool> {
    mounter
        .is_mounted(directory)
        .with_context(cannot("read", directory))
}

/// Sets the group of the volume's root directory and creates the mount points in it.
fn prepare_root(directory: &Path, volume: &ContentVolume) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    if volume.group != VolumeGroup(None) {
        let mode = rustix::fs::fstat(&root)?.st_mode & 0o7777;
        volume
            .group
            .set_group_and_mode(root.as_fd(), mode, READ_ONLY, true)?;
    }
    for point in &volume.mount_points {
        create_dirs(root.as_fd(), point)?;
    }
    Ok(())
}

/// Creates a directory and its parents, without following links.
fn create_dirs(root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    let mut at: OwnedFd = open_dir(root, ".")?;
    for name in path.split('/') {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(MOUNT_POINT_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        at = open_dir(at.as_fd(), name)?;
    }
    Ok(())
}

fn open_dir(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    open_without_links(parent, name, OFlags::PATH | OFlags::DIRECTORY, 0)
}

#[cfg(test)]
mod writer_tests;
