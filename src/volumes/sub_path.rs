//! subPath mounts, protected from redirection by containers. Blocking.
//!
//! The sub-path is opened with the kernel resolving links only within the volume, whatever a container replaces
//! concurrently. The opened descriptor is what is bind-mounted, so later replacements have no effect.

use super::Mounter;
use super::error::cannot;
use super::pod_volumes::PodVolumes;
use crate::base::if_exists;
use crate::host::files::{open_beneath, open_without_links};
use anyhow::{Context as _, anyhow};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// A sub-path of a volume mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPathRequest {
    /// Index in the container's `volumeMounts`.
    pub mount_index: usize,
    /// Name of the volume.
    pub volume: String,
    /// Upstream's name of the volume's specification: of the PersistentVolume for a claim. The directory of the bind mount
    /// has it, so that another kubelet finds the mount when it undoes the volume.
    pub spec_name: String,
    /// The path of the volume on the node.
    pub volume_path: PathBuf,
    /// The sub-path relative to the volume, with variables expanded.
    pub sub_path: String,
}

/// The path components of a sub-path, which has to be relative and without `..` (upstream's check).
pub fn components(sub_path: &str) -> anyhow::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in Path::new(sub_path).components() {
        match component {
            Component::Normal(name) => names.push(name.to_str().ok_or_else(|| escapes(sub_path))?),
            Component::CurDir => {}
            _ => return Err(escapes(sub_path)),
        }
    }
    Ok(names)
}

fn escapes(sub_path: &str) -> anyhow::Error {
    anyhow!("{sub_path:?} leads out of the volume")
}

/// Opens the sub-path, creating missing directories with the mode of the volume, and bind-mounts it on `target`. `None`
/// if the pod was torn down while the sub-path was being opened.
pub(super) fn set_up(
    request: &SubPathRequest,
    target: &Path,
    mounter: &dyn Mounter,
    volumes: &PodVolumes,
) -> anyhow::Result<Option<()>> {
    let names = components(&request.sub_path)?;
    let part = open_part(&request.volume_path, &names, &request.sub_path)?;
    let Ok(_creating) = volumes.creation_guard() else {
        return Ok(None);
    };
    let stat = rustix::fs::fstat(&part).with_context(cannot("read", &request.volume_path))?;
    // As upstream, the mount of an earlier instance is kept: mounts of the container may lie below it, and it could not
    // be unmounted then.
    let before = fs::symlink_metadata(target);
    if before.is_ok_and(|before| (before.dev(), before.ino()) == (stat.st_dev, stat.st_ino)) {
        return Ok(Some(()));
    }
    take_down(target, mounter)?;
    let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
    if let Some(parent) = target.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(parent)
            .with_context(cannot("make directory", parent))?;
    }
    if is_directory { fs::create_dir(target) } else { fs::File::create_new(target).map(drop) }
        .with_context(cannot("make", target))?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", part.as_raw_fd()));
    mounter.bind(&source, target).with_context(cannot("bind onto", target))?;
    Ok(Some(()))
}

/// Unmounts an earlier bind mount; running containers keep their own mount of it.
fn take_down(target: &Path, mounter: &dyn Mounter) -> anyhow::Result<()> {
    mounter.unmount(target).with_context(cannot("unmount", target))?;
    let removed = match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    let removed = if_exists(removed).map(drop);
    removed.with_context(cannot("remove", target))
}

fn open_part(volume: &Path, names: &[&str], sub_path: &str) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        rustix::fs::open(volume, flags, Mode::empty()).with_context(cannot("open", volume))?;
    let failed = |error: Errno| match error {
        Errno::XDEV | Errno::LOOP => escapes(sub_path),
        other => anyhow!(other).context(format!("cannot open {}", volume.join(sub_path).display())),
    };
    let open = |path: &Path| open_beneath(volume, root.as_fd(), path);
    match open(Path::new(sub_path)) {
        Err(Errno::NOENT) => {}
        opened => return opened.map_err(failed),
    }
    let mode = rustix::fs::fstat(&root).map_err(failed)?.st_mode & 0o7777;
    let mut reached = PathBuf::from(".");
    for name in names {
        let parent = open(&reached).map_err(failed)?;
        match rustix::fs::mkdirat(&parent, *name, Mode::from_raw_mode(mode & 0o777)) {
            Ok(()) => set_mode(parent.as_fd(), name, mode).map_err(failed)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        reached.push(name);
    }
    open(&reached).map_err(failed)
}

/// Sets the mode of a new directory regardless of the umask. A container may already have replaced the directory.
fn set_mode(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<(), Errno> {
    let made = open_without_links(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    rustix::fs::fchmod(made, Mode::from_raw_mode(mode))
}
