//! Number of exclusive CPUs of a container. Pure.

use crate::{
    model::{Pod, PodExt, Quantity, is_sidecar},
    resources::{
        QosClass, Resources, pod_qos,
        requests::{self, CPU},
    },
};
use k8s_openapi::api::core::v1::Container;

/// Number of exclusive CPUs of a container: its request, if that is an integer and the pod is Guaranteed. Pods with
/// pod-level resources (`spec.resources`) get none, as upstream without `PodLevelResourceManagers`.
pub(super) fn of_container(pod: &Pod, container: &Container) -> usize {
    if pod_qos(pod) != Ok(QosClass::Guaranteed) || requests::has_pod_level(pod) {
        return 0;
    }
    let resources: Resources = requests::of_container(container).unwrap_or_default();
    let cpus = resources.request(CPU).unwrap_or_default();
    if is_whole(cpus) {
        usize::try_from(cpus.value()).unwrap_or_default()
    } else {
        0
    }
}

fn is_whole(cpus: Quantity) -> bool {
    cpus.value().checked_mul(1000) == Some(cpus.milli_value())
}

/// Maximum number of exclusive CPUs that a pod has at the same time.
pub(super) fn of_pod(pod: &Pod) -> usize {
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
    let sum = containers.fold(sidecars, |sum, container| {
        sum.saturating_add(of_container(pod, container))
    });
    sum.max(peak)
}
