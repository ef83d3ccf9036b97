//! The resources in a status: those allocated, and where the runtime reports them, those in force; and the mounts.

use super::none_if_empty;
use crate::model::{self, Amount, ContainerState, Pod, PodExt, canonical};
use crate::resources::requests::{self, Amounts, CPU, MEMORY};
use crate::runtime::kuberuntime::generate::mounts::recursive_read_only;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Minimum that CPU shares can express, in millicores. The reported value is not shown if it and the allocated
/// one are at or below it.
const MIN_MILLI_CPU_REQUEST: i64 = 2;
/// As above, for the CPU quota.
const MIN_MILLI_CPU_LIMIT: i64 = 10;

type QuantityList = BTreeMap<String, Quantity>;

/// `resources` of a container that the runtime has an instance of (upstream's
/// `convertContainerStatusResources`): as allocated, with what the runtime reports of a running
/// one; `actuated` is the container with the amounts that the instance has, while a resize is in progress. The last
/// report about this instance holds until the next.
pub(super) fn of_container(
    container: &Container,
    instance: &model::ContainerStatus,
    actuated: Option<&Container>,
    old: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut resources = allocated(container);
    if instance.state != ContainerState::Running {
        return resources;
    }
    let Some(reported) = instance.resources.as_deref() else {
        let before = old.filter(|old| matches!(&old.state, Some(s) if s.running.is_some()));
        return before.and_then(|old| old.resources.clone()).unwrap_or(resources);
    };
    if let Some(limits) = &mut resources.limits {
        put_cpu(limits, reported.cpu_limit, MIN_MILLI_CPU_LIMIT);
        if let Some(bytes) = reported.memory_limit {
            limits.insert(MEMORY.into(), Amount::of_bytes(bytes).to_api());
        }
    }
    if let Some(requests) = &mut resources.requests {
        put_cpu(requests, reported.cpu_request, MIN_MILLI_CPU_REQUEST);
        // Runtimes do not report memory requests.
        let actuated =
            actuated.and_then(|container| container.resources.as_ref()?.requests.as_ref());
        if let Some(bytes) = actuated.and_then(|requests| requests.get(MEMORY)) {
            requests.insert(MEMORY.into(), canonical(bytes));
        }
    }
    resources
}

/// `allocatedResources` of a container.
pub(super) fn allocated_requests(container: &Container) -> Option<QuantityList> {
    allocated(container).requests
}

/// `resources` of the pod as a whole: what its containers request together, pod-level resources first.
pub(super) fn of_pod(pod: &Pod) -> ResourceRequirements {
    let total = requests::of_pod_and_overhead::<Amount>(pod).unwrap_or_default();
    let pod_level = pod.spec().and_then(|spec| spec.resources.as_ref());
    ResourceRequirements {
        claims: pod_level.and_then(|resources| resources.claims.clone()),
        limits: list(&total.limits),
        requests: list(&total.requests),
    }
}

fn allocated(container: &Container) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    for list in [&mut resources.limits, &mut resources.requests] {
        list.take_if(|list| list.is_empty());
        let amounts = list.iter_mut().flat_map(|list| list.values_mut());
        amounts.for_each(|amount| *amount = canonical(amount));
    }
    resources
}

fn put_cpu(list: &mut QuantityList, reported: Option<i64>, minimum: i64) {
    let requested = list.get(CPU).and_then(|q| Amount::parse(&q.0).ok());
    let requested = requested.map_or(0, |amount| amount.value().milli_value());
    if let Some(milli) = reported
        && (milli > minimum || requested > minimum)
    {
        list.insert(CPU.into(), Amount::of_milli(milli).to_api());
    }
}

fn list(amounts: &Amounts<Amount>) -> Option<QuantityList> {
    let list = amounts.iter().map(|(name, amount)| (name.clone(), amount.to_api()));
    (!amounts.is_empty()).then(|| list.collect())
}

/// The container's mounts as requested; `recursiveReadOnly` is the only field that depends on the runtime.
pub(super) fn mounts(container: &Container, supported: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let statuses = mounts.iter().map(|mount| {
        let read_only = mount.read_only == Some(true);
        let recursive = match recursive_read_only(mount, supported) {
            Ok(true) => "Enabled",
            _ => "Disabled",
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| recursive.to_string()),
            volume_status: None,
        }
    });
    none_if_empty(statuses.collect())
}
