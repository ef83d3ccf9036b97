//! Devices allocated to containers. Pure.

use super::checkpoint::DevicesPerNuma;
use super::proto::ContainerAllocateResponse;
use k8s_openapi::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The key of devices without NUMA affinity.
pub const NO_NUMA_NODE: i64 = -1;

/// The devices of one resource that are allocated to one container.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// Device IDs by NUMA node.
    pub devices: DevicesPerNuma,
    /// The plugin's response; `None` until the plugin has responded.
    pub response: Option<Arc<ContainerAllocateResponse>>,
    /// An earlier kubelet's plugin response that cannot be decoded; replaced when the plugin is called again.
    pub undecodable: Option<ByteString>,
    /// Distinguishes this allocation from later ones of the same container; zero for one that was read from the
    /// checkpoint.
    pub ticket: u64,
}

impl Allocation {
    /// Device IDs.
    pub fn ids(&self) -> BTreeSet<&String> {
        self.devices.values().flatten().flatten().collect()
    }
}

/// Allocations of one container, by resource.
pub type ContainerAllocations = BTreeMap<String, Allocation>;
/// Allocations of one pod, by container.
pub type PodAllocations = BTreeMap<String, ContainerAllocations>;
