//! What is about to be made for a pod, written down before it is made. Blocking.
//!
//! After any crash, also one in the middle of making or removing a volume, the next kubelet knows
//! from this which volumes are the kubelet's own, and to take nothing else down.

use super::{PodDir, VolumeError, paths::VolumePlugin, pod_dirs::io_error};
use crate::base::atomic_file;
use serde::{Deserialize, Serialize};
use std::{fs, io};

/// Another number was written by another kubelet, whose volumes this one may not know.
const VERSION: u32 = 1;

/// All volumes of a pod that the kubelet makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Records {
    version: u32,
    volumes: Vec<VolumeRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeRecord {
    /// Its name in the pod.
    pub(super) name: String,
    /// Its kind: upstream's name of the plugin.
    pub(super) plugin: String,
    /// Something is mounted on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) mounted: bool,
}

impl VolumeRecord {
    pub(super) fn new(name: &str, plugin: VolumePlugin, mounted: bool) -> Self {
        Self {
            name: name.to_string(),
            plugin: plugin.name().to_string(),
            mounted,
        }
    }

    fn is_known(&self) -> bool {
        VolumePlugin::ALL
            .iter()
            .any(|known| known.name() == self.plugin)
    }
}

/// Writes down what is about to be made.
pub(super) fn write(pod: &PodDir, volumes: Vec<VolumeRecord>) -> Result<(), VolumeError> {
    let path = pod.volume_records();
    let version = VERSION;
    let text = serde_json::to_vec(&Records { version, volumes })
        .map_err(|error| io_error("write", &path)(error.into()))?;
    // Most set-ups after a restart of the kubelet find what they would write.
    if fs::read(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    atomic_file::write(&path, &text).map_err(io_error("write", &path))
}

/// Whether anything was written down.
pub(super) fn exists(pod: &PodDir) -> bool {
    pod.volume_records().symlink_metadata().is_ok()
}

/// Refuses to go on with a pod for which another kubelet has made a volume that this one does not
/// know how to take down. Without a readable record, volumes are known by their places.
pub(super) fn check(pod: &PodDir) -> Result<(), VolumeError> {
    let path = pod.volume_records();
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(io_error("read", &path))?,
    };
    let Ok(records) = serde_json::from_slice::<Records>(&text) else {
        tracing::warn!(path = %path.display(), "Failed to read the record of a pod's volumes");
        return Ok(());
    };
    match records
        .volumes
        .into_iter()
        .find(|record| !record.is_known())
    {
        Some(record) => Err(VolumeError::UnknownPlugin {
            volume: record.name,
            plugin: record.plugin,
        }),
        None => Ok(()),
    }
}

/// Forgets it all, once nothing is left.
pub(super) fn remove(pod: &PodDir) -> Result<(), VolumeError> {
    let path = pod.volume_records();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", &path)(error))
        }
        _ => Ok(()),
    }
}
