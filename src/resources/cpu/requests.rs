//! Number of exclusive CPUs of a container. Pure.

use crate::model::{Pod, PodExt, Quantity, is_sidecar};
use crate::resources::requests::{self, CPU};
use crate::resources::{Resources, pod_level};
use k8s_openapi::api::core::v1::Container;

/// Number of exclusive CPUs of a container of a managed pod: its CPU request if that is an integer.
pub(super) fn of_container(pod: &Pod, container: &Container) -> usize {
    if pod_level::has_exclusive(pod, container) {
        whole(&requests::of_container(container).unwrap_or_default())
    } else {
        0
    }
}

/// Number of exclusive CPUs of a managed pod: its pod-level request if that is an integer; without pod-level resources
/// the maximum that its containers have at the same time.
pub(super) fn of_pod(pod: &Pod) -> usize {
    if requests::has_pod_level(pod) {
        return whole(&requests::of_pod_level(pod).unwrap_or_default());
    }
    let mut sidecars = 0_usize;
    let mut peak = 0;
    for container in pod.init_containers() {
        let cpus = of_container(pod, container);
        if is_sidecar(container) {
            sidecars = sidecars.saturating_add(cpus);
        } else {
            peak = peak.max(sidecars.saturating_add(cpus));
        }
    }
    let containers = pod.containers().iter();
    let sum = containers
        .fold(sidecars, |sum, container| sum.saturating_add(of_container(pod, container)));
    sum.max(peak)
}

fn whole(resources: &Resources) -> usize {
    let cpus: Quantity = resources.request(CPU).unwrap_or_default();
    let is_whole = cpus.value().checked_mul(1000) == Some(cpus.milli_value());
    let count = Some(cpus.value()).filter(|_| is_whole);
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
}
