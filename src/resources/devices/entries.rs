//! Converts allocations to entries of the checkpoint, and back. Pure.

use super::allocation::{Allocation, PodAllocations};
use super::checkpoint::DeviceEntry;
use super::proto::ContainerAllocateResponse;
use crate::model::PodUid;
use k8s_openapi::ByteString;
use prost::Message as _;
use std::collections::HashMap;
use std::sync::Arc;

/// Decodes entries. If a response cannot be decoded, the plugin will be called again for the same devices.
pub(super) fn from_checkpoint(entries: &[DeviceEntry]) -> HashMap<PodUid, PodAllocations> {
    let mut pods = HashMap::<PodUid, PodAllocations>::new();
    for entry in entries {
        let encoded = entry.alloc_resp.as_ref().map_or(&[][..], |bytes| &bytes.0);
        let response = ContainerAllocateResponse::decode(encoded).ok();
        let undecodable = entry.alloc_resp.clone().filter(|_| response.is_none());
        let allocation = Allocation {
            devices: entry.device_ids.clone().unwrap_or_default(),
            response: response.map(Arc::new),
            undecodable,
            ticket: 0,
        };
        let pod = pods.entry(PodUid::from(entry.pod_uid.clone())).or_default();
        let container = pod.entry(entry.container_name.clone()).or_default();
        container.insert(entry.resource_name.clone(), allocation);
    }
    pods
}

/// Encodes allocations. Those without a response are left out, because their plugins have not prepared the devices.
pub(super) fn to_checkpoint(pods: &HashMap<PodUid, PodAllocations>) -> Vec<DeviceEntry> {
    let mut entries = Vec::new();
    for (uid, containers) in pods {
        for (container, resources) in containers {
            for (resource, allocation) in resources {
                let response = match (&allocation.response, &allocation.undecodable) {
                    (Some(response), _) => ByteString(response.encode_to_vec()),
                    (None, Some(bytes)) => bytes.clone(),
                    (None, None) => continue,
                };
                entries.push(DeviceEntry {
                    pod_uid: uid.to_string(),
                    container_name: container.clone(),
                    resource_name: resource.clone(),
                    device_ids: Some(allocation.devices.clone()),
                    alloc_resp: Some(response),
                });
            }
        }
    }
    let key = |entry: &DeviceEntry| {
        let DeviceEntry { pod_uid, container_name, resource_name, .. } = entry;
        (pod_uid.clone(), container_name.clone(), resource_name.clone())
    };
    entries.sort_by_key(key);
    entries
}
