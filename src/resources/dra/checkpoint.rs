//! Format of the DRA manager's checkpoint, as upstream's. Pure.
//!
//! The file has the data as a JSON string, and the CRC-32 of that string.

use super::state::{ClaimInfo, ClaimInfoCache, PreparedDevice, ResourceClaimKey};
use crate::model::PodUid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ClaimFile {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct ClaimData {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimState>>,
}

#[derive(Serialize, Deserialize)]
struct ClaimState {
    #[serde(rename = "ClaimUID")]
    uid: String,
    #[serde(rename = "ClaimName")]
    name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pods: Option<BTreeMap<String, Empty>>,
    #[serde(rename = "DriverState")]
    drivers: Option<BTreeMap<String, DriverState>>,
}

#[derive(Serialize, Deserialize)]
struct Empty {}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverState {
    devices: Option<Vec<PreparedDevice>>,
}

/// Decodes a checkpoint.
///
/// # Errors
/// It is malformed, its checksum is wrong, or it is of another version.
pub(super) fn decode(text: &[u8]) -> Result<ClaimInfoCache, String> {
    let file: ClaimFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.checksum != crc32fast::hash(file.data.as_bytes()) {
        return Err("checkpoint is corrupted".to_owned());
    }
    let data: ClaimData = serde_json::from_str(&file.data).map_err(|error| error.to_string())?;
    if data.api_version != API_VERSION {
        return Err(format!("unknown apiVersion {:?}", data.api_version));
    }
    let claims = data.claims.into_iter().flatten().map(|claim| {
        let key = ResourceClaimKey { namespace: claim.namespace, name: claim.name };
        let pods = claim.pods.into_iter().flatten();
        let drivers = claim.drivers.into_iter().flatten();
        let drivers = drivers.map(|(driver, state)| (driver, state.devices.unwrap_or_default()));
        let info = ClaimInfo {
            uid: claim.uid,
            pods: pods.map(|(uid, _)| PodUid::from(uid.as_str())).collect(),
            drivers: drivers.collect(),
            is_prepared: false,
        };
        (key, info)
    });
    Ok(ClaimInfoCache(claims.collect()))
}

/// Encodes a checkpoint.
///
/// # Errors
/// Practically none: all fields are text.
pub(super) fn encode(claims: &ClaimInfoCache) -> serde_json::Result<Vec<u8>> {
    let claims = claims.0.iter().map(|(key, info)| {
        let pods = info.pods.iter().map(|uid| (uid.to_string(), Empty {}));
        let drivers = info.drivers.iter().map(|(driver, devices)| {
            let devices = Some(devices.clone());
            (driver.clone(), DriverState { devices })
        });
        ClaimState {
            uid: info.uid.clone(),
            name: key.name.clone(),
            namespace: key.namespace.clone(),
            pods: Some(pods.collect()),
            drivers: Some(drivers.collect()),
        }
    });
    let data = serde_json::to_string(&ClaimData {
        kind: KIND.into(),
        api_version: API_VERSION.into(),
        claims: Some(claims.collect()),
    })?;
    let checksum = crc32fast::hash(data.as_bytes());
    serde_json::to_vec(&ClaimFile { data, checksum })
}
