//! emptyDir: scratch space that lives as long as the pod. Blocking.

use super::{Mounter, PodDir, SetUpError, UnsafeName, plan::Medium};
use crate::host::files;
use rustix::fs::{Gid, Mode};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Everybody in the pod may write.
const MODE: u32 = 0o777;
/// New files belong to the directory's group.
const SET_GROUP_ID: u32 = 0o2000;

/// Sets a volume up unless a note says that this was done (and, in memory, it is still mounted), so
/// that what containers did to its mode and owner stays. Returns its path.
pub(super) fn set_up(
    pod: &PodDir,
    volume: &str,
    medium: Medium,
    group: Option<i64>,
    mounter: &dyn Mounter,
) -> Result<PathBuf, SetUpError> {
    let directory = pod.empty_dir(volume).map_err(unsafe_name)?;
    let note = pod.empty_dir_note(volume).map_err(unsafe_name)?;
    let ready = note.join("ready");
    let mounted = match medium {
        Medium::Disk => true,
        Medium::Memory { .. } => is_mounted(mounter, &directory)?,
    };
    if mounted && ready.exists() && directory.is_dir() {
        return Ok(directory);
    }
    make(&pod.empty_dirs(), 0o750)?;
    make(&directory, MODE)?;
    if let (Medium::Memory { size }, false) = (medium, mounted) {
        mounter
            .tmpfs(&directory, size, MODE)
            .map_err(io_error("mount a tmpfs on", &directory))?;
    }
    own(&directory, group)?;
    make(&pod.empty_dir_notes(), 0o750)?;
    make(&note, 0o750)?;
    files::write_in_place(&ready, b"", 0o644).map_err(io_error("write", &ready))?;
    Ok(directory)
}

fn own(directory: &Path, group: Option<i64>) -> Result<(), SetUpError> {
    let mode = match group {
        None => MODE,
        Some(group) => {
            let group = u32::try_from(group)
                .map(Gid::from_raw)
                .map_err(|_| SetUpError::Unsupported(format!("fsGroup {group}")))?;
            rustix::fs::chown(directory, None, Some(group))
                .map_err(|e| io_error("give away", directory)(e.into()))?;
            MODE | SET_GROUP_ID
        }
    };
    rustix::fs::chmod(directory, Mode::from_raw_mode(mode))
        .map_err(|e| io_error("set the mode of", directory)(e.into()))
}

fn is_mounted(mounter: &dyn Mounter, directory: &Path) -> Result<bool, SetUpError> {
    let mounts = mounter
        .list()
        .map_err(io_error("list the mounts for", directory))?;
    Ok(mounts.iter().any(|m| m.mount_point == directory))
}

fn make(directory: &Path, mode: u32) -> Result<(), SetUpError> {
    files::make_dir(directory, mode)
        .map(drop)
        .map_err(io_error("make directory", directory))
}

fn unsafe_name(name: UnsafeName) -> SetUpError {
    SetUpError::Escapes(name.0)
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetUpError {
    let path = path.to_path_buf();
    move |source| SetUpError::Io {
        action,
        path,
        source,
    }
}
