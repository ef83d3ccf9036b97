//! CPU and memory requests and limits of a pod (`spec.resources` and those of its containers). Pure.

use crate::model::{Pod, PodExt, Quantity};
use crate::resources::requests::{CPU, MEMORY};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;

type ApiQuantityList = BTreeMap<String, ApiQuantity>;

/// Requests and limits of a pod and its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodResourceInfo {
    /// Amounts of containers and init containers, by name.
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Pod-level resources (`spec.resources`).
    pub pod: Option<ResourceRequirements>,
}

impl PodResourceInfo {
    /// The amounts in the spec of a pod.
    pub fn of(pod: &Pod) -> Self {
        let containers = pod.init_containers().iter().chain(pod.containers());
        let level = pod.spec().and_then(|spec| spec.resources.clone());
        Self {
            containers: containers
                .map(|container| (container.name.clone(), of_container(container)))
                .collect(),
            pod: level.map(without_empty),
        }
    }

    /// Adds those amounts of `other` that are missing here.
    pub(super) fn fill_missing_from(&mut self, other: Self) {
        for (name, amounts) in other.containers {
            self.containers.entry(name).or_insert(amounts);
        }
        if self.pod.is_none() {
            self.pod = other.pod;
        }
    }

    /// Sets the pod's CPU and memory limits on containers that have none, because that is what their cgroups enforce
    /// (upstream's `GetLimits`).
    pub(super) fn with_pod_limits(mut self) -> Self {
        let Some(level) = self.pod.as_ref().and_then(|level| level.limits.as_ref()) else {
            return self;
        };
        for container in self.containers.values_mut() {
            for name in [CPU, MEMORY] {
                let Some(limit) = level.get(name) else {
                    continue;
                };
                let limits = container.limits.get_or_insert_default();
                limits.entry(name.to_owned()).or_insert_with(|| limit.clone());
            }
            container.limits.take_if(|limits| limits.is_empty());
        }
        self
    }

    /// Sets the pod-level resources; returns whether they changed.
    pub(super) fn set_pod_level(&mut self, level: Option<ResourceRequirements>) -> bool {
        let level = level.map(without_empty);
        let changed = self.pod != level;
        self.pod = level;
        changed
    }

    /// Sets the amounts of a container; returns whether they changed.
    pub(super) fn set(&mut self, container: &str, amounts: ResourceRequirements) -> bool {
        if self.containers.get(container) == Some(&amounts) {
            return false;
        }
        self.containers.insert(container.to_owned(), amounts);
        true
    }
}

/// The amounts in the spec of a container.
pub(super) fn of_container(container: &Container) -> ResourceRequirements {
    without_empty(container.resources.clone().unwrap_or_default())
}

fn without_empty(mut amounts: ResourceRequirements) -> ResourceRequirements {
    amounts.limits.take_if(|list| list.is_empty());
    amounts.requests.take_if(|list| list.is_empty());
    amounts.claims.take_if(|list| list.is_empty());
    amounts
}

/// Whether an earlier kubelet has reported that it knew this version of the pod's spec. Kubelets before 1.34 do not report
/// that; for them the answer is yes.
pub(super) fn is_spec_observed(pod: &Pod) -> bool {
    let observed = pod.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_none_or(|observed| Some(observed) == pod.metadata.generation)
}

/// The pod with these amounts in its spec; `None` if its spec has them already. Containers that are missing in
/// `amounts` keep their own.
pub(super) fn with_amounts(pod: &Pod, amounts: &PodResourceInfo) -> Option<Pod> {
    let current = PodResourceInfo::of(pod);
    let level = |amounts: &PodResourceInfo| amounts.pod.clone().unwrap_or_default();
    let differs = |container: &Container| {
        let other = amounts.containers.get(&container.name);
        other.is_some_and(|other| !same_amounts(other, &of_container(container)))
    };
    let mut containers = pod.init_containers().iter().chain(pod.containers());
    let level_differs = !same_amounts(&level(amounts), &level(&current));
    if !level_differs && !containers.any(differs) {
        return None;
    }
    let mut pod = pod.clone();
    let spec = pod.spec.as_mut()?;
    if level_differs {
        spec.resources.clone_from(&amounts.pod);
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        if let Some(other) = amounts.containers.get(&container.name).filter(|_| differs(container))
        {
            container.resources = Some(other.clone());
        }
    }
    Some(pod)
}

/// The pod with the higher requests of both, of the pod as a whole and of each container.
pub fn with_higher_requests(pod: &Pod, other: &Pod) -> Pod {
    let other = PodResourceInfo::of(other);
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else {
        return pod;
    };
    raise(&mut spec.resources, other.pod.as_ref());
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        let other = other.containers.get(&container.name);
        raise(&mut container.resources, other);
    }
    pod
}

/// Raises the requests to those of `other`.
fn raise(amounts: &mut Option<ResourceRequirements>, other: Option<&ResourceRequirements>) {
    let Some(other) = other.and_then(|other| other.requests.as_ref()) else {
        return;
    };
    let amounts = amounts.get_or_insert_default();
    let requests = amounts.requests.get_or_insert_default();
    let read = |quantity: &ApiQuantity| Quantity::from_api(quantity).ok();
    for (name, other) in other {
        if read(other) > requests.get(name).and_then(read) {
            requests.insert(name.clone(), other.clone());
        }
    }
}

/// Whether the amounts are equal as quantities (`1` equals `1000m`).
pub fn same_amounts(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    same_list(&one.limits, &other.limits) && same_list(&one.requests, &other.requests)
}

fn same_list(one: &Option<ApiQuantityList>, other: &Option<ApiQuantityList>) -> bool {
    let empty = ApiQuantityList::new();
    let (one, other) = (one.as_ref().unwrap_or(&empty), other.as_ref().unwrap_or(&empty));
    let same = |name: &String, amount: &ApiQuantity| {
        other.get(name).is_some_and(|other| same_quantity(amount, other))
    };
    one.len() == other.len() && one.iter().all(|(name, amount)| same(name, amount))
}

fn same_quantity(one: &ApiQuantity, other: &ApiQuantity) -> bool {
    let read = |quantity| Quantity::from_api(quantity).ok();
    one == other || read(one).is_some_and(|one| read(other) == Some(one))
}

/// CPU and memory of a container as its cgroup enforces them, in millicores and bytes; 0 for none. A
/// container without a limit has that of its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeAmounts {
    /// CPU request.
    pub cpu_request: i64,
    /// CPU limit.
    pub cpu_limit: i64,
    /// Memory request.
    pub memory_request: i64,
    /// Memory limit.
    pub memory_limit: i64,
}

impl ComputeAmounts {
    /// The amounts of a container; `pod` has the pod-level resources. Amounts that cannot be parsed count as none;
    /// admission rejects them.
    pub fn of(container: &ResourceRequirements, pod: Option<&ResourceRequirements>) -> Self {
        let read = |list: Option<&ApiQuantityList>, name: &str| {
            let quantity = list.and_then(|list| list.get(name));
            quantity.and_then(|quantity| Quantity::from_api(quantity).ok())
        };
        let limit = |name| {
            let level = || read(pod.and_then(|pod| pod.limits.as_ref()), name);
            let limit = read(container.limits.as_ref(), name);
            limit.or_else(level).unwrap_or_default()
        };
        let request = |name| read(container.requests.as_ref(), name).unwrap_or_default();
        Self {
            cpu_request: request(CPU).milli_value(),
            cpu_limit: limit(CPU).milli_value(),
            memory_request: request(MEMORY).value(),
            memory_limit: limit(MEMORY).value(),
        }
    }
}
