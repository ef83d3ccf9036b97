//! The Static policy of the memory manager. Pure.

use super::hints::{self, NumaNodeMap};
use super::machine::{self, NodeReservation, ReservedMemory};
use super::{MemoryBlock, MemoryBytes, MemoryState, NodeMemory};
use crate::host::MachineTopology;
use crate::resources::requests::MEMORY;
use crate::resources::topology::{NumaMask, TopologyHint};

/// Reserves memory on NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticMemoryPolicy {
    /// The NUMA nodes without assignments.
    empty: NumaNodeMap,
}

impl StaticMemoryPolicy {
    /// Builds the policy for a machine.
    ///
    /// # Errors
    /// The reservations do not match the machine; texts mostly as upstream's.
    pub fn new(
        machine: &MachineTopology,
        reserved: &ReservedMemory,
        total_reserved: &NodeReservation,
    ) -> Result<Self, String> {
        let empty = machine::empty(machine, reserved, total_reserved)?;
        Ok(Self { empty })
    }

    /// Initializes an empty state, or validates one that was read.
    ///
    /// # Errors
    /// The state does not match the machine or the reservations; texts as upstream's.
    pub(super) fn start(&self, state: &mut MemoryState) -> Result<(), String> {
        // A pod entry without container entries was left by a Go kubelet that was killed between two writes.
        let assigned = &state.assigned;
        state.pods.retain(|pod, _| assigned.contains_key(pod));
        if state.nodes.is_empty() {
            if !state.assigned.is_empty() {
                return Err(
                    "[memorymanager] machine state can not be empty when it has memory assignments"
                        .to_owned(),
                );
            }
            state.nodes = self.empty.clone();
            return Ok(());
        }
        let mut expected = self.empty.clone();
        for (pod, containers) in &state.assigned {
            let of_pod = state.pods.get(pod);
            for (container, blocks) in containers {
                for block in blocks {
                    check(&expected, pod, container, block)?;
                    if of_pod.is_none() {
                        reserve(&mut expected, block, block.size);
                    }
                }
            }
            for block in of_pod.into_iter().flatten() {
                check(&expected, pod, "", block)?;
                reserve(&mut expected, block, block.size);
            }
        }
        if are_equal(&state.nodes, &expected) {
            Ok(())
        } else {
            Err("[memorymanager] the expected machine state is different from the real one"
                .to_owned())
        }
    }

    /// Selects the nodes for a container: those of the affinity, or more if they do not have enough memory.
    ///
    /// # Errors
    /// No nodes have enough memory; texts as upstream's.
    pub(super) fn nodes_for(
        state: &MemoryState,
        requested: &MemoryBytes,
        affinity: TopologyHint,
        reusable: impl Fn(NumaMask, &str) -> u64,
    ) -> Result<NumaMask, String> {
        let found = hints::hints(&state.nodes, requested, reusable);
        // Hints are equal for all kinds of memory; upstream uses those for `memory`.
        let found = || found.iter().copied().filter(|_| requested.contains_key(MEMORY));
        let mut hint = affinity;
        if hint.affinity.is_none() {
            hint = hints::best(found()).ok_or(
                "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
            )?;
            if affinity.preferred && !hint.preferred {
                return Err("[memorymanager] failed to find the default preferred hint".to_owned());
            }
        }
        let mut mask = hint.affinity.unwrap_or_default();
        if !hints::satisfies(&state.nodes, mask, requested) {
            let wider =
                |hint: &TopologyHint| hint.affinity.is_some_and(|wide| mask.is_within(wide));
            let extended = hints::best(found().filter(wider)).ok_or(
                "[memorymanager] failed to find NUMA nodes to extend the current topology hint",
            )?;
            if hint.preferred && !extended.preferred {
                return Err("[memorymanager] failed to find the extended preferred hint".to_owned());
            }
            mask = extended.affinity.unwrap_or_default();
        }
        if hints::violates_groups(&state.nodes, mask) {
            return Err("[memorymanager] preferred hint violates NUMA node allocation".to_owned());
        }
        Ok(mask)
    }
}

/// Checks that the NUMA nodes of a block exist and have its resource.
fn check(
    nodes: &NumaNodeMap,
    pod: &str,
    container: &str,
    block: &MemoryBlock,
) -> Result<(), String> {
    let missing = block.nodes.iter().find_map(|id| match nodes.get(id) {
        None => Some("the NUMA that does not exist"),
        Some(node) if !node.memory_map.contains_key(&block.resource) => {
            Some("memory resource that does not exist")
        }
        Some(_) => None,
    });
    missing.map_or(Ok(()), |what| {
        Err(format!(
            "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses {what}"
        ))
    })
}

/// Reserves `bytes` on the nodes of a block, which become a group.
pub(super) fn reserve(nodes: &mut NumaNodeMap, block: &MemoryBlock, mut bytes: u64) {
    for id in &block.nodes {
        let Some(node) = nodes.get_mut(id) else {
            continue;
        };
        node.number_of_assignments += 1;
        node.cells.clone_from(&block.nodes);
        if let Some(table) = node.memory_map.get_mut(&block.resource) {
            let taken = bytes.min(table.free);
            table.free -= taken;
            table.reserved += taken;
            bytes -= taken;
        }
    }
}

pub(super) fn release(nodes: &mut NumaNodeMap, block: &MemoryBlock) {
    let mut bytes = block.size;
    for id in &block.nodes {
        let Some(node) = nodes.get_mut(id) else {
            continue;
        };
        node.number_of_assignments -= 1;
        if node.number_of_assignments == 0 {
            node.cells = vec![*id];
        }
        if let Some(table) = node.memory_map.get_mut(&block.resource) {
            let given = bytes.min(table.reserved);
            table.reserved -= given;
            table.free += given;
            bytes -= given;
        }
    }
}

/// Whether two states are equal. Within a group of nodes, only the sums are compared.
fn are_equal(one: &NumaNodeMap, other: &NumaNodeMap) -> bool {
    let group = |nodes: &NumaNodeMap, cells: &[u32], resource: &str| {
        let tables = cells.iter().filter_map(|id| nodes.get(id)?.memory_map.get(resource));
        tables.fold((0_u64, 0_u64), |(free, reserved), table| {
            (free.saturating_add(table.free), reserved.saturating_add(table.reserved))
        })
    };
    let cells = |node: &NodeMemory| NumaMask::of(node.cells.iter().copied());
    one.len() == other.len()
        && one.iter().all(|(id, node)| {
            let Some(counterpart) = other.get(id) else {
                return false;
            };
            node.number_of_assignments == counterpart.number_of_assignments
                && cells(node) == cells(counterpart)
                && node.memory_map.len() == counterpart.memory_map.len()
                && node.memory_map.iter().all(|(resource, table)| {
                    let Some(counterpart) = counterpart.memory_map.get(resource) else {
                        return false;
                    };
                    let fixed = |table: &super::MemoryTable| {
                        (table.total, table.system_reserved, table.allocatable)
                    };
                    fixed(table) == fixed(counterpart)
                        && group(one, &node.cells, resource) == group(other, &node.cells, resource)
                })
        })
}
