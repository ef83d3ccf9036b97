//! The memory manager: on which NUMA nodes the memory and huge pages of Guaranteed pods lie. Pure.
//!
//! * Owns: how much of each node is reserved, and for which container, and its form on disk.
//! * Woken by: the admission of a pod, the creation of its containers, and pods that are gone.
//! * Publishes: the nodes of each container.
//! * Must never promise memory twice, nor use a node both alone and in a group.
//! * Answers to upstream's `pkg/kubelet/cm/memorymanager`.

mod checkpoint;
mod hints;
mod machine;
mod manager;
mod policy;
mod requests;
mod reusable;

pub use checkpoint::{STATE_FILE, from_checkpoint, to_checkpoint};
pub use machine::{NodeReservation, ReservedMemory};
pub use manager::{MemoryCounters, MemoryManager};
pub use policy::StaticPolicy;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes by resource: `memory`, `hugepages-2Mi`.
pub type Bytes = BTreeMap<String, u64>;

/// What the nodes have, and who has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// NUMA nodes by number.
    pub nodes: BTreeMap<u32, NodeMemory>,
    /// Blocks by the UID of the pod and the name of the container.
    pub assigned: super::Assignments<Vec<Block>>,
}

/// Memory of a NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    /// How many blocks use it.
    pub number_of_assignments: i64,
    /// By resource.
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// The node, and those that it is used together with.
    pub cells: Vec<u32>,
}

/// Bytes of one resource of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    /// All.
    pub total: u64,
    /// Kept from pods.
    pub system_reserved: u64,
    /// The rest.
    pub allocatable: u64,
    /// Of that, what containers have.
    pub reserved: u64,
    /// Of that, what none has.
    pub free: u64,
}

/// Memory of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The nodes that it lies on.
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
mod tests;
