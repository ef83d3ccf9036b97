//! Format of the allocation checkpoints, as upstream's. Pure.
//!
//! A file has the data as a JSON string, and the checksum of that string.

use super::{AmountsByPod, PodResourceInfo};
use crate::model::PodUid;
use crate::resources::checkpoint::{CORRUPTED, checksum};
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
struct AllocationFile {
    data: String,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
struct AllocationData<'a> {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<Cow<'a, str>, AllocatedPodEntry<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AllocatedPodEntry<'a> {
    #[serde(default)]
    container_resources: Option<Cow<'a, BTreeMap<String, ResourceRequirements>>>,
    #[serde(default)]
    pod_level_resources: Option<Cow<'a, ResourceRequirements>>,
}

/// Decodes the content of a checkpoint.
///
/// # Errors
/// It is malformed, or its checksum is wrong.
pub(super) fn decode(text: &[u8]) -> Result<AmountsByPod, String> {
    let file: AllocationFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.checksum != sum(&file.data) {
        return Err(CORRUPTED.to_owned());
    }
    let data: AllocationData =
        serde_json::from_str(&file.data).map_err(|error| error.to_string())?;
    let entries = data.entries.into_iter().map(|(uid, entry)| {
        let amounts = PodResourceInfo {
            containers: entry.container_resources.unwrap_or_default().into_owned(),
            pod: entry.pod_level_resources.map(Cow::into_owned),
        };
        (PodUid::from(&*uid), Arc::new(amounts))
    });
    Ok(entries.collect())
}

/// Encodes the content of a checkpoint.
///
/// # Errors
/// Practically none: all fields are text.
pub(super) fn encode(known: &AmountsByPod) -> serde_json::Result<Vec<u8>> {
    let entries = known.iter().map(|(uid, amounts)| {
        let entry = AllocatedPodEntry {
            container_resources: Some(Cow::Borrowed(&amounts.containers)),
            pod_level_resources: amounts.pod.as_ref().map(Cow::Borrowed),
        };
        (Cow::Borrowed(uid.as_str()), entry)
    });
    let data = serde_json::to_string(&AllocationData { entries: entries.collect() })?;
    let checksum = sum(&data);
    serde_json::to_vec(&AllocationFile { data, checksum })
}

fn sum(data: &str) -> u64 {
    checksum(&format!("(string){data}"))
}
