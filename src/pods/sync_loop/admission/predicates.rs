//! Whether a pod fits this node by the scheduler's predicates: resources, selectors, ports, taints. Pure.
//!
//! The scheduler applies the same predicates, but the node may have changed since, and users may set `spec.nodeName`.
//! Upstream: `pkg/kubelet/lifecycle/predicate.go`, with its reasons and texts.

use super::Rejection;
use crate::model::{Pod, PodExt, Quantity, node_selector};
use crate::pods::sync_loop::preemption::amount;
use crate::resources::devices::is_claimed;
use crate::resources::requests;
use k8s_openapi::api::core::v1::{Container, Node, Taint, Toleration};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

/// Checks a pod against the node and the other pods that were admitted.
///
/// # Errors
/// The first rule that it breaks.
pub(super) fn admit(
    pod: &Pod,
    node: &Node,
    others: &[Arc<Pod>],
    allocated: &BTreeMap<String, i64>,
) -> Result<(), Rejection> {
    if let Some(missing) = insufficient_resources(pod, node, others, allocated)?.into_iter().next()
    {
        return Err(missing.into());
    }
    admit_except_resources(pod, node, others)
}

/// The same without resources.
///
/// # Errors
/// The first rule that it breaks.
pub(super) fn admit_except_resources(
    pod: &Pod,
    node: &Node,
    others: &[Arc<Pod>],
) -> Result<(), Rejection> {
    if !matches_node(pod, node) {
        return Err(failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    let ports = host_ports(pod);
    if !ports.is_empty() && others.iter().any(|other| ports_collide(&ports, other)) {
        return Err(failed(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let mut taints = taints.unwrap_or_default().iter();
    if !pod.is_static() && taints.any(|taint| evicts(taint) && !is_tolerated(pod, taint)) {
        return Err(failed("TaintToleration", "node(s) had taints that the pod didn't tolerate"));
    }
    Ok(())
}

fn failed(predicate: &'static str, why: &str) -> Rejection {
    Rejection::new(predicate, format!("Predicate {predicate} failed: {why}"))
}

// -- resources ---------------------------------------------------------------------------------------------------

/// A resource of which there is not enough: millicores of CPU, whole units of everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InsufficientResource {
    pub(super) resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl InsufficientResource {
    /// The shortfall that preemption has to free.
    pub(super) fn amount(&self) -> i64 {
        let free = self.capacity.saturating_sub(self.used);
        self.requested.saturating_sub(free)
    }
}

impl From<InsufficientResource> for Rejection {
    fn from(missing: InsufficientResource) -> Self {
        let InsufficientResource { resource, requested, used, capacity } = missing;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Rejection::new(format!("OutOf{resource}"), message)
    }
}

/// The insufficient resources.
///
/// # Errors
/// A quantity cannot be parsed.
pub(super) fn insufficient_resources(
    pod: &Pod,
    node: &Node,
    others: &[Arc<Pod>],
    allocated: &BTreeMap<String, i64>,
) -> Result<Vec<InsufficientResource>, Rejection> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let mut all = Vec::new();
    let Some(allocatable) = allocatable else {
        return Ok(all);
    };
    let capacity = |resource: &str| {
        let quantity = allocatable.get(resource)?;
        Quantity::from_api(quantity).ok().map(|quantity| amount(resource, quantity))
    };
    if let Some(max) = capacity("pods") {
        let used = i64::try_from(others.len()).unwrap_or(i64::MAX);
        if used >= max {
            all.push(InsufficientResource {
                resource: "pods".to_owned(),
                requested: 1,
                used,
                capacity: max,
            });
        }
    }
    let wanted = requested(&without_claimed(pod))?;
    let mut used = BTreeMap::<String, i64>::new();
    for other in others {
        // The requests of an admitted pod with a quantity that cannot be parsed count as zero.
        for (resource, more) in requested(other).unwrap_or_default() {
            let sum = used.entry(resource).or_default();
            *sum = sum.saturating_add(more);
        }
    }
    let first = [requests::CPU, "memory", "ephemeral-storage"];
    let named = first.iter().filter_map(|name| wanted.get_key_value(*name));
    let rest = wanted.iter().filter(|(name, _)| !first.contains(&name.as_str()));
    for (resource, wanted) in named.chain(rest) {
        let devices = allocated.get(resource).copied();
        let max = match capacity(resource).max(devices) {
            Some(max) => max,
            // An extended resource that the node does not have is managed at cluster level and not checked (upstream's
            // `removeMissingExtendedResources`).
            None if resource.contains('/') => continue,
            None => 0,
        };
        let used = used.get(resource).copied().unwrap_or_default();
        if *wanted > 0 && *wanted > max.saturating_sub(used) {
            all.push(InsufficientResource {
                resource: resource.clone(),
                requested: *wanted,
                used,
                capacity: max,
            });
        }
    }
    Ok(all)
}

/// The pod without requests that are provided by its ResourceClaim (upstream's `removeMissingExtendedResources`).
fn without_claimed(pod: &Pod) -> Cow<'_, Pod> {
    let status = pod.status.as_ref();
    if status.is_none_or(|status| status.extended_resource_claim_status.is_none()) {
        return Cow::Borrowed(pod);
    }
    let mut rest = pod.clone();
    let spec = rest.spec.as_mut();
    let containers = spec.into_iter().flat_map(|spec| {
        let init = spec.init_containers.iter_mut().flatten();
        init.chain(&mut spec.containers)
    });
    for container in containers {
        let requests = container.resources.as_mut();
        if let Some(requests) = requests.and_then(|resources| resources.requests.as_mut()) {
            requests.retain(|resource, _| !is_claimed(pod, &container.name, resource));
        }
    }
    Cow::Owned(rest)
}

fn requested(pod: &Pod) -> Result<BTreeMap<String, i64>, Rejection> {
    let resources = requests::of_pod_and_overhead::<Quantity>(pod);
    let resources =
        resources.map_err(|error| Rejection::new(UNEXPECTED_ADMISSION_ERROR, error.to_string()))?;
    let requests = resources.requests.into_iter();
    Ok(requests
        .map(|(resource, quantity)| {
            let amount = amount(&resource, quantity);
            (resource, amount)
        })
        .collect())
}

// -- node selector and affinity ----------------------------------------------------------------------------------

/// Whether the pod's node selector and required node affinity select the node.
pub(super) fn matches_node(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = pod.spec() else {
        return true;
    };
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let mut selector = spec.node_selector.iter().flatten();
    if !selector.all(|(key, value)| label(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| node_selector::selects(required, node))
}

// -- host ports --------------------------------------------------------------------------------------------------

/// Address, protocol and port on the host.
type HostPort<'a> = (&'a str, &'a str, i32);

fn ports_collide(one: &HashSet<HostPort<'_>>, other: &Pod) -> bool {
    let other = host_ports(other);
    let everywhere = |address: &str| address == "0.0.0.0" || address == "::";
    one.iter().any(|(address, protocol, port)| {
        other.iter().any(|(other_address, other_protocol, other_port)| {
            port == other_port
                && protocol == other_protocol
                && (address == other_address || everywhere(address) || everywhere(other_address))
        })
    })
}

/// The ports on the host; those of init containers only where they are sidecars.
fn host_ports(pod: &Pod) -> HashSet<HostPort<'_>> {
    let init = pod.init_containers().iter();
    let sidecars = init.filter(|container| crate::model::is_sidecar(container));
    let containers = pod.containers().iter().chain(sidecars);
    containers.flat_map(|container| container_host_ports(container, pod.host_network())).collect()
}

fn container_host_ports(
    container: &Container,
    host_network: bool,
) -> impl Iterator<Item = HostPort<'_>> {
    let ports = container.ports.iter().flatten();
    ports.filter_map(move |port| {
        let implied = host_network.then_some(port.container_port);
        let number = port.host_port.filter(|port| *port > 0).or(implied)?;
        let given = |text: &'_ Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
        let address = if given(&port.host_ip) { port.host_ip.as_deref() } else { None };
        let protocol = if given(&port.protocol) { port.protocol.as_deref() } else { None };
        Some((address.unwrap_or("0.0.0.0"), protocol.unwrap_or("TCP"), number))
    })
}

// -- taints ------------------------------------------------------------------------------------------------------

/// The only effect that concerns pods that are on the node already.
fn evicts(taint: &Taint) -> bool {
    taint.effect == "NoExecute"
}

fn is_tolerated(pod: &Pod, taint: &Taint) -> bool {
    let tolerations = pod.spec().and_then(|spec| spec.tolerations.as_deref());
    tolerations.unwrap_or_default().iter().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &'_ Option<String>| text.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref() {
        None | Some("" | "Equal") => text(&toleration.value) == text(&taint.value),
        Some("Exists") => true,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests;
