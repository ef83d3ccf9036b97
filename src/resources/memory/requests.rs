//! Memory and huge page requests of containers. Pure.

use super::MemoryBytes;
use crate::model::{Pod, PodExt, is_sidecar};
use crate::resources::requests::{self, HUGEPAGES_PREFIX, MEMORY};
use crate::resources::{Resources, pod_level};
use k8s_openapi::api::core::v1::Container;

/// Memory and huge pages that a container of a managed pod requests for itself.
pub(super) fn of_container(pod: &Pod, container: &Container) -> MemoryBytes {
    if pod_level::has_exclusive(pod, container) {
        bytes(requests::of_container(container).unwrap_or_default())
    } else {
        MemoryBytes::new()
    }
}

fn bytes(resources: Resources) -> MemoryBytes {
    let requests = resources.requests.into_iter();
    requests
        .filter(|(name, _)| name == MEMORY || name.starts_with(HUGEPAGES_PREFIX))
        .map(|(name, amount)| (name, u64::try_from(amount.value()).unwrap_or_default()))
        .collect()
}

/// Memory and huge pages of a managed pod: its pod-level requests; without pod-level resources the maximum amounts that
/// it needs at the same time, of the resources that its regular containers request.
pub(super) fn of_pod(pod: &Pod) -> MemoryBytes {
    if requests::has_pod_level(pod) {
        let mut total = bytes(requests::of_pod_level(pod).unwrap_or_default());
        total.retain(|_, bytes| *bytes > 0);
        return total;
    }
    let (mut sidecars, mut peak, mut total) =
        (MemoryBytes::new(), MemoryBytes::new(), MemoryBytes::new());
    for container in pod.init_containers() {
        for (name, bytes) in of_container(pod, container) {
            let sidecar = sidecars.entry(name.clone()).or_default();
            if is_sidecar(container) {
                *sidecar = sidecar.saturating_add(bytes);
            } else {
                let peak = peak.entry(name).or_default();
                *peak = (*peak).max(sidecar.saturating_add(bytes));
            }
        }
    }
    for container in pod.containers() {
        for (name, bytes) in of_container(pod, container) {
            let sum = total.entry(name).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    for (name, sum) in &mut total {
        let amount = |list: &MemoryBytes| list.get(name).copied().unwrap_or_default();
        *sum = sum.saturating_add(amount(&sidecars)).max(amount(&peak));
    }
    total
}
