//! NUMA hints for memory. Pure.

use super::{MemoryBytes, MemoryTable, NodeMemory};
use crate::resources::topology::{NumaMask, TopologyHint, subsets};
use std::collections::BTreeMap;

/// Memory by NUMA node.
pub(super) type NumaNodeMap = BTreeMap<u32, NodeMemory>;

/// Hints for every set of nodes with enough free or `reusable` memory.
pub(super) fn hints(
    nodes: &NumaNodeMap,
    requested: &MemoryBytes,
    reusable: impl Fn(NumaMask, &str) -> u64,
) -> Vec<TopologyHint> {
    let ids: Vec<u32> = nodes.keys().copied().collect();
    let mut min_size = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let mut found = Vec::new();
    for mask in subsets(&ids) {
        let has = |field: fn(&MemoryTable) -> u64, more: &dyn Fn(&str) -> u64| {
            requested.iter().all(|(resource, bytes)| {
                let sum = sum(nodes, mask, resource, field);
                sum.saturating_add(more(resource)) >= *bytes
            })
        };
        if !has(|table| table.allocatable, &|_| 0) {
            continue;
        }
        min_size = min_size.min(mask.count());
        let may_be_used = if mask.count() == 1 {
            let mut members = mask.nodes().filter_map(|node| nodes.get(&node));
            members.all(|node| node.cells.len() <= 1)
        } else {
            !violates_groups(nodes, mask)
        };
        if may_be_used && has(|table| table.free, &|resource| reusable(mask, resource)) {
            found.push(mask);
        }
    }
    let found = found.into_iter();
    found.map(|mask| TopologyHint::new(mask, mask.count() == min_size)).collect()
}

/// Whether the nodes have enough memory in total.
pub(super) fn satisfies(nodes: &NumaNodeMap, mask: NumaMask, requested: &MemoryBytes) -> bool {
    let free = |resource: &str| sum(nodes, mask, resource, |table| table.free);
    requested.iter().all(|(resource, bytes)| free(resource) >= *bytes)
}

fn sum(nodes: &NumaNodeMap, mask: NumaMask, resource: &str, field: fn(&MemoryTable) -> u64) -> u64 {
    let nodes = nodes.iter().filter(|(id, _)| mask.contains(**id));
    let tables = nodes.filter_map(|(_, node)| node.memory_map.get(resource));
    tables.fold(0, |sum, table| sum.saturating_add(field(table)))
}

/// Whether a node of the set is already used alone or in a different group.
pub(super) fn violates_groups(nodes: &NumaNodeMap, mask: NumaMask) -> bool {
    let used = |node: &&NodeMemory| node.number_of_assignments > 0;
    let mut used = mask.nodes().filter_map(|id| nodes.get(&id)).filter(used);
    mask.count() > 1
        && used.any(|node| {
            node.cells.len() == 1 || NumaMask::of(node.cells.iter().copied()) != Some(mask)
        })
}

/// The preferred hint with the fewest nodes, and among these the lowest.
pub(super) fn best(hints: impl IntoIterator<Item = TopologyHint>) -> Option<TopologyHint> {
    hints.into_iter().reduce(|best, hint| {
        let narrower = match (hint.affinity, best.affinity) {
            (Some(one), Some(other)) => one.is_narrower_than(other),
            _ => false,
        };
        let is_better = hint.preferred && !best.preferred;
        if is_better || hint.preferred == best.preferred && narrower { hint } else { best }
    })
}
