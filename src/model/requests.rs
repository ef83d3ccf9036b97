//! Requests and limits of containers and pods.

use super::{Amount, Pod, PodExt, Quantity, QuantityError, is_sidecar};
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;

/// Resource name of CPU time.
pub const CPU: &str = "cpu";
/// Resource name of memory.
pub const MEMORY: &str = "memory";
/// Resource name of ephemeral storage.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Prefix of huge page resources; a page size follows.
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

/// The resource name of huge pages of this size, such as `hugepages-2Mi`.
pub fn huge_page_resource(bytes: i64) -> String {
    let size = Amount::of_bytes(bytes).to_api().0;
    format!("{HUGEPAGES_PREFIX}{size}")
}

/// A resource amount that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{list}[{resource}] of {owner}")]
pub struct InvalidQuantity {
    /// `requests`, `limits` or `overhead`.
    pub list: &'static str,
    /// Name of the resource.
    pub resource: String,
    /// `container "x"` or `the pod`.
    pub owner: String,
    /// The parser's error.
    #[source]
    pub source: QuantityError,
}

/// Amounts by resource name.
pub type Amounts<T = Quantity> = BTreeMap<String, T>;

/// Requests and limits of one container or pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources<T = Quantity> {
    /// Lower bounds, for scheduling and shares.
    pub requests: Amounts<T>,
    /// Upper bounds.
    pub limits: Amounts<T>,
}

impl<T> Default for Resources<T> {
    fn default() -> Self {
        Self { requests: BTreeMap::new(), limits: BTreeMap::new() }
    }
}

/// The types that amounts can be parsed to, added up and compared in: [`Quantity`] for computing, [`Amount`] for
/// printing.
pub trait Measure: Clone {
    /// Parses an API quantity.
    fn read(quantity: &ApiQuantity) -> Result<Self, QuantityError>;
    /// The sum.
    fn sum(&self, other: &Self) -> Self;
    /// The quantity.
    fn quantity(&self) -> Quantity;
}

impl Measure for Quantity {
    fn read(quantity: &ApiQuantity) -> Result<Self, QuantityError> {
        Self::from_api(quantity)
    }

    fn sum(&self, other: &Self) -> Self {
        self.plus(*other)
    }

    fn quantity(&self) -> Quantity {
        *self
    }
}

impl Measure for Amount {
    fn read(quantity: &ApiQuantity) -> Result<Self, QuantityError> {
        Self::parse(&quantity.0)
    }

    fn sum(&self, other: &Self) -> Self {
        self.plus(other)
    }

    fn quantity(&self) -> Quantity {
        self.value()
    }
}

impl Resources {
    /// A request; `None` if there is none for the resource.
    pub fn request(&self, resource: &str) -> Option<Quantity> {
        self.requests.get(resource).copied()
    }

    /// A limit; `None` if there is none for the resource.
    pub fn limit(&self, resource: &str) -> Option<Quantity> {
        self.limits.get(resource).copied()
    }

    /// Whether there are neither requests nor limits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// `resources` of a container.
pub fn of_container<T: Measure>(container: &Container) -> Result<Resources<T>, InvalidQuantity> {
    let owner = || format!("container {:?}", container.name);
    read(container.resources.as_ref(), owner)
}

/// `spec.resources` of a pod; empty if it has none.
pub fn of_pod_level<T: Measure>(pod: &Pod) -> Result<Resources<T>, InvalidQuantity> {
    let resources = pod.spec().and_then(|spec| spec.resources.as_ref());
    read(resources, || "the pod".to_string())
}

/// Whether a pod has pod-level resources.
pub fn has_pod_level(pod: &Pod) -> bool {
    of_pod_level::<Quantity>(pod).is_ok_and(|resources| !resources.is_empty())
}

/// `spec.overhead`: the resources of the sandbox itself.
pub fn overhead<T: Measure>(pod: &Pod) -> Result<Amounts<T>, InvalidQuantity> {
    let amounts = pod.spec().and_then(|spec| spec.overhead.as_ref());
    read_list(amounts, "overhead", || "the pod".to_string())
}

/// The resources of the whole pod without overhead. Pod-level resources take precedence.
pub fn of_pod<T: Measure>(pod: &Pod) -> Result<Resources<T>, InvalidQuantity> {
    let mut total = pod.spec().map_or_else(|| Ok(Resources::default()), of_containers)?;
    let pod_level = of_pod_level(pod)?;
    total.requests.extend(pod_level.requests);
    total.limits.extend(pod_level.limits);
    Ok(total)
}

/// The resources of all containers: the maximum of the sum of those that run together and of each step of
/// initialization.
pub fn of_containers<T: Measure>(spec: &PodSpec) -> Result<Resources<T>, InvalidQuantity> {
    let mut total = Resources::default();
    for container in &spec.containers {
        let own = of_container(container)?;
        add(&mut total.requests, &own.requests);
        add(&mut total.limits, &own.limits);
    }
    let mut sidecars = Resources::<T>::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
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
    Ok(total)
}

/// The resources of the whole pod with overhead, which is added to limits only where there is a limit (upstream's
/// `PodRequests` and `PodLimits`).
pub fn of_pod_and_overhead<T: Measure>(pod: &Pod) -> Result<Resources<T>, InvalidQuantity> {
    let mut total = of_pod(pod)?;
    let overhead = overhead(pod)?;
    add(&mut total.requests, &overhead);
    for (resource, more) in &overhead {
        let limit = total.limits.get_mut(resource);
        if let Some(limit) = limit.filter(|limit: &&mut T| !limit.quantity().is_zero()) {
            *limit = limit.sum(more);
        }
    }
    Ok(total)
}

/// The pod's memory limit in bytes, if the pod itself or every container has one; otherwise the pod is not limited.
pub fn pod_memory_bound(pod: &Pod) -> Result<Option<i64>, InvalidQuantity> {
    let at_pod_level = of_pod_level::<Quantity>(pod)?.limit(MEMORY);
    let mut bounded = at_pod_level.is_some();
    if !bounded {
        bounded = true;
        for container in pod.containers().iter().chain(pod.init_containers()) {
            let limit = of_container::<Quantity>(container)?.limit(MEMORY);
            bounded &= limit.is_some_and(Quantity::is_positive);
        }
    }
    Ok(if bounded { of_pod::<Quantity>(pod)?.limit(MEMORY).map(Quantity::value) } else { None })
}

fn read<T: Measure>(
    resources: Option<&ResourceRequirements>,
    owner: impl Fn() -> String,
) -> Result<Resources<T>, InvalidQuantity> {
    let requests = resources.and_then(|r| r.requests.as_ref());
    let limits = resources.and_then(|r| r.limits.as_ref());
    Ok(Resources {
        requests: read_list(requests, "requests", &owner)?,
        limits: read_list(limits, "limits", &owner)?,
    })
}

fn read_list<T: Measure>(
    amounts: Option<&BTreeMap<String, ApiQuantity>>,
    list: &'static str,
    owner: impl Fn() -> String,
) -> Result<Amounts<T>, InvalidQuantity> {
    amounts
        .into_iter()
        .flatten()
        .map(|(resource, amount)| match T::read(amount) {
            Ok(quantity) => Ok((resource.clone(), quantity)),
            Err(source) => {
                Err(InvalidQuantity { list, resource: resource.clone(), owner: owner(), source })
            }
        })
        .collect()
}

fn add<T: Measure>(total: &mut Amounts<T>, more: &Amounts<T>) {
    for (resource, amount) in more {
        let sum = match total.get(resource) {
            Some(sum) => sum.sum(amount),
            None => amount.clone(),
        };
        total.insert(resource.clone(), sum);
    }
}

fn raise<T: Measure>(total: &mut Amounts<T>, other: &Amounts<T>) {
    for (resource, amount) in other {
        let known = total.get(resource);
        if known.is_none_or(|known| amount.quantity() > known.quantity()) {
            total.insert(resource.clone(), amount.clone());
        }
    }
}
