//! What a status says of resources: what was allocated, and where the runtime tells, what is in force.

use crate::{
    model::{self, Amount, ContainerState, Pod, PodExt, canonical},
    resources::requests::{self, Amounts, CPU, MEMORY},
};
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use std::collections::BTreeMap;

/// Thousandths of a CPU that the least shares stand for. At or below them what is in force says
/// nothing about what was asked for.
const LEAST_REQUEST: i64 = 2;
/// The same of the least quota.
const LEAST_LIMIT: i64 = 10;

type List = BTreeMap<String, Quantity>;

/// `resources` of a container that the runtime has an instance of (upstream's
/// `convertContainerStatusResources`): as allocated, with the runtime's word on what may differ in a
/// running one. What it said of this instance before holds until it is asked again.
pub(super) fn of_container(
    container: &Container,
    instance: &model::ContainerStatus,
    shown: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut resources = allocated(container);
    if instance.state != ContainerState::Running {
        return resources;
    }
    let Some(told) = instance.resources.as_deref() else {
        let before = shown.filter(|shown| matches!(&shown.state, Some(s) if s.running.is_some()));
        return before
            .and_then(|shown| shown.resources.clone())
            .unwrap_or(resources);
    };
    if let Some(limits) = &mut resources.limits {
        put_cpu(limits, told.cpu_limit, LEAST_LIMIT);
        if let Some(bytes) = told.memory_limit {
            limits.insert(MEMORY.into(), Amount::of_bytes(bytes).to_api());
        }
    }
    if let Some(requests) = &mut resources.requests {
        put_cpu(requests, told.cpu_request, LEAST_REQUEST);
    }
    resources
}

/// `allocatedResources` of a container.
pub(super) fn allocated_requests(container: &Container) -> Option<List> {
    allocated(container).requests
}

/// `resources` of the pod as a whole: what its containers ask for together, its own level first.
pub(super) fn of_pod(pod: &Pod) -> ResourceRequirements {
    let total = requests::of_pod_and_overhead::<Amount>(pod).unwrap_or_default();
    let own = pod.spec().and_then(|spec| spec.resources.as_ref());
    ResourceRequirements {
        claims: own.and_then(|own| own.claims.clone()),
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

fn put_cpu(list: &mut List, told: Option<i64>, least: i64) {
    let asked = list.get(CPU).and_then(|q| Amount::parse(&q.0).ok());
    let asked = asked.map_or(0, |amount| amount.value().milli_value());
    if let Some(milli) = told
        && (milli > least || asked > least)
    {
        list.insert(CPU.into(), Amount::of_milli(milli).to_api());
    }
}

fn list(amounts: &Amounts<Amount>) -> Option<List> {
    let shown = amounts
        .iter()
        .map(|(name, amount)| (name.clone(), amount.to_api()));
    (!amounts.is_empty()).then(|| shown.collect())
}
