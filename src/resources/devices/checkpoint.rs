//! Format of the device manager's checkpoint, as upstream's. Pure.
//!
//! The checksum is FNV-1a-32 of the data as upstream's `dump.ForHash` prints it: Go types and values in one line, maps
//! sorted by key. A nil list is printed differently from an empty one.

use crate::resources::checkpoint::{self, CORRUPTED, join};
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;

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
    pub alloc_resp: Option<ByteString>,
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
pub(super) fn decode(text: &[u8]) -> Result<DeviceData, String> {
    let file: DeviceFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let (found, expected) = (file.checksum, checksum(&file.data));
    if found != expected {
        return Err(format!("{CORRUPTED}: the checksum is {found} and should be {expected}"));
    }
    Ok(file.data)
}

/// Encodes a checkpoint.
///
/// # Errors
/// The data cannot be encoded.
pub(super) fn encode(data: DeviceData) -> serde_json::Result<Vec<u8>> {
    let checksum = checksum(&data);
    serde_json::to_vec(&DeviceFile { data, checksum })
}

fn checksum(data: &DeviceData) -> u64 {
    let entries = data.pod_device_entries.as_ref();
    let entries = or_nil(entries, |entries| list(entries.iter().map(dump_entry)));
    let devices = or_nil(data.registered_devices.as_ref(), dump_map);
    checkpoint::checksum(&format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} RegisteredDevices:(map[string][]string){devices}}}"
    ))
}

fn dump_entry(entry: &DeviceEntry) -> String {
    format!(
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} DeviceIDs:(checkpoint.DevicesPerNUMA){} AllocResp:([]uint8){}}}",
        entry.pod_uid,
        entry.container_name,
        entry.resource_name,
        or_nil(entry.device_ids.as_ref(), dump_map),
        or_nil(entry.alloc_resp.as_ref(), |bytes| list(&bytes.0))
    )
}

fn dump_map<K: Display>(map: &BTreeMap<K, Option<Vec<String>>>) -> String {
    let entries = map.iter().map(|(key, names)| format!("{key}:{}", or_nil(names.as_ref(), list)));
    format!("map{}", list(entries))
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", join(items))
}

fn or_nil<T>(value: Option<T>, dump: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "<nil>".to_owned(), dump)
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
        let error = decode(changed.as_bytes()).unwrap_err();
        assert!(error.starts_with(CORRUPTED), "{error}");
        for end in 0..text.len() {
            let part = text.as_bytes().get(..end).unwrap();
            assert!(decode(part).is_err(), "{end}");
        }
        for text in ["[]", "{}", r#"{"Data":{},"Checksum":"x"}"#, "\0\0\0\0"] {
            let error = decode(text.as_bytes()).unwrap_err();
            assert!(!error.starts_with(CORRUPTED), "{text}: {error}");
        }
    }
}
