//! Cgroup v2 memory settings of containers other than the limit. Pure.

use super::requests::{InvalidQuantity, MEMORY, Resources};
use super::{QosClass, pod_qos};
use crate::model::{NodeFacts, Pod, PodExt};

/// `memory.high` is rounded down to this many bytes; on machines with larger pages the kernel rounds further.
const PAGE_BYTES: f64 = 4096.0;

/// Whether containers may swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// No setting, because the kernel cannot limit swap.
    #[default]
    Unlimited,
    /// `NoSwap` on cgroup v2.
    NoSwap,
    /// No swap on cgroup v1: the limit of memory and swap together is set to the memory limit. A container without a
    /// memory limit may swap.
    NoSwapV1,
    /// `LimitedSwap`: containers of burstable pods get swap in proportion to their memory request.
    LimitedSwap {
        /// Swap capacity of the node, bytes.
        capacity_bytes: i64,
    },
}

/// Memory protection and throttling (`MemoryQoS`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`: position of `memory.high` between request and limit, from 0 to 1.
    pub throttling_factor: f64,
    /// Whether requested memory is protected (`memoryReservationPolicy: TieredReservation`).
    pub tiered_reservation: bool,
}

/// `memory.swap.max` of a container, bytes.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub(super) fn swap_limit(
    pod: &Pod,
    container_level: &Resources,
    node: &NodeFacts,
    swap: SwapBehavior,
) -> Result<Option<i64>, InvalidQuantity> {
    let capacity_bytes = match swap {
        SwapBehavior::Unlimited | SwapBehavior::NoSwapV1 => return Ok(None),
        SwapBehavior::NoSwap => return Ok(Some(0)),
        SwapBehavior::LimitedSwap { capacity_bytes } => capacity_bytes,
    };
    let request = container_level.request(MEMORY).unwrap_or_default().value();
    let fits_node = request <= node.memory_capacity_bytes && node.memory_capacity_bytes > 0;
    if !fits_node || !may_swap(pod, container_level)? {
        return Ok(Some(0));
    }
    let share = request as f64 / node.memory_capacity_bytes as f64;
    Ok(Some((share * capacity_bytes as f64) as i64))
}

/// Whether a container may swap with `LimitedSwap`.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn may_swap(pod: &Pod, container_level: &Resources) -> Result<bool, InvalidQuantity> {
    let bytes = |amount: Option<crate::model::Quantity>| amount.unwrap_or_default().value();
    let (request, limit) =
        (bytes(container_level.request(MEMORY)), bytes(container_level.limit(MEMORY)));
    // A container with a limit but no request has a request equal to its limit.
    Ok(!pod.is_critical()
        && pod_qos(pod)? == QosClass::Burstable
        && request != limit
        && (request, limit) != (0, 0))
}

/// The cgroup settings that protect a container's memory (`memory.min`, `memory.low`) and throttle it before its limit
/// (`memory.high`).
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub(super) fn memory_qos(
    pod: &Pod,
    container_level: &Resources,
    node: &NodeFacts,
    qos: MemoryQos,
) -> Result<Vec<(&'static str, i64)>, InvalidQuantity> {
    let bytes = |amount: Option<crate::model::Quantity>| amount.unwrap_or_default().value();
    let (request, limit) =
        (bytes(container_level.request(MEMORY)), bytes(container_level.limit(MEMORY)));
    let mut files = if request == 0 || !qos.tiered_reservation {
        vec![("memory.min", 0), ("memory.low", 0)]
    } else if pod_qos(pod)? == QosClass::Guaranteed {
        vec![("memory.min", request)]
    } else {
        vec![("memory.low", request)]
    };
    let max = if limit == 0 { node.unreserved_memory_bytes } else { limit };
    if request != limit && max > 0 {
        let (from, to) = (request as f64, max as f64);
        let high = ((from + (to - from) * qos.throttling_factor) / PAGE_BYTES).floor() * PAGE_BYTES;
        let high = high as i64;
        files.extend((high > request).then_some(("memory.high", high)));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::super::requests;
    use super::*;
    use serde_json::{Value, json};

    const MIB: i64 = 1 << 20;

    fn pod(resources: Value, critical: bool) -> Pod {
        let priority = if critical { 2_000_000_000 } else { 0 };
        let container = json!({"name": "c", "resources": resources});
        let pod = json!({
            "metadata": {"name": "p", "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {"containers": [container], "priority": priority},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn node() -> NodeFacts {
        NodeFacts {
            memory_capacity_bytes: 1000 * MIB,
            unreserved_memory_bytes: 900 * MIB,
            ..NodeFacts::default()
        }
    }

    fn own(pod: &Pod) -> Resources {
        requests::of_container(&pod.spec.as_ref().unwrap().containers[0]).unwrap()
    }

    #[test]
    fn burstable_containers_swap_by_their_share_of_the_nodes_memory() {
        let burstable = json!({"requests": {"memory": "100Mi"}});
        let limited = SwapBehavior::LimitedSwap { capacity_bytes: 500 * MIB };
        for (resources, critical, swap, limit) in [
            (burstable.clone(), false, SwapBehavior::Unlimited, None),
            (burstable.clone(), false, SwapBehavior::NoSwap, Some(0)),
            (burstable.clone(), false, SwapBehavior::NoSwapV1, None),
            (burstable.clone(), false, limited, Some(50 * MIB)),
            (burstable, true, limited, Some(0)),
            (json!({}), false, limited, Some(0)),
            (json!({"requests": {"cpu": "1"}}), false, limited, Some(0)),
            (
                json!({"requests": {"memory": "1Mi", "cpu": "1"}, "limits": {"memory": "1Mi"}}),
                false,
                limited,
                Some(0),
            ),
            (json!({"limits": {"memory": "10Mi", "cpu": "1"}}), false, limited, Some(0)),
            (json!({"requests": {"memory": "2000Mi"}}), false, limited, Some(0)),
        ] {
            let pod = pod(resources, critical);
            assert_eq!(swap_limit(&pod, &own(&pod), &node(), swap), Ok(limit), "{pod:?}");
        }
    }

    #[test]
    fn memory_is_protected_by_class_and_reclaimed_before_the_limit() {
        let request = json!({"requests": {"memory": "100Mi"}});
        let both = json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}});
        let guaranteed = json!({"requests": {"memory": "100Mi", "cpu": "1"}, "limits": {"memory": "100Mi", "cpu": "1"}});
        let (min, low, high) = ("memory.min", "memory.low", "memory.high");
        for (resources, tiered, expected) in [
            (json!({}), true, vec![(min, 0), (low, 0)]),
            (request.clone(), true, vec![(low, 100 * MIB), (high, 820 * MIB)]),
            (request, false, vec![(min, 0), (low, 0), (high, 820 * MIB)]),
            (both, true, vec![(low, 100 * MIB), (high, 190 * MIB)]),
            (guaranteed, true, vec![(min, 100 * MIB)]),
        ] {
            let pod = pod(resources, false);
            let qos = MemoryQos { throttling_factor: 0.9, tiered_reservation: tiered };
            assert_eq!(memory_qos(&pod, &own(&pod), &node(), qos), Ok(expected), "{pod:?}");
        }
    }
}
