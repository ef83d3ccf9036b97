//! Divides the exclusive CPUs of a pod with pod-level resources among its containers. Pure.

use super::{CpuSet, StaticCpuPolicy, requests};
use crate::model::Pod;
use crate::resources::requests::CPU;
use crate::resources::topology::TopologyError;
use crate::resources::{AllocationCounters, pod_level};
use k8s_openapi::api::core::v1::Container;
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

/// The part of each container.
///
/// # Errors
/// The containers request more than the pod has.
pub(super) fn divide(
    policy: &StaticCpuPolicy,
    pod: &Pod,
    cpus: &CpuSet,
    counters: &mut AllocationCounters,
) -> Result<BTreeMap<String, CpuSet>, String> {
    let take = |left: &CpuSet, container: &Container| {
        let own = requests::of_container(pod, container);
        (own > 0).then(|| policy.take(left, own)).transpose()
    };
    pod_level::divide(pod, cpus, counters, take, CpuSet::difference)
}
