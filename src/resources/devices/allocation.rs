//! Devices allocated to containers. Pure.

use super::{
    checkpoint::{Base64Bytes, DevicesPerNuma},
    proto::ContainerAllocateResponse,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The key of devices that are near to no NUMA node.
pub const NO_NUMA_NODE: i64 = -1;

/// Devices of one resource that are allocated to one container.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// The devices.
    pub devices: DevicesPerNuma,
    /// The plugin's response; `None` until the plugin has responded.
    pub response: Option<Arc<ContainerAllocateResponse>>,
    /// The response to an earlier kubelet, if it cannot be decoded; replaced by the next response.
    pub undecodable: Option<Base64Bytes>,
    /// Distinguishes this allocation from later ones of the same container; zero for one of an earlier kubelet.
    pub ticket: u64,
}

impl Allocation {
    /// Ids of the devices.
    pub fn ids(&self) -> BTreeSet<&String> {
        self.devices.values().flatten().flatten().collect()
    }
}

/// Allocations of one container, by resource.
pub type ContainerAllocations = BTreeMap<String, Allocation>;
/// Allocations of one pod, by container.
pub type PodAllocations = BTreeMap<String, ContainerAllocations>;
