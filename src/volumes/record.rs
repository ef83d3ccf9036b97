//! Records a pod's volumes before they are created. Blocking.
//!
//! After a crash, even during the creation or removal of a volume, the next kubelet knows from the record which
//! volumes this kubelet created, and removes nothing else.

use super::error::io_error;
use super::{PodDir, VolumeError, kinds};
use crate::base::{atomic_file, if_exists};
use serde::{Deserialize, Serialize};
use std::fs;

/// All volumes of a pod that the kubelet creates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Records {
    volumes: Vec<VolumeRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeRecord {
    /// The volume's name in the pod.
    pub(super) name: String,
    /// Upstream's plugin name.
    pub(super) plugin: String,
    /// A file system is mounted on its directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) mounted: bool,
}

/// Writes the record.
pub(super) fn write(pod: &PodDir, volumes: Vec<VolumeRecord>) -> Result<(), VolumeError> {
    let path = pod.volume_records();
    let text = serde_json::to_vec(&Records { volumes })
        .map_err(|error| io_error("write", &path)(error.into()))?;
    // After a restart of the kubelet the content is usually unchanged.
    if fs::read(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    atomic_file::write(&path, &text).map_err(io_error("write", &path))
}

/// Whether the pod has a record.
pub(super) fn exists(pod: &PodDir) -> bool {
    pod.volume_records().symlink_metadata().is_ok()
}

/// Fails if another kubelet recorded a volume of a plugin that this one cannot tear down. Without a readable record,
/// volumes are identified by their paths.
pub(super) fn check(pod: &PodDir) -> Result<(), VolumeError> {
    let path = pod.volume_records();
    let Some(text) = if_exists(fs::read(&path)).map_err(io_error("read", &path))? else {
        return Ok(());
    };
    let Ok(records) = serde_json::from_slice::<Records>(&text) else {
        tracing::warn!(path = %path.display(), "Failed to read the record of a pod's volumes");
        return Ok(());
    };
    let is_known = |name: &str| kinds::plugins().any(|plugin| plugin.0 == name);
    let mut volumes = records.volumes.into_iter();
    match volumes.find(|record| !is_known(&record.plugin)) {
        Some(record) => {
            Err(VolumeError::UnknownPlugin { volume: record.name, plugin: record.plugin })
        }
        None => Ok(()),
    }
}

/// Removes the record, once no volume is left.
pub(super) fn remove(pod: &PodDir) -> Result<(), VolumeError> {
    let path = pod.volume_records();
    let removed = if_exists(fs::remove_file(&path));
    removed.map(drop).map_err(io_error("remove", &path))
}
