//! QoS classes of pods, and OOM scores of containers.

use super::Resources;
use super::requests::{self, Amounts, CPU, InvalidQuantity, MEMORY};
use crate::base::named_enum;
use crate::model::{Pod, PodExt, Quantity, SYSTEM_CRITICAL_PRIORITY, is_sidecar};
use k8s_openapi::api::core::v1::Container;

named_enum! {
    /// QoS class of a pod, in the API's spelling.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum QosClass {
        /// Every container has CPU and memory limits equal to its requests.
        Guaranteed = "Guaranteed",
        /// Some requests or limits are set, but not all limits equal the requests.
        Burstable = "Burstable",
        /// Neither requests nor limits.
        BestEffort = "BestEffort",
    }
}

/// oom_score_adj of guaranteed and of node-critical pods.
const GUARANTEED_OOM_SCORE_ADJ: i64 = -997;
/// oom_score_adj of BestEffort pods.
const BEST_EFFORT_OOM_SCORE_ADJ: i64 = 1000;
/// Priority class of pods that get the OOM score of Guaranteed pods, if they are static or of critical priority.
const NODE_CRITICAL: &str = "system-node-critical";

/// The QoS class of a pod, by its spec (upstream's `ComputePodQOS`). Pod-level resources, if set, determine it alone;
/// init containers count like regular ones.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn pod_qos(pod: &Pod) -> Result<QosClass, InvalidQuantity> {
    let pod_level: Resources = requests::of_pod_level(pod)?;
    if cpu_and_memory(&pod_level.requests).next().is_some()
        || cpu_and_memory(&pod_level.limits).next().is_some()
    {
        return Ok(class_of(&pod_level, fully_limited(&pod_level)));
    }
    let mut total: Resources = Resources::default();
    let mut all_limited = true;
    for container in pod.containers().iter().chain(pod.init_containers()) {
        let container_level: Resources = requests::of_container(container)?;
        for (name, amount) in cpu_and_memory(&container_level.requests) {
            let sum = total.requests.entry(name.to_string()).or_default();
            *sum = sum.plus(amount);
        }
        for (name, amount) in cpu_and_memory(&container_level.limits) {
            let sum = total.limits.entry(name.to_string()).or_default();
            *sum = sum.plus(amount);
        }
        all_limited &= fully_limited(&container_level);
    }
    Ok(class_of(&total, all_limited))
}

fn fully_limited(resources: &Resources) -> bool {
    cpu_and_memory(&resources.limits).count() == 2
}

/// The amounts that determine the class: CPU and memory above zero.
fn cpu_and_memory(amounts: &Amounts) -> impl Iterator<Item = (&str, Quantity)> {
    [CPU, MEMORY].into_iter().filter_map(|name| {
        let amount = amounts.get(name).copied()?;
        amount.is_positive().then_some((name, amount))
    })
}

fn class_of(total: &Resources, all_limited: bool) -> QosClass {
    let requests: Vec<_> = cpu_and_memory(&total.requests).collect();
    let limits: Vec<_> = cpu_and_memory(&total.limits).collect();
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// oom_score_adj of one container (upstream's `GetContainerOOMScoreAdjust`): -997 for Guaranteed and node-critical
/// pods, 1000 for BestEffort pods; in between, lower for containers that request more memory.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn oom_score_adj(
    pod: &Pod,
    container: &Container,
    memory_capacity_bytes: i64,
) -> Result<i64, InvalidQuantity> {
    if is_node_critical(pod) {
        return Ok(GUARANTEED_OOM_SCORE_ADJ);
    }
    match pod_qos(pod)? {
        QosClass::Guaranteed => return Ok(GUARANTEED_OOM_SCORE_ADJ),
        QosClass::BestEffort => return Ok(BEST_EFFORT_OOM_SCORE_ADJ),
        QosClass::Burstable => {}
    }
    let spare = spare_pod_memory(pod)?;
    let request = memory_request(container)?;
    let mut score = burstable_score(request.saturating_add(spare), memory_capacity_bytes);
    if pod.init_containers().iter().any(|c| c.name == container.name) && is_sidecar(container) {
        let mut min_request = i64::MAX;
        for regular in pod.containers() {
            min_request = min_request.min(memory_request(regular)?);
        }
        score =
            score.min(burstable_score(min_request.saturating_add(spare), memory_capacity_bytes));
    }
    Ok(score
        .clamp(BEST_EFFORT_OOM_SCORE_ADJ + GUARANTEED_OOM_SCORE_ADJ, BEST_EFFORT_OOM_SCORE_ADJ - 1))
}

fn burstable_score(memory_request: i64, capacity: i64) -> i64 {
    let capacity = i128::from(capacity.max(1));
    let share = 1000 * i128::from(memory_request) / capacity;
    i64::try_from(1000 - share).unwrap_or(i64::MIN)
}

fn memory_request(container: &Container) -> Result<i64, InvalidQuantity> {
    let request = requests::of_container::<Quantity>(container)?.request(MEMORY);
    Ok(request.unwrap_or_default().value())
}

/// Pod-level memory request beyond what the containers request together, divided by the number of all containers.
fn spare_pod_memory(pod: &Pod) -> Result<i64, InvalidQuantity> {
    let Some(at_pod_level) = requests::of_pod_level::<Quantity>(pod)?.request(MEMORY) else {
        return Ok(0);
    };
    let requested = pod.spec().map(requests::of_containers::<Quantity>);
    let requested = requested.transpose()?.unwrap_or_default().request(MEMORY);
    let requested = requested.unwrap_or_default().value();
    let spare = at_pod_level.value().saturating_sub(requested).max(0);
    let containers = pod.containers().len() + pod.init_containers().len();
    Ok(spare / i64::try_from(containers).unwrap_or(i64::MAX).max(1))
}

fn is_node_critical(pod: &Pod) -> bool {
    let Some(spec) = pod.spec() else {
        return false;
    };
    let critical = pod.is_static() || spec.priority.is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY);
    critical && spec.priority_class_name.as_deref() == Some(NODE_CRITICAL)
}
