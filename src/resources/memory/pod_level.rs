//! Divides the memory of a pod with pod-level resources among its containers. Pure.

use super::{MemoryBlock, MemoryBytes, requests};
use crate::model::Pod;
use crate::resources::topology::{NumaMask, TopologyError};
use crate::resources::{AllocationCounters, pod_level};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;
use std::convert::Infallible;

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
pub(super) fn blocks(bytes: &MemoryBytes, nodes: NumaMask) -> Vec<MemoryBlock> {
    let bytes = bytes.iter().filter(|(_, size)| **size > 0);
    bytes
        .map(|(resource, size)| MemoryBlock {
            nodes: nodes.nodes().collect(),
            resource: resource.clone(),
            size: *size,
        })
        .collect()
}

/// The part of each container.
pub(super) fn divide(
    pod: &Pod,
    total: &MemoryBytes,
    counters: &mut AllocationCounters,
) -> BTreeMap<String, MemoryBytes> {
    let take = |_: &MemoryBytes, container: &Container| {
        let own = requests::of_container(pod, container);
        Ok::<_, Infallible>(Some(own).filter(|own| !own.is_empty()))
    };
    let Ok(parts) = pod_level::divide(pod, total, counters, take, without);
    parts
}

fn without(left: &MemoryBytes, part: &MemoryBytes) -> MemoryBytes {
    let left = left.iter().map(|(resource, bytes)| {
        let taken = part.get(resource).copied().unwrap_or_default();
        (resource.clone(), bytes.saturating_sub(taken))
    });
    left.collect()
}
