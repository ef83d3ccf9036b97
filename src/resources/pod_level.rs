//! Which pods and containers the CPU and memory managers manage. Pure.
//!
//! With the feature gate `PodLevelResourceManagers` (alpha), pods with pod-level resources (`spec.resources`) are
//! managed too. If the topology manager aligns whole pods, such a pod gets the resources of `spec.resources` at once:
//! containers whose CPU and memory requests equal their limits get an exclusive part, and the others share the rest.

use super::requests::{self, CPU, MEMORY};
use super::topology::TopologyError;
use super::{QosClass, pod_qos};
use crate::model::{Pod, PodExt, Quantity, is_sidecar};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

/// Counters of allocations since the kubelet started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationCounters {
    /// Allocations from the resources of the node.
    pub by_node: u64,
    /// Allocations from the resources of a pod.
    pub by_pod: u64,
    /// Failed allocations from the resources of the node.
    pub node_errors: u64,
    /// Failed allocations of the resources of a pod.
    pub pod_errors: u64,
    /// Containers with exclusive resources of the node.
    pub node_exclusive: u64,
    /// Containers with an exclusive part of the resources of their pod.
    pub pod_exclusive: u64,
    /// Containers that share the resources of their pod.
    pub pod_shared: u64,
}

/// Whether resources of a pod can be exclusive: it is Guaranteed, and has pod-level resources only if the gate is on.
pub(super) fn is_managed(pod: &Pod, gate: bool) -> bool {
    pod_qos(pod) == Ok(QosClass::Guaranteed) && (gate || !requests::has_pod_level(pod))
}

/// Whether a container of a managed pod has exclusive resources, and does not share those of its pod.
pub(super) fn has_exclusive(pod: &Pod, container: &Container) -> bool {
    if !requests::has_pod_level(pod) {
        return true;
    }
    let resources = requests::of_container::<Quantity>(container).unwrap_or_default();
    [CPU, MEMORY].into_iter().all(|name| {
        let request = resources.request(name).unwrap_or_default();
        request != Quantity::default() && resources.limits.get(name) == Some(&request)
    })
}

/// Checks that the exclusive resources of containers leave some for the containers that share the rest. `exclusive`
/// returns the exclusive amount of a container, or `None` if it shares.
///
/// # Errors
/// Nothing is left; texts as upstream's.
pub(super) fn check_shared(
    pod: &Pod,
    resource: &str,
    total: u64,
    exclusive: impl Fn(&Container) -> Option<u64>,
) -> Result<(), TopologyError> {
    let empty = |message| Err(TopologyError::new("EmptyPodSharedPoolError", message));
    let (mut taken, mut is_shared) = (0_u64, false);
    for container in pod.init_containers() {
        match exclusive(container) {
            Some(amount) if is_sidecar(container) => taken = taken.saturating_add(amount),
            None if is_sidecar(container) => is_shared = true,
            None if taken >= total => {
                let what = if resource == CPU { "cpus" } else { resource };
                return empty(format!(
                    "pod rejected, pod has shared init containers but no {what} available for them"
                ));
            }
            _ => (),
        }
    }
    for container in pod.containers() {
        match exclusive(container) {
            Some(amount) => taken = taken.saturating_add(amount),
            None => is_shared = true,
        }
    }
    if is_shared && taken >= total {
        let what = if resource == CPU { "cpus" } else { MEMORY };
        return empty(format!(
            "pod rejected, sum of exclusive container {resource} requests equals pod budget, leaving no {what} for shared containers"
        ));
    }
    Ok(())
}

/// Divides the resources of a pod among its containers. `take` selects the exclusive part of a container from what is
/// left, or returns `None` if the container shares; `without` subtracts a part. Regular init containers only borrow:
/// their part, or, if they share, all that the sidecars before them have not taken, is available again for later
/// containers. Sidecars and regular containers that share get what is left at the end.
///
/// # Errors
/// Those of `take`.
pub(super) fn divide<T: Clone, E>(
    pod: &Pod,
    total: &T,
    counters: &mut AllocationCounters,
    take: impl Fn(&T, &Container) -> Result<Option<T>, E>,
    without: impl Fn(&T, &T) -> T,
) -> Result<BTreeMap<String, T>, E> {
    let mut parts = BTreeMap::new();
    let mut left = total.clone();
    let init = pod.init_containers().iter();
    let init = init.map(|container| (container, is_sidecar(container)));
    let regular = pod.containers().iter().map(|container| (container, true));
    for (container, keeps_resources) in init.chain(regular) {
        let part = take(&left, container)?;
        if let Some(part) = &part {
            counters.pod_exclusive += 1;
            if keeps_resources {
                left = without(&left, part);
            }
        } else if !keeps_resources {
            counters.pod_shared += 1;
        }
        let part = part.or_else(|| (!keeps_resources).then(|| left.clone()));
        parts.insert(container.name.clone(), part);
    }
    let parts = parts.into_iter().map(|(name, part)| {
        counters.by_pod += 1;
        let part = part.unwrap_or_else(|| {
            counters.pod_shared += 1;
            left.clone()
        });
        (name, part)
    });
    Ok(parts.collect())
}
