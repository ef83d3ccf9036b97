//! Volumes in a file, for drivers of other processes.

use super::DriverVolume;
use super::proto::VolumeCapability;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A volume in the file; capabilities are encoded messages.
#[derive(Serialize, Deserialize)]
struct KeptVolume {
    capacity: i64,
    node_capacity: i64,
    name: String,
    is_inline: bool,
    attached_to: BTreeSet<String>,
    staged: Option<(String, Vec<u8>)>,
    published: BTreeMap<String, (Vec<u8>, bool)>,
}

impl From<&DriverVolume> for KeptVolume {
    fn from(volume: &DriverVolume) -> Self {
        let staged = volume.staged.as_ref();
        let published = volume.published.iter().map(|(path, (capability, readonly))| {
            let how = (capability.encode_to_vec(), *readonly);
            (path.clone(), how)
        });
        Self {
            capacity: volume.capacity,
            node_capacity: volume.node_capacity,
            name: volume.name.clone(),
            is_inline: volume.is_inline,
            attached_to: volume.attached_to.clone(),
            staged: staged.map(|(path, capability)| (path.clone(), capability.encode_to_vec())),
            published: published.collect(),
        }
    }
}

impl From<KeptVolume> for DriverVolume {
    fn from(kept: KeptVolume) -> Self {
        let capability = |encoded: Vec<u8>| VolumeCapability::decode(&*encoded).unwrap();
        let published = kept.published.into_iter();
        let published =
            published.map(|(path, (encoded, readonly))| (path, (capability(encoded), readonly)));
        Self {
            capacity: kept.capacity,
            node_capacity: kept.node_capacity,
            abnormal: None,
            name: kept.name,
            is_inline: kept.is_inline,
            attached_to: kept.attached_to,
            staged: kept.staged.map(|(path, encoded)| (path, capability(encoded))),
            published: published.collect(),
        }
    }
}

/// The volumes in a file; none if there is no file.
pub(super) fn read(file: &Path) -> BTreeMap<String, DriverVolume> {
    let Ok(text) = fs::read(file) else {
        return BTreeMap::new();
    };
    let volumes: BTreeMap<String, KeptVolume> = serde_json::from_slice(&text).unwrap();
    let volumes = volumes.into_iter();
    volumes.map(|(handle, kept)| (handle, kept.into())).collect()
}

/// Writes the volumes to a file, in one step.
pub(super) fn write(file: &Path, volumes: &BTreeMap<String, DriverVolume>) {
    let volumes: BTreeMap<_, _> =
        volumes.iter().map(|(handle, volume)| (handle, KeptVolume::from(volume))).collect();
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(&volumes).unwrap()).unwrap();
    fs::rename(new, file).unwrap();
}
