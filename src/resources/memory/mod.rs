//! The memory manager: assigns memory and huge pages of NUMA nodes to containers of Guaranteed pods. Pure.
//!
//! * Owns: the memory of each node that is reserved for containers, and the format of its checkpoint.
//! * Woken by: the admission of a pod, the creation of its containers, and removed pods.
//! * Publishes: the NUMA nodes of each container.
//! * Must never assign memory to two containers at once, except that of ended init containers, or use a node both alone
//!   and in a group.
//! * Upstream: `pkg/kubelet/cm/memorymanager`.

mod checkpoint;
mod hints;
mod machine;
mod manager;
mod pod_level;
mod policy;
mod requests;
mod reusable;

pub use checkpoint::{STATE_FILE, from_checkpoint, to_checkpoint};
pub use machine::{NodeReservation, ReservedMemory};
pub use manager::{MemoryCounters, MemoryManager};
pub use policy::StaticMemoryPolicy;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes by resource: `memory`, `hugepages-2Mi`.
pub type MemoryBytes = BTreeMap<String, u64>;

/// Memory of the NUMA nodes, and its assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// NUMA nodes by number.
    pub nodes: BTreeMap<u32, NodeMemory>,
    /// Assigned blocks by the UID of the pod and the name of the container.
    pub assigned: super::Assignments<Vec<MemoryBlock>>,
    /// Blocks of whole pods by UID (`PodLevelResourceManagers`). Those that `assigned` has for their containers are
    /// parts of them.
    pub pods: BTreeMap<String, Vec<MemoryBlock>>,
}

/// Memory of a NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    /// Number of blocks that are assigned on this node.
    pub number_of_assignments: i64,
    /// Amounts by resource.
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// The group of nodes with which this one is used, itself included.
    pub cells: Vec<u32>,
}

/// Bytes of one resource of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    /// The total.
    pub total: u64,
    /// Reserved for the system.
    pub system_reserved: u64,
    /// The total without the reservation.
    pub allocatable: u64,
    /// The part of `allocatable` that is assigned.
    pub reserved: u64,
    /// The part of `allocatable` that is free.
    pub free: u64,
}

/// A block of memory that is assigned to a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBlock {
    /// The NUMA nodes of the block.
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<u32>,
    /// The resource.
    #[serde(rename = "type")]
    pub resource: String,
    /// Bytes.
    pub size: u64,
}

#[cfg(test)]
mod manager_tests;
#[cfg(test)]
mod pod_level_tests;
#[cfg(test)]
mod tests;
