//! The allocatable memory of each NUMA node. Pure.

use super::{MemoryBytes, MemoryTable, NodeMemory};
use crate::host::MachineTopology;
use crate::model::{Amount, Quantity};
use crate::resources::requests::{HUGEPAGES_PREFIX, MEMORY, huge_page_resource};
use std::collections::{BTreeMap, BTreeSet};

/// `reservedMemory`: reserved amounts by NUMA node, in the order of the configuration.
pub type ReservedMemory = Vec<(u32, BTreeMap<String, Quantity>)>;

/// Amounts reserved on the whole node, including hard eviction thresholds.
pub type NodeReservation = BTreeMap<String, Quantity>;

/// The state of a machine without assignments.
///
/// # Errors
/// The reservations do not match each other or the machine; texts mostly as upstream's.
pub(super) fn empty(
    machine: &MachineTopology,
    reserved: &ReservedMemory,
    total_reserved: &NodeReservation,
) -> Result<BTreeMap<u32, NodeMemory>, String> {
    check(machine, reserved, total_reserved)?;
    let system_reserved = system_reserved(reserved);
    let memory = system_reserved.values().filter_map(|bytes| bytes.get(MEMORY));
    if memory.sum::<u64>() == 0 {
        return Err("[memorymanager] you should specify the system reserved memory".to_owned());
    }
    let mut nodes = BTreeMap::new();
    for node in &machine.nodes {
        let reserved_bytes = |resource: &str| {
            let bytes = system_reserved.get(&node.id).and_then(|bytes| bytes.get(resource));
            bytes.copied().unwrap_or_default()
        };
        let mut memory_map = BTreeMap::new();
        let mut in_huge_pages = 0_u64;
        for (size, count) in &node.huge_pages {
            let total = size.saturating_mul(*count);
            let resource = huge_page_resource(i64::try_from(*size).unwrap_or(i64::MAX));
            let table = table(node.id, &resource, total, total, reserved_bytes(&resource))?;
            memory_map.insert(resource, table);
            in_huge_pages = in_huge_pages.saturating_add(total);
        }
        let usable = node.memory_bytes.saturating_sub(in_huge_pages);
        let memory = table(node.id, MEMORY, node.memory_bytes, usable, reserved_bytes(MEMORY))?;
        memory_map.insert(MEMORY.to_owned(), memory);
        let state = NodeMemory { number_of_assignments: 0, memory_map, cells: vec![node.id] };
        nodes.insert(node.id, state);
    }
    Ok(nodes)
}

fn table(
    node: u32,
    resource: &str,
    total: u64,
    usable: u64,
    system_reserved: u64,
) -> Result<MemoryTable, String> {
    let Some(allocatable) = usable.checked_sub(system_reserved) else {
        return Err(format!(
            "[memorymanager] {system_reserved} bytes of {resource:?} are reserved on NUMA node {node}, which has {usable} bytes"
        ));
    };
    Ok(MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable })
}

/// Checks that the reservations of NUMA nodes add up to that of the node.
fn check(
    machine: &MachineTopology,
    reserved: &ReservedMemory,
    total_reserved: &NodeReservation,
) -> Result<(), String> {
    let mut sums = BTreeMap::<&str, Quantity>::new();
    for (node, limits) in reserved {
        if machine.nodes.iter().all(|known| known.id != *node) {
            return Err(format!(
                "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
            ));
        }
        for (resource, amount) in limits {
            let sum = sums.entry(resource).or_default();
            *sum = sum.plus(*amount);
        }
    }
    let is_memory = |name: &&str| *name == MEMORY || name.starts_with(HUGEPAGES_PREFIX);
    let text = |amount: Quantity| Amount::of_bytes(amount.value()).to_api().0;
    let names = total_reserved.keys().map(String::as_str).filter(is_memory);
    let resources: BTreeSet<&str> = names.chain(sums.keys().copied()).collect();
    for resource in resources {
        let sum = sums.get(resource).copied().unwrap_or_default();
        let expected = total_reserved.get(resource).copied().unwrap_or_default();
        if sum != expected {
            return Err(format!(
                "the total amount {:?} of type {resource:?} is not equal to the value {:?} determined by Node Allocatable feature",
                text(sum),
                text(expected)
            ));
        }
    }
    Ok(())
}

/// Merges entries for the same NUMA node: later amounts replace earlier ones, as upstream does.
fn system_reserved(reserved: &ReservedMemory) -> BTreeMap<u32, MemoryBytes> {
    let mut by_node = BTreeMap::<u32, MemoryBytes>::new();
    for (node, limits) in reserved {
        let bytes = by_node.entry(*node).or_default();
        for (resource, amount) in limits {
            let amount = u64::try_from(amount.value()).unwrap_or_default();
            bytes.insert(resource.clone(), amount);
        }
    }
    by_node
}
