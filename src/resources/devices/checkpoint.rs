//! Format of the device manager's checkpoint, as upstream's. Pure.
//!
//! The checksum is FNV-1a-32 of the data as upstream's `dump.ForHash` prints it: Go types and values in one line, maps
//! sorted by key. A nil list is printed differently from an empty one.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

/// Device IDs by NUMA node; -1 means no node.
pub type DevicesPerNuma = BTreeMap<i64, Option<Vec<String>>>;

/// The devices of one resource of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceEntry {
    /// UID of the pod.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Name of the container.
    pub container_name: String,
    /// Name of the resource.
    pub resource_name: String,
    /// Device IDs by NUMA node.
    #[serde(rename = "DeviceIDs")]
    pub device_ids: Option<DevicesPerNuma>,
    /// The plugin's response, as an encoded message.
    pub alloc_resp: Option<Base64Bytes>,
}

/// The data of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceData {
    /// Allocations of containers.
    pub pod_device_entries: Option<Vec<DeviceEntry>>,
    /// IDs of healthy devices by resource.
    pub registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// Why a checkpoint cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CheckpointError {
    /// It is not a checkpoint.
    #[error("{0}")]
    Malformed(String),
    /// Its checksum is wrong.
    #[error("checkpoint is corrupted: the checksum is {found} and should be {expected}")]
    Checksum {
        /// The checksum in the file.
        found: u64,
        /// The checksum of the data.
        expected: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceFile {
    data: DeviceData,
    checksum: u64,
}

/// Decodes a checkpoint.
///
/// # Errors
/// It is malformed, or its checksum is wrong.
pub(super) fn decode(text: &[u8]) -> Result<DeviceData, CheckpointError> {
    let file = serde_json::from_slice::<DeviceFile>(text);
    let file = file.map_err(|error| CheckpointError::Malformed(error.to_string()))?;
    let (found, expected) = (file.checksum, checksum(&file.data));
    if found == expected {
        Ok(file.data)
    } else {
        Err(CheckpointError::Checksum { found, expected })
    }
}

/// Encodes a checkpoint.
///
/// # Errors
/// The data cannot be encoded.
pub(super) fn encode(data: DeviceData) -> Result<Vec<u8>, CheckpointError> {
    let checksum = checksum(&data);
    serde_json::to_vec(&DeviceFile { data, checksum })
        .map_err(|error| CheckpointError::Malformed(error.to_string()))
}

/// Bytes that are encoded as base64, as Go does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base64Bytes(pub Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes))
    }
}

fn checksum(data: &DeviceData) -> u64 {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = dump(data, &mut text);
    crate::resources::checkpoint::checksum(&text)
}

fn dump(data: &DeviceData, out: &mut String) -> fmt::Result {
    out.write_str("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")?;
    or_nil(data.pod_device_entries.as_ref(), out, |entries, out| {
        list(entries, out, dump_entry)
    })?;
    out.write_str(" RegisteredDevices:(map[string][]string)")?;
    or_nil(data.registered_devices.as_ref(), out, map)?;
    out.write_char('}')
}

fn dump_entry(entry: &DeviceEntry, out: &mut String) -> fmt::Result {
    write!(
        out,
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} DeviceIDs:(checkpoint.DevicesPerNUMA)",
        entry.pod_uid, entry.container_name, entry.resource_name
    )?;
    or_nil(entry.device_ids.as_ref(), out, map)?;
    out.write_str(" AllocResp:([]uint8)")?;
    or_nil(entry.alloc_resp.as_ref(), out, |bytes, out| {
        list(&bytes.0, out, |byte, out| write!(out, "{byte}"))
    })?;
    out.write_char('}')
}

fn or_nil<T>(
    value: Option<&T>,
    out: &mut String,
    dump: impl FnOnce(&T, &mut String) -> fmt::Result,
) -> fmt::Result {
    match value {
        Some(value) => dump(value, out),
        None => out.write_str("<nil>"),
    }
}

fn list<T>(
    items: &[T],
    out: &mut String,
    dump: impl Fn(&T, &mut String) -> fmt::Result,
) -> fmt::Result {
    out.write_char('[')?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.write_char(' ')?;
        }
        dump(item, out)?;
    }
    out.write_char(']')
}

fn map<K: fmt::Display>(map: &BTreeMap<K, Option<Vec<String>>>, out: &mut String) -> fmt::Result {
    out.write_str("map[")?;
    for (index, (key, names)) in map.iter().enumerate() {
        if index > 0 {
            out.write_char(' ')?;
        }
        write!(out, "{key}:")?;
        or_nil(names.as_ref(), out, |names, out| {
            list(names, out, |name, out| out.write_str(name))
        })?;
    }
    out.write_char(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that the Go kubelet's own code wrote.
    const OF_GO: [&str; 4] = [
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#,
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1944006890}"#,
        r#"{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"example.com/resource":[]}},"Checksum":1976609736}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"pod-1","ContainerName":"con \"a\"\u003cé\u003e","ResourceName":"example.com/gpu","DeviceIDs":{"-1":["dev 1","dev2"],"0":["x"],"10":null},"AllocResp":"AAH/"},{"PodUID":"pod-2","ContainerName":"c","ResourceName":"example.com/gpu","DeviceIDs":null,"AllocResp":null},{"PodUID":"pod-3","ContainerName":"c","ResourceName":"example.com/gpu","DeviceIDs":{"2":["a"]},"AllocResp":""}],"RegisteredDevices":{"b.com/x":[],"example.com/a":null,"example.com/resource":["dev1","dev2"]}},"Checksum":1177419153}"#,
    ];

    #[test]
    fn files_of_the_go_kubelet_are_read_and_written_back_as_they_were() {
        for text in OF_GO {
            let data = decode(text.as_bytes()).unwrap();
            let again = String::from_utf8(encode(data.clone()).unwrap()).unwrap();
            // Go escapes what HTML would not take.
            let text = text.replace("\\u003c", "<").replace("\\u003e", ">");
            assert_eq!(again, text);
            assert_eq!(decode(again.as_bytes()), Ok(data));
        }
    }

    #[test]
    fn what_was_changed_truncated_or_is_no_checkpoint_is_an_error() {
        let text = OF_GO[3];
        let changed = text.replace("dev2", "dev3");
        assert!(matches!(
            decode(changed.as_bytes()),
            Err(CheckpointError::Checksum { .. })
        ));
        for end in 0..text.len() {
            let part = text.as_bytes().get(..end).unwrap();
            assert!(decode(part).is_err(), "{end}");
        }
        for text in ["[]", "{}", r#"{"Data":{},"Checksum":"x"}"#, "\0\0\0\0"] {
            let found = decode(text.as_bytes());
            assert!(
                matches!(found, Err(CheckpointError::Malformed(_))),
                "{text}"
            );
        }
    }
}
