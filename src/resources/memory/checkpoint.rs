//! The memory manager's checkpoint. The format is upstream's, so that either kubelet can read the other's. Pure.

use super::{Block, MemoryState, MemoryTable, NodeMemory};
use crate::resources::Assignments;
use crate::resources::checkpoint::{CORRUPTED, checksum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Name of the checkpoint in the kubelet's directory.
pub const STATE_FILE: &str = "memory_manager_state";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryCheckpoint {
    #[serde(default)]
    policy_name: String,
    /// Keys are text, because Go sorts them as text.
    #[serde(default)]
    machine_state: BTreeMap<String, NodeMemory>,
    #[serde(default, skip_serializing_if = "Assignments::is_empty")]
    entries: Assignments<Vec<Block>>,
    #[serde(default)]
    checksum: u64,
}

/// Encodes the state.
pub fn to_checkpoint(policy: &str, state: &MemoryState) -> String {
    let nodes = state.nodes.iter();
    let checkpoint = MemoryCheckpoint {
        policy_name: policy.to_owned(),
        machine_state: nodes
            .map(|(id, node)| (id.to_string(), node.clone()))
            .collect(),
        entries: state.assigned.clone(),
        checksum: expected_checksum(policy, state),
    };
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

/// Decodes a checkpoint, which has to be of this policy.
///
/// # Errors
/// It is of another policy, or damaged; texts as upstream's.
pub fn from_checkpoint(policy: &str, text: &str) -> Result<MemoryState, String> {
    let checkpoint: MemoryCheckpoint =
        serde_json::from_str(text).map_err(|error| format!("{CORRUPTED}: {error}"))?;
    let mut state = MemoryState {
        assigned: checkpoint.entries,
        ..MemoryState::default()
    };
    for (id, node) in checkpoint.machine_state {
        let id = id
            .parse()
            .map_err(|_| format!("{CORRUPTED}: bad NUMA node {id:?}"))?;
        state.nodes.insert(id, node);
    }
    let expected = expected_checksum(&checkpoint.policy_name, &state);
    // Very old kubelets write no checksum.
    if checkpoint.checksum != 0 && checkpoint.checksum != expected {
        return Err(CORRUPTED.to_owned());
    }
    if checkpoint.policy_name != policy {
        return Err(format!(
            "[memorymanager] configured policy {policy:?} differs from state checkpoint policy {:?}",
            checkpoint.policy_name
        ));
    }
    Ok(state)
}

/// FNV-1a-32 of the structure without its checksum, as Go's spew prints it.
fn expected_checksum(policy: &str, state: &MemoryState) -> u64 {
    let nodes = state.nodes.iter().map(|(id, node)| {
        let tables = node.memory_map.iter();
        let tables = tables.map(|(name, table)| format!("{name}:{}", dump_table(table)));
        format!(
            "{id}:<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{}] Cells:([]int)[{}]}}",
            node.number_of_assignments,
            join(tables),
            join(&node.cells)
        )
    });
    let pods = state.assigned.iter().map(|(pod, containers)| {
        let containers = containers.iter();
        let containers = containers
            .map(|(name, blocks)| format!("{name}:[{}]", join(blocks.iter().map(dump_block))));
        format!("{pod}:map[{}]", join(containers))
    });
    checksum(&format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[{}] Entries:(state.ContainerMemoryAssignments)map[{}] Checksum:(checksum.Checksum)0}}",
        join(nodes),
        join(pods)
    ))
}

fn dump_table(table: &MemoryTable) -> String {
    format!(
        "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} Free:(uint64){}}}",
        table.total, table.system_reserved, table.allocatable, table.reserved, table.free
    )
}

fn dump_block(block: &Block) -> String {
    format!(
        "{{NUMAAffinity:([]int)[{}] Type:(v1.ResourceName){} Size:(uint64){}}}",
        join(&block.nodes),
        block.resource,
        block.size
    )
}

fn join<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(" ")
}
