//! What containers and pods ask for and may use.

use crate::model::{Pod, PodExt, Quantity, QuantityError, is_sidecar};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;

/// Resource name of CPU time.
pub const CPU: &str = "cpu";
/// Resource name of memory.
pub const MEMORY: &str = "memory";
/// Resource name of node-local scratch space.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Prefix of huge page resources; a page size follows.
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

/// A resource amount that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{list}[{resource}] of {owner}")]
pub struct BadAmount {
    /// `requests`, `limits` or `overhead`.
    pub list: &'static str,
    /// Name of the resource.
    pub resource: String,
    /// `container "x"` or `the pod`.
    pub owner: String,
    /// What is wrong with the number.
    #[source]
    pub source: QuantityError,
}

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Requests and limits of one container or pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Lower bounds, for scheduling and shares.
    pub requests: Amounts,
    /// Upper bounds.
    pub limits: Amounts,
}

impl Resources {
    /// A request; `None` when the resource is not named.
    pub fn request(&self, resource: &str) -> Option<Quantity> {
        self.requests.get(resource).copied()
    }

    /// A limit; `None` when the resource is not named.
    pub fn limit(&self, resource: &str) -> Option<Quantity> {
        self.limits.get(resource).copied()
    }

    /// Neither requests nor limits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// Resources of one container as its spec says.
pub fn of_container(container: &Container) -> Result<Resources, BadAmount> {
    let owner = || format!("container {:?}", container.name);
    read(container.resources.as_ref(), owner)
}

/// `spec.resources` of a pod; empty when it has none.
pub fn of_pod_level(pod: &Pod) -> Result<Resources, BadAmount> {
    let resources = pod.spec().and_then(|spec| spec.resources.as_ref());
    read(resources, || "the pod".to_string())
}

/// `spec.overhead`: what the sandbox itself costs.
pub fn overhead(pod: &Pod) -> Result<Amounts, BadAmount> {
    let amounts = pod.spec().and_then(|spec| spec.overhead.as_ref());
    read_list(amounts, "overhead", || "the pod".to_string())
}

/// What the pod as a whole asks for, without its overhead: the sum of all that run together, or
/// the hungriest moment of initialisation if that is more. Resources at pod level win.
pub fn of_pod(pod: &Pod) -> Result<Resources, BadAmount> {
    let mut total = Resources::default();
    for container in pod.containers() {
        let own = of_container(container)?;
        add(&mut total.requests, &own.requests);
        add(&mut total.limits, &own.limits);
    }
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in pod.init_containers() {
        let mut own = of_container(container)?;
        if is_sidecar(container) {
            add(&mut total.requests, &own.requests);
            add(&mut total.limits, &own.limits);
            add(&mut sidecars.requests, &own.requests);
            add(&mut sidecars.limits, &own.limits);
            own = sidecars.clone();
        } else {
            add(&mut own.requests, &sidecars.requests);
            add(&mut own.limits, &sidecars.limits);
        }
        raise(&mut peak.requests, &own.requests);
        raise(&mut peak.limits, &own.limits);
    }
    raise(&mut total.requests, &peak.requests);
    raise(&mut total.limits, &peak.limits);
    let pod_level = of_pod_level(pod)?;
    total.requests.extend(pod_level.requests);
    total.limits.extend(pod_level.limits);
    Ok(total)
}

/// The pod's memory limit in bytes if every one of its containers (or the pod itself) has one:
/// only then is the pod as a whole bounded.
pub fn pod_memory_bound(pod: &Pod) -> Result<Option<i64>, BadAmount> {
    let at_pod_level = of_pod_level(pod)?.limit(MEMORY);
    let mut bounded = at_pod_level.is_some();
    if !bounded {
        bounded = true;
        for container in pod.containers().iter().chain(pod.init_containers()) {
            let limit = of_container(container)?.limit(MEMORY);
            bounded &= limit.is_some_and(Quantity::is_positive);
        }
    }
    Ok(match bounded {
        true => of_pod(pod)?.limit(MEMORY).map(Quantity::value),
        false => None,
    })
}

fn read(
    resources: Option<&ResourceRequirements>,
    owner: impl Fn() -> String,
) -> Result<Resources, BadAmount> {
    let requests = resources.and_then(|r| r.requests.as_ref());
    let limits = resources.and_then(|r| r.limits.as_ref());
    Ok(Resources {
        requests: read_list(requests, "requests", &owner)?,
        limits: read_list(limits, "limits", &owner)?,
    })
}

fn read_list(
    amounts: Option<&BTreeMap<String, ApiQuantity>>,
    list: &'static str,
    owner: impl Fn() -> String,
) -> Result<Amounts, BadAmount> {
    amounts
        .into_iter()
        .flatten()
        .map(|(resource, amount)| match Quantity::from_api(amount) {
            Ok(quantity) => Ok((resource.clone(), quantity)),
            Err(source) => Err(BadAmount {
                list,
                resource: resource.clone(),
                owner: owner(),
                source,
            }),
        })
        .collect()
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let sum = total.entry(resource.clone()).or_default();
        *sum = sum.plus(*amount);
    }
}

fn raise(total: &mut Amounts, other: &Amounts) {
    for (resource, amount) in other {
        let highest = total.entry(resource.clone()).or_default();
        *highest = (*highest).max(*amount);
    }
}
