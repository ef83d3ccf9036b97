//! The directory of a pod, and the files that the kubelet keeps in it. Blocking.

use super::error::{cannot, io_error};
use super::{KubeletRoot, PodDir, VolumeError};
use crate::host::files;
use crate::model::PodUid;
use anyhow::Context as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Creates `pods/<uid>` with `volumes` and `plugins` (0750 each).
pub fn create(pod: &PodDir) -> Result<(), VolumeError> {
    [pod.path(), &pod.volumes(), &pod.plugins()].into_iter().try_for_each(make)
}

/// Writes the managed hosts file (0644), which containers see as `/etc/hosts`.
pub fn write_hosts_file(pod: &PodDir, content: &[u8]) -> Result<PathBuf, VolumeError> {
    let path = pod.hosts_file();
    files::write_in_place(&path, content, 0o644).map_err(io_error("write", &path))?;
    Ok(path)
}

/// Which instance of a container a termination log is for.
#[derive(Clone, Debug, Default)]
pub struct TerminationLog {
    /// The restart count of the instance.
    pub restart_count: u32,
    /// The restart counts of the other instances that exist.
    pub other_restart_counts: Vec<u32>,
}

impl TerminationLog {
    /// The file name: the restart count, as for the container's log.
    pub fn file_name(&self) -> String {
        self.restart_count.to_string()
    }

    /// Whether a file is the termination log of an instance that no longer exists. The Go kubelet's names are eight
    /// random hexadecimal digits, which do not identify the instance.
    fn is_obsolete(&self, file_name: &str) -> bool {
        let count = file_name.parse().ok().filter(|_| file_name.len() < 8);
        count.is_some_and(|count: u32| {
            count != self.restart_count && !self.other_restart_counts.contains(&count)
        })
    }
}

/// Creates an empty termination log (0666) for one container instance, `containers/<name>/<restart count>`, and removes
/// those of instances that no longer exist.
pub fn create_termination_log(
    pod: &PodDir,
    container: &str,
    of: &TerminationLog,
) -> Result<PathBuf, VolumeError> {
    let directory = pod.container(container)?;
    if let Some(parent) = directory.parent() {
        make(parent)?;
    }
    make(&directory)?;
    let files = fs::read_dir(&directory).map_err(io_error("list", &directory))?;
    for file in files.flatten() {
        let name = file.file_name().into_string().unwrap_or_default();
        // A failed removal is retried for the next instance.
        let _ = of.is_obsolete(&name).then(|| fs::remove_file(file.path()));
    }
    let path = directory.join(of.file_name());
    // Left by an instance with the same restart count that was never started.
    let _ = fs::remove_file(&path);
    files::write_in_place(&path, b"", 0o666).map_err(io_error("make", &path))?;
    Ok(path)
}

/// The UIDs of all pods with a directory, for finding orphans.
pub fn list(root: &KubeletRoot) -> Result<Vec<PodUid>, VolumeError> {
    let pods = root.pods_dir();
    let entries = fs::read_dir(&pods).map_err(io_error("list", &pods))?;
    let names = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.map(PodUid::from).collect())
}

/// Creates a directory in an existing one; true if it is new.
pub(super) fn create_dir(directory: &Path, mode: u32) -> anyhow::Result<bool> {
    files::create_dir(directory, mode).with_context(cannot("make directory", directory))
}

/// Writes the file `ready` of a marker, unless it has this content already.
pub(super) fn write_marker(
    pod: &PodDir,
    marker: &Path,
    content: &[u8],
    mode: u32,
) -> anyhow::Result<()> {
    let ready = marker.join("ready");
    if fs::read(&ready).is_ok_and(|known| known == content) {
        return Ok(());
    }
    create_dir(&pod.empty_dir_markers(), 0o750)?;
    create_dir(marker, 0o750)?;
    files::write_in_place(&ready, content, mode).with_context(cannot("write", &ready))
}

fn make(directory: &Path) -> Result<(), VolumeError> {
    files::create_dir(directory, 0o750).map(drop).map_err(io_error("make directory", directory))
}
