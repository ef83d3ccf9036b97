//! The ResourceClaims of a pod and their use by its containers. Pure.

use super::error::DraError;
use crate::model::{Pod, PodExt as _, PodUid, Quantity};
use crate::resources::devices::is_dra_extended_resource;
use k8s_openapi::api::core::v1::{Container, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;

/// A ResourceClaim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodClaim {
    /// The object's name.
    pub(super) name: String,
    /// Whether it was generated from a template; then the pod has to be its owner.
    pub(super) is_owned: bool,
}

/// The claims of a pod, including that for extended resources.
///
/// # Errors
/// A claim has not been generated yet, or is of an unknown kind.
pub(super) fn of_pod(pod: &Pod) -> Result<Vec<PodClaim>, DraError> {
    let mut claims = Vec::new();
    for claim in declared(pod) {
        claims.extend(named(pod, claim)?);
    }
    claims.extend(
        of_extended_resources(pod)
            .map(|claim| PodClaim { name: claim.to_owned(), is_owned: false }),
    );
    Ok(claims)
}

fn declared(pod: &Pod) -> &[PodResourceClaim] {
    let claims = pod.spec().and_then(|spec| spec.resource_claims.as_deref());
    claims.unwrap_or_default()
}

fn of_extended_resources(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    let claim = status.extended_resource_claim_status.as_ref()?;
    Some(&claim.resource_claim_name)
}

/// The ResourceClaim of an entry in `spec.resourceClaims`; `None` if the pod needs none.
fn named(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<PodClaim>, DraError> {
    if let Some(name) = &claim.resource_claim_name {
        let (name, is_owned) = (name.clone(), false);
        return Ok(Some(PodClaim { name, is_owned }));
    }
    let pod_name = || format!("{}/{}", pod.namespace(), pod.name());
    if claim.resource_claim_template_name.is_none() {
        return Err(DraError::UnknownKind { pod: pod_name(), claim: claim.name.clone() });
    }
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.resource_claim_statuses.as_deref());
    let mut statuses = statuses.unwrap_or_default().iter();
    let made = statuses.find(|status| status.name == claim.name);
    let made = made.ok_or_else(|| DraError::NotCreated { pod: pod_name() })?;
    Ok(made.resource_claim_name.clone().map(|name| PodClaim { name, is_owned: true }))
}

/// A request of a claim that a container uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimRequest {
    /// Name of the claim within the pod; `None` for that of extended resources.
    pub(super) declared: Option<String>,
    /// Name of the ResourceClaim.
    pub(super) claim: String,
    /// Name of the request within the claim; empty for all requests.
    pub(super) request: String,
}

/// The claims and requests that a container uses.
///
/// # Errors
/// As [`of_pod`].
pub(super) fn of_container(
    pod: &Pod,
    container: &Container,
) -> Result<Vec<ClaimRequest>, DraError> {
    let mut requests = Vec::new();
    let resources = container.resources.as_ref();
    let used = resources.and_then(|resources| resources.claims.as_deref());
    let used = used.unwrap_or_default();
    for claim in declared(pod) {
        let mut own = used.iter().filter(|used| used.name == claim.name).peekable();
        if own.peek().is_none() {
            continue;
        }
        let Some(object) = named(pod, claim)? else {
            continue;
        };
        requests.extend(own.map(|used| ClaimRequest {
            declared: Some(used.name.clone()),
            claim: object.name.clone(),
            request: used.request.clone().unwrap_or_default(),
        }));
    }
    requests.extend(of_extended(pod, container));
    Ok(requests)
}

/// The requests that provide the container's extended resources.
fn of_extended<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = ClaimRequest> + 'a {
    let status = pod.status.as_ref();
    let claim = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    claim.into_iter().flat_map(move |claim| {
        let own = claim.request_mappings.iter().filter(move |mapping| {
            mapping.container_name == container.name && requests(container, &mapping.resource_name)
        });
        own.map(|mapping| ClaimRequest {
            declared: None,
            claim: claim.resource_claim_name.clone(),
            request: mapping.request_name.clone(),
        })
    })
}

fn requests(container: &Container, resource: &str) -> bool {
    let resources = container.resources.as_ref();
    let amounts = resources.and_then(|resources| resources.requests.as_ref());
    let amount = amounts.and_then(|amounts| amounts.get(resource));
    let amount = amount.and_then(|amount| Quantity::parse(&amount.0).ok());
    is_dra_extended_resource(resource) && amount.is_some_and(|amount| amount.value() > 0)
}

/// The request name of a reference `REQUEST/SUBREQUEST`.
pub(super) fn base_request(reference: &str) -> &str {
    reference.split_once('/').map_or(reference, |(base, _)| base)
}

/// Checks that a pod may use a claim.
///
/// # Errors
/// The pod is not the owner, or the claim is not reserved for it.
pub(super) fn check(pod: &Pod, wanted: &PodClaim, claim: &ResourceClaim) -> Result<(), DraError> {
    let (name, uid) = (pod.name(), pod.uid());
    let meta = &claim.metadata;
    if wanted.is_owned {
        let mut owners = meta.owner_references.iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true));
        if controller.is_none_or(|owner| owner.uid != uid.as_str()) {
            return Err(DraError::NotOwner {
                claim: format!("{}/{}", pod.namespace(), wanted.name),
                pod: format!("{}/{name}", pod.namespace()),
            });
        }
    }
    let status = claim.status.as_ref();
    let mut reserved = status.iter().flat_map(|s| s.reserved_for.iter().flatten());
    if reserved.any(|user| user.uid == uid.as_str()) {
        return Ok(());
    }
    Err(DraError::NotReserved {
        pod: name.to_owned(),
        uid: uid.to_string(),
        claim: wanted.name.clone(),
        claim_uid: meta.uid.clone().unwrap_or_default(),
    })
}

/// The pods in the claim's `status.reservedFor`.
pub(super) fn users(claim: &ResourceClaim) -> Vec<PodUid> {
    let status = claim.status.iter();
    let users = status.flat_map(|status| status.reserved_for.iter().flatten());
    let pods = users.filter(|user| user.resource == "pods");
    pods.map(|user| PodUid::from(user.uid.as_str())).collect()
}

/// The drivers in the claim's allocation.
///
/// # Errors
/// The claim is not allocated.
pub(super) fn drivers(name: &str, claim: &ResourceClaim) -> Result<Vec<String>, DraError> {
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let allocation = allocation.ok_or_else(|| DraError::NotAllocated(name.to_owned()))?;
    let devices = allocation.devices.as_ref();
    let results = devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let mut drivers: Vec<_> = results.map(|result| result.driver.clone()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    Ok(drivers)
}
