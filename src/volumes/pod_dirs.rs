//! The pod's own directory and the small files the kubelet keeps in it. Blocking.

use super::{KubeletRoot, PodDir, VolumeError};
use crate::host::files;
use crate::model::PodUid;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Makes `pods/<uid>` with `volumes` and `plugins` (0750 each).
pub fn create(pod: &PodDir) -> Result<(), VolumeError> {
    [pod.path(), &pod.volumes(), &pod.plugins()]
        .into_iter()
        .try_for_each(make)
}

/// Writes the managed hosts file (0644), which containers see as `/etc/hosts`.
pub fn write_hosts_file(pod: &PodDir, content: &[u8]) -> Result<PathBuf, VolumeError> {
    let path = pod.hosts_file();
    files::write_in_place(&path, content, 0o644).map_err(io_error("write", &path))?;
    Ok(path)
}

/// Makes a fresh, empty file (0666) for one container instance to leave its last words in:
/// `containers/<name>/<8 hex digits>`.
pub fn create_termination_log(pod: &PodDir, container: &str) -> Result<PathBuf, VolumeError> {
    let directory = pod.container(container)?;
    if let Some(parent) = directory.parent() {
        make(parent)?;
    }
    make(&directory)?;
    let path = directory.join(format!("{:08x}", fastrand::u32(..)));
    files::write_in_place(&path, b"", 0o666).map_err(io_error("make", &path))?;
    Ok(path)
}

/// UIDs of all pods that have a directory, for finding the ones nobody wants any more.
pub fn list(root: &KubeletRoot) -> Result<Vec<PodUid>, VolumeError> {
    let pods = root.pods_dir();
    let entries = fs::read_dir(&pods).map_err(io_error("list", &pods))?;
    let names = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.map(PodUid::from).collect())
}

fn make(directory: &Path) -> Result<(), VolumeError> {
    files::make_dir(directory, 0o750)
        .map(drop)
        .map_err(io_error("make directory", directory))
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_path_buf();
    move |source| VolumeError::Io {
        action,
        path,
        source,
    }
}
