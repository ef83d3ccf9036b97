//! The memory manager's checkpoint. The format is upstream's, so that either kubelet can read the other's. Pure.

use super::{MemoryBlock, MemoryState, MemoryTable, NodeMemory};
use crate::resources::Assignments;
use crate::resources::checkpoint::{CORRUPTED, checksum, join};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    entries: Assignments<Vec<MemoryBlock>>,
    /// Only in the second version, which kubelets write with `PodLevelResourceManagers`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pod_entries: BTreeMap<String, PodEntry>,
    #[serde(default)]
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    memory_blocks: Vec<MemoryBlock>,
}

/// Encodes the state: in the second version if it has memory of whole pods, else in the first, which kubelets read with
/// `PodLevelResourceManagers` and without.
pub fn to_checkpoint(policy: &str, state: &MemoryState) -> String {
    let nodes = state.nodes.iter();
    let pods = state.pods.iter().map(|(pod, blocks)| {
        let memory_blocks = blocks.clone();
        (pod.clone(), PodEntry { memory_blocks })
    });
    let dump = if state.pods.is_empty() { String::new() } else { dump_pods(&state.pods) };
    let checkpoint = MemoryCheckpoint {
        policy_name: policy.to_owned(),
        machine_state: nodes.map(|(id, node)| (id.to_string(), node.clone())).collect(),
        entries: state.assigned.clone(),
        pod_entries: pods.collect(),
        checksum: expected_checksum(policy, state, &dump),
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
    let pods = checkpoint.pod_entries.into_iter();
    let mut state = MemoryState {
        assigned: checkpoint.entries,
        pods: pods.map(|(pod, entry)| (pod, entry.memory_blocks)).collect(),
        ..MemoryState::default()
    };
    for (id, node) in checkpoint.machine_state {
        let id = id.parse().map_err(|_| format!("{CORRUPTED}: bad NUMA node {id:?}"))?;
        state.nodes.insert(id, node);
    }
    let expected = |pods: &str| expected_checksum(&checkpoint.policy_name, &state, pods);
    let is_first = state.pods.is_empty() && checkpoint.checksum == expected("");
    // Very old kubelets write no checksum.
    if checkpoint.checksum != 0
        && !is_first
        && checkpoint.checksum != expected(&dump_pods(&state.pods))
    {
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

/// FNV-1a-32 of the structure without its checksum, as Go's spew prints it; with the field of pods or without.
fn expected_checksum(policy: &str, state: &MemoryState, pods: &str) -> u64 {
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
    let entries = state.assigned.iter().map(|(pod, containers)| {
        let containers = containers.iter();
        let containers = containers
            .map(|(name, blocks)| format!("{name}:[{}]", join(blocks.iter().map(dump_block))));
        format!("{pod}:map[{}]", join(containers))
    });
    checksum(&format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[{}] Entries:(state.ContainerMemoryAssignments)map[{}]{pods} Checksum:(checksum.Checksum)0}}",
        join(nodes),
        join(entries)
    ))
}

/// The field of pods as Go's spew prints it.
fn dump_pods(pods: &BTreeMap<String, Vec<MemoryBlock>>) -> String {
    let pods = pods.iter().map(|(pod, blocks)| {
        let blocks = join(blocks.iter().map(dump_block));
        format!("{pod}:{{MemoryBlocks:([]state.Block)[{blocks}]}}")
    });
    format!(" PodEntries:(state.PodMemoryAssignments)map[{}]", join(pods))
}

fn dump_table(table: &MemoryTable) -> String {
    format!(
        "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} Free:(uint64){}}}",
        table.total, table.system_reserved, table.allocatable, table.reserved, table.free
    )
}

fn dump_block(block: &MemoryBlock) -> String {
    format!(
        "{{NUMAAffinity:([]int)[{}] Type:(v1.ResourceName){} Size:(uint64){}}}",
        join(&block.nodes),
        block.resource,
        block.size
    )
}
