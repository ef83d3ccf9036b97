//! The CPU manager's checkpoint. The format is upstream's, so that either kubelet can read the other's. Pure.

use super::{CpuSet, CpuState};
use crate::resources::Assignments;
use crate::resources::checkpoint::{CORRUPTED, checksum, join};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the checkpoint in the kubelet's directory.
pub const STATE_FILE: &str = "cpu_manager_state";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuCheckpoint {
    #[serde(default)]
    policy_name: String,
    #[serde(default, rename = "defaultCpuSet")]
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "Assignments::is_empty")]
    entries: Assignments<String>,
    /// Only in the third version, which kubelets write with `PodLevelResourceManagers`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pod_entries: BTreeMap<String, PodEntry>,
    #[serde(default)]
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    #[serde(default)]
    cpu_set: String,
}

impl CpuCheckpoint {
    /// FNV-1a-32 of the structure without its checksum, as Go's spew prints it; with the field of pods or without.
    fn expected_checksum(&self, pods: &str) -> u64 {
        let entries = self.entries.iter().map(|(pod, containers)| {
            let containers = containers.iter().map(|(name, cpus)| format!("{name}:{cpus}"));
            format!("{pod}:map[{}]", join(containers))
        });
        checksum(&format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:(map[string]map[string]string)map[{}]{pods} Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            join(entries)
        ))
    }
}

/// The field of pods as Go's spew prints it.
fn dump_pods(pods: &BTreeMap<String, CpuSet>) -> String {
    let pods = pods.iter().map(|(pod, cpus)| {
        let cpus = join(cpus.iter().map(|cpu| format!("{cpu}:{{}}")));
        format!("{pod}:{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{cpus}]}}}}")
    });
    format!(" PodEntries:(state.PodCPUAssignments)map[{}]", join(pods))
}

/// Encodes the state: in the third version if it has CPUs of whole pods, else in the second, which kubelets read with
/// `PodLevelResourceManagers` and without.
pub fn to_checkpoint(policy: &str, state: &CpuState) -> String {
    let text = |cpus: &CpuSet| cpus.to_string();
    let pods = state.assigned.iter().map(|(pod, containers)| {
        let containers = containers.iter().map(|(name, cpus)| (name.clone(), text(cpus)));
        (pod.clone(), containers.collect())
    });
    let mut checkpoint = CpuCheckpoint {
        policy_name: policy.to_owned(),
        default_cpu_set: text(&state.shared),
        entries: pods.collect(),
        pod_entries: BTreeMap::new(),
        checksum: 0,
    };
    let mut dump = String::new();
    if !state.pods.is_empty() {
        let entry = |cpus| PodEntry { cpu_set: text(cpus) };
        let pods = state.pods.iter();
        checkpoint.pod_entries = pods.map(|(pod, cpus)| (pod.clone(), entry(cpus))).collect();
        dump = dump_pods(&state.pods);
    }
    checkpoint.checksum = checkpoint.expected_checksum(&dump);
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

/// Decodes a checkpoint, which has to be of this policy.
///
/// # Errors
/// It is of another policy, or damaged; texts as upstream's.
pub fn from_checkpoint(policy: &str, text: &str) -> Result<CpuState, String> {
    let checkpoint: CpuCheckpoint =
        serde_json::from_str(text).map_err(|error| format!("{CORRUPTED}: {error}"))?;
    let mut pods = BTreeMap::new();
    for (pod, entry) in &checkpoint.pod_entries {
        let cpus = CpuSet::parse(&entry.cpu_set);
        let cpus = cpus.map_err(|error| format!("{CORRUPTED}: failed to parse cpuset: {error}"))?;
        pods.insert(pod.clone(), cpus);
    }
    let is_second = pods.is_empty() && checkpoint.checksum == checkpoint.expected_checksum("");
    // Very old kubelets write no checksum.
    if checkpoint.checksum != 0
        && !is_second
        && checkpoint.checksum != checkpoint.expected_checksum(&dump_pods(&pods))
    {
        return Err(CORRUPTED.to_owned());
    }
    if checkpoint.policy_name != policy {
        return Err(format!(
            "configured policy {policy:?} differs from state checkpoint policy {:?}",
            checkpoint.policy_name
        ));
    }
    let shared = &checkpoint.default_cpu_set;
    let mut state = CpuState {
        shared: CpuSet::parse(shared)
            .map_err(|error| format!("could not parse default cpu set {shared:?}: {error}"))?,
        pods,
        ..CpuState::default()
    };
    for (pod, containers) in &checkpoint.entries {
        for (container, text) in containers {
            let cpus = CpuSet::parse(text).map_err(|error| {
                format!("could not parse cpuset {text:?} for container {container:?} in pod {pod:?}: {error}")
            })?;
            let assigned = state.assigned.entry(pod.clone()).or_default();
            assigned.insert(container.clone(), cpus);
        }
    }
    Ok(state)
}
