//! Memory and huge page requests of containers. Pure.

use super::MemoryBytes;
use crate::{
    model::{Pod, PodExt, is_sidecar},
    resources::{
        QosClass, Resources, pod_qos,
        requests::{self, HUGEPAGES_PREFIX, MEMORY},
    },
};
use k8s_openapi::api::core::v1::Container;

/// Whether the pod's memory is managed. Pods with pod-level resources (`spec.resources`) are not, as upstream without
/// `PodLevelResourceManagers`.
pub(super) fn is_managed(pod: &Pod) -> bool {
    pod_qos(pod) == Ok(QosClass::Guaranteed) && !requests::has_pod_level(pod)
}

pub(super) fn of_container(container: &Container) -> MemoryBytes {
    let resources: Resources = requests::of_container(container).unwrap_or_default();
    let requests = resources.requests.into_iter();
    requests
        .filter(|(name, _)| name == MEMORY || name.starts_with(HUGEPAGES_PREFIX))
        .map(|(name, amount)| (name, u64::try_from(amount.value()).unwrap_or_default()))
        .collect()
}

/// Maximum amounts that a pod needs at the same time, of the resources that its regular containers request.
pub(super) fn of_pod(pod: &Pod) -> MemoryBytes {
    let (mut sidecars, mut peak, mut total) =
        (MemoryBytes::new(), MemoryBytes::new(), MemoryBytes::new());
    for container in pod.init_containers() {
        for (name, bytes) in of_container(container) {
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
        for (name, bytes) in of_container(container) {
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
