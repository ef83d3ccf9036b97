//! Divides the memory of a pod with pod-level resources among its containers. Pure.

use super::{Block, MemoryBytes, requests};
use crate::{
    model::{Pod, PodExt, is_sidecar},
    resources::{
        AllocationCounters, pod_level,
        topology::{NumaMask, TopologyError},
    },
};
use std::collections::BTreeMap;

/// Checks that containers without memory of their own have some left.
///
/// # Errors
/// They have none; texts as upstream's.
pub(super) fn check(pod: &Pod, total: &MemoryBytes) -> Result<(), TopologyError> {
    total.iter().try_for_each(|(resource, bytes)| {
        pod_level::check_shared(pod, resource, *bytes, |container| {
            let own = requests::of_container(pod, container);
            let bytes = own.get(resource).copied().unwrap_or_default();
            Some(bytes).filter(|_| !own.is_empty())
        })
    })
}

/// Blocks of these sizes on the nodes.
pub(super) fn blocks(bytes: &MemoryBytes, nodes: NumaMask) -> Vec<Block> {
    let bytes = bytes.iter().filter(|(_, size)| **size > 0);
    bytes
        .map(|(resource, size)| Block {
            nodes: nodes.nodes().collect(),
            resource: resource.clone(),
            size: *size,
        })
        .collect()
}

/// The part of each container. An init container that shares has all that no sidecar before it has for itself; its
/// memory is used again by the containers after it.
pub(super) fn divide(
    pod: &Pod,
    total: &MemoryBytes,
    counters: &mut AllocationCounters,
) -> BTreeMap<String, MemoryBytes> {
    let mut parts = BTreeMap::new();
    let mut left = total.clone();
    for container in pod.init_containers() {
        let own = requests::of_container(pod, container);
        if !own.is_empty() {
            if is_sidecar(container) {
                take(&mut left, &own);
            }
            counters.pod_exclusive += 1;
            parts.insert(container.name.clone(), own);
        } else if !is_sidecar(container) {
            counters.pod_shared += 1;
            parts.insert(container.name.clone(), left.clone());
        }
    }
    for container in pod.containers() {
        let own = requests::of_container(pod, container);
        if !own.is_empty() {
            take(&mut left, &own);
            counters.pod_exclusive += 1;
            parts.insert(container.name.clone(), own);
        }
    }
    for container in pod.init_containers().iter().chain(pod.containers()) {
        counters.by_pod += 1;
        parts.entry(container.name.clone()).or_insert_with(|| {
            counters.pod_shared += 1;
            left.clone()
        });
    }
    parts
}

fn take(left: &mut MemoryBytes, part: &MemoryBytes) {
    for (resource, bytes) in part {
        if let Some(left) = left.get_mut(resource) {
            *left = left.saturating_sub(*bytes);
        }
    }
}
