//! Divides the exclusive CPUs of a pod with pod-level resources among its containers. Pure.

use super::{CpuSet, StaticCpuPolicy, requests};
use crate::{
    model::{Pod, PodExt, is_sidecar},
    resources::{AllocationCounters, pod_level, requests::CPU, topology::TopologyError},
};
use std::collections::BTreeMap;

/// Checks that containers without CPUs of their own have some left.
///
/// # Errors
/// They have none; texts as upstream's.
pub(super) fn check(pod: &Pod, count: usize) -> Result<(), TopologyError> {
    let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
    pod_level::check_shared(pod, CPU, number(count), |container| {
        let own = requests::of_container(pod, container);
        Some(number(own)).filter(|own| *own > 0)
    })
}

/// The part of each container. An init container that shares has all CPUs that no sidecar before it has for itself; its
/// CPUs are used again by the containers after it.
///
/// # Errors
/// The containers request more than the pod has.
pub(super) fn divide(
    policy: &StaticCpuPolicy,
    pod: &Pod,
    cpus: &CpuSet,
    counters: &mut AllocationCounters,
) -> Result<BTreeMap<String, CpuSet>, String> {
    let mut parts = BTreeMap::new();
    let mut left = cpus.clone();
    for container in pod.init_containers() {
        let own = requests::of_container(pod, container);
        if own > 0 {
            let part = policy.take(&left, own)?;
            if is_sidecar(container) {
                left = left.difference(&part);
            }
            counters.pod_exclusive += 1;
            parts.insert(container.name.clone(), part);
        } else if !is_sidecar(container) {
            counters.pod_shared += 1;
            parts.insert(container.name.clone(), left.clone());
        }
    }
    for container in pod.containers() {
        let own = requests::of_container(pod, container);
        if own > 0 {
            let part = policy.take(&left, own)?;
            left = left.difference(&part);
            counters.pod_exclusive += 1;
            parts.insert(container.name.clone(), part);
        }
    }
    for container in pod.init_containers().iter().chain(pod.containers()) {
        counters.by_pod += 1;
        parts.entry(container.name.clone()).or_insert_with(|| {
            counters.pod_shared += 1;
            left.clone()
        });
    }
    Ok(parts)
}
