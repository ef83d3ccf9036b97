//! The admission rules: whether this node may run a pod. Pure.
//!
//! Only what upstream rejects is rejected: a controller replaces a failed pod at once, so a pod that needs something
//! that this kubelet does not support waits instead, at the step that lacks it (`volumes::kinds` for volumes).
//!
//! A rejected pod has failed, with a reason, and is not checked again by this process, except for a static pod that was
//! rejected because of a node shutdown that is then cancelled. A pod that cannot be admitted because of a temporary
//! condition, such as pods that are still terminating, waits instead. Upstream: admit handlers, in their order.

mod app_armor;
mod predicates;
mod pressure;

use super::preemption::{self, Shortage};
use crate::model::validation::sysctl_allowlist::Allowlist;
use crate::model::{Pod, PodExt, reasons};
use crate::state::node_pressure::NodePressure;
use k8s_openapi::api::core::v1::Node;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The inputs of the admission rules besides the pod itself: the state of the node, and facts about the pod.
#[derive(Clone, Copy, Debug)]
pub struct PodAdmitAttributes<'a> {
    /// Sysctls that pods may set.
    pub sysctls: &'a Allowlist,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// The runtime supports `supplementalGroupsPolicy: Strict`.
    pub supplemental_groups_policy: bool,
    /// Memory, disk and PID pressure of the node.
    pub pressure: NodePressure,
    /// The machine is shutting down.
    pub shutting_down: bool,
    /// The pod may be running here already, so no rule applies.
    pub may_be_running: bool,
    /// The Node object of the API server, once it is known; without an API server, the one that the kubelet
    /// would register.
    pub node: Option<&'a Node>,
    /// The Node object as the kubelet registers it, without a status.
    pub initial_node: &'a Node,
    /// There is no API server.
    pub standalone: bool,
    /// The other pods that were admitted and have not ended.
    pub others: &'a AdmittedPods,
    /// Why devices could not be allocated to the pod, if that failed.
    pub device_error: Option<&'a AdmissionError>,
    /// The number of allocated devices of each resource, if this pod has some; otherwise empty. Allocatable is raised to
    /// it (upstream's `sanitizeNodeAllocatable`), because the pod has its devices even if the Node object shows fewer.
    pub allocated_devices: &'a BTreeMap<String, i64>,
}

/// The other pods that use resources of the node, or will.
#[derive(Clone, Debug, Default)]
pub struct AdmittedPods {
    /// Pods that keep their resources.
    pub staying: Vec<Arc<Pod>>,
    /// Pods that are being stopped and will release their resources.
    pub terminating: Vec<Arc<Pod>>,
    /// Pods that run here and that no source has (yet): either their source will deliver them, or they will be stopped.
    pub unclaimed: Vec<Arc<Pod>>,
    /// Pods that wait for their admission for longer than this one. They may hold devices and exclusive CPUs.
    pub waiting: Vec<Arc<Pod>>,
}

impl AdmittedPods {
    fn all(&self) -> Vec<Arc<Pod>> {
        self.staying_and([&self.terminating, &self.unclaimed, &self.waiting])
    }

    fn staying_and<const N: usize>(&self, others: [&[Arc<Pod>]; N]) -> Vec<Arc<Pod>> {
        let others = others.into_iter().flatten();
        self.staying.iter().chain(others).cloned().collect()
    }
}

/// Why a pod is not admitted.
#[derive(Clone, Debug, PartialEq)]
pub enum AdmissionError {
    /// The pod has failed.
    Rejected(Rejection),
    /// The pod waits, because the obstacle is temporary.
    Deferred {
        /// The obstacle, for users.
        message: String,
        /// The rejection when the wait times out; `None` admits the pod then.
        on_timeout: Option<Rejection>,
        /// Whether the event is delayed, because the wait is usually short.
        delay_event: bool,
        /// Whether pods are being stopped that the pod may wait for. Then the wait of a static pod does not time out:
        /// nothing would create the pod again.
        is_ending: bool,
    },
    /// Other pods have to be preempted first.
    Preempts {
        /// Pods to stop.
        victims: Vec<Arc<Pod>>,
        /// What is missing.
        resource: String,
    },
}

impl From<Rejection> for AdmissionError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason`, and the reason of the event.
    pub reason: Cow<'static, str>,
    /// Text for people.
    pub message: String,
}

impl Rejection {
    pub(super) fn new(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}

/// The first rule that a pod breaks, if there is one. A pod that may be running keeps its place: a node that has changed
/// while no kubelet ran must not end it.
pub fn admit(pod: &Pod, attributes: &PodAdmitAttributes<'_>) -> Result<(), AdmissionError> {
    if attributes.may_be_running {
        return Ok(());
    }
    admit_before_devices(pod, attributes)?;
    if let Some(error) = attributes.device_error {
        return Err(error.clone());
    }
    operating_system(pod)?;
    supplemental_groups(pod, attributes.supplemental_groups_policy)?;
    let fits = fits(pod, attributes);
    if let Err(AdmissionError::Rejected(_)) = fits {
        return fits;
    }
    app_armor::admit(pod, attributes.app_armor)?;
    declared_features(pod)?;
    shutdown(attributes.shutting_down)?;
    fits
}

/// The first rule about the pod's own spec that a running pod breaks: it would not be admitted now.
pub fn broken_by_running(pod: &Pod, attributes: &PodAdmitAttributes<'_>) -> Option<Rejection> {
    let rules = [
        sysctls(pod, attributes.sysctls),
        operating_system(pod),
        supplemental_groups(pod, attributes.supplemental_groups_policy),
        app_armor::admit(pod, attributes.app_armor),
    ];
    rules.into_iter().find_map(Result::err)
}

fn shutdown(shutting_down: bool) -> Result<(), Rejection> {
    if !shutting_down {
        return Ok(());
    }
    let message = "Pod was rejected as the node is shutting down.";
    Err(Rejection::new(reasons::NODE_SHUTDOWN, message))
}

/// Whether a running pod may be resized on this node.
pub(super) fn may_resize(
    pod: &Pod,
    pressure: NodePressure,
    shutting_down: bool,
) -> Result<(), Rejection> {
    pressure::admit(pod, pressure)?;
    shutdown(shutting_down)
}

/// The rules that come before devices are allocated.
pub(super) fn admit_before_devices(
    pod: &Pod,
    attributes: &PodAdmitAttributes<'_>,
) -> Result<(), Rejection> {
    pressure::admit(pod, attributes.pressure)?;
    sysctls(pod, attributes.sysctls)
}

/// Rejects a pod with a kernel parameter that it may not set.
fn sysctls(pod: &Pod, allowed: &Allowlist) -> Result<(), Rejection> {
    let spec = pod.spec();
    let context = spec.and_then(|spec| spec.security_context.as_ref());
    let wanted = context.and_then(|context| context.sysctls.as_deref());
    let host_ipc = spec.and_then(|spec| spec.host_ipc) == Some(true);
    for sysctl in wanted.unwrap_or_default() {
        let checked = allowed.check(&sysctl.name, pod.host_network(), host_ipc);
        checked.map_err(|text| {
            Rejection::new("SysctlForbidden", format!("forbidden sysctl: {text}"))
        })?;
    }
    Ok(())
}

/// Whether the pod fits on the node: its resources, ports, selectors and taints.
fn fits(pod: &Pod, attributes: &PodAdmitAttributes<'_>) -> Result<(), AdmissionError> {
    let staying = &attributes.others.staying;
    match attributes.node {
        None if pod.is_static() && predicates::matches_node(pod, attributes.initial_node) => Ok(()),
        None => Err(AdmissionError::Deferred {
            message: "the Node object is not known yet".into(),
            on_timeout: None,
            delay_event: true,
            is_ending: false,
        }),
        Some(object) if pod.is_critical() => {
            let lenient = pod.is_static() && !attributes.standalone;
            fits_critical(pod, object, attributes.others, attributes.allocated_devices, lenient)
        }
        Some(object) => {
            predicates::admit(pod, object, staying, attributes.allocated_devices)?;
            fits_now(pod, object, attributes.others, attributes.allocated_devices)
        }
    }
}

/// Whether a pod that fits beside the pods that stay has to wait for others: until those that are being stopped have
/// released what it needs, and those that wait for longer have been admitted or rejected.
fn fits_now(
    pod: &Pod,
    object: &Node,
    others: &AdmittedPods,
    allocated_devices: &BTreeMap<String, i64>,
) -> Result<(), AdmissionError> {
    // A critical pod would preempt these once they are admitted.
    let waiting = others.waiting.iter();
    let waiting = waiting.filter(|waiting| !preemption::is_preemptable(pod, waiting));
    let waiting: Vec<_> = waiting.cloned().collect();
    let (terminating, unclaimed) = (&others.terminating[..], &others.unclaimed[..]);
    for (what, added, before, is_final) in [
        ("pods whose admission is pending", &waiting[..], &[][..], true),
        ("terminating pods", terminating, &[], true),
        // Whether these will be stopped is not known.
        ("running pods that no source has", unclaimed, terminating, false),
    ] {
        if added.is_empty() {
            // It fits beside the others: that was checked before.
            continue;
        }
        let all = others.staying_and([before, added]);
        let Err(mut rejection) = predicates::admit(pod, object, &all, allocated_devices) else {
            continue;
        };
        let mut is_final = is_final;
        if pod.is_critical() {
            // It does not fail for resources, which others would be stopped for.
            match predicates::admit_except_resources(pod, object, &all) {
                Ok(()) => is_final = false,
                Err(other) => rejection = other,
            }
        }
        return Err(AdmissionError::Deferred {
            message: format!("waiting for {what}: {}", rejection.message),
            on_timeout: Some(rejection).filter(|_| is_final),
            delay_event: false,
            is_ending: !others.terminating.is_empty(),
        });
    }
    Ok(())
}

/// Whether a critical pod fits, after preemption of other pods if needed. With `lenient`, a pod that does not fit even
/// then is admitted: a control plane must not end because its manifest requests more memory.
pub(super) fn fits_critical(
    pod: &Pod,
    object: &Node,
    others: &AdmittedPods,
    allocated_devices: &BTreeMap<String, i64>,
    lenient: bool,
) -> Result<(), AdmissionError> {
    let staying = &others.staying;
    predicates::admit_except_resources(pod, object, staying)?;
    let missing = predicates::insufficient_resources(pod, object, staying, allocated_devices)?;
    if let Some(first) = missing.first() {
        let shortages = missing.iter().map(|missing| Shortage {
            resource: missing.resource.clone(),
            amount: missing.amount(),
        });
        let shortages: Vec<_> = shortages.collect();
        return match preemption::victims(pod, staying, &shortages) {
            Ok(victims) => {
                Err(AdmissionError::Preempts { victims, resource: first.resource.clone() })
            }
            Err(_) if lenient => Ok(()),
            Err(error) => {
                let message = format!(
                    "Unexpected error while attempting to recover from admission failure: {error}"
                );
                Err(Rejection::new("UnexpectedAdmissionError", message).into())
            }
        };
    }
    fits_now(pod, object, others, allocated_devices)
}

/// Whether a pod fits beside all other pods, including those that are being stopped and those that wait.
pub(super) fn fits_with(
    pod: &Pod,
    object: &Node,
    others: &AdmittedPods,
    allocated_devices: &BTreeMap<String, i64>,
) -> Result<(), Rejection> {
    predicates::admit(pod, object, &others.all(), allocated_devices)
}

fn operating_system(pod: &Pod) -> Result<(), Rejection> {
    let labels = pod.metadata.labels.as_ref();
    if labels.and_then(|labels| labels.get("kubernetes.io/os")).is_some_and(|os| os != "linux") {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let os = pod.spec().and_then(|spec| spec.os.as_ref());
    if os.is_some_and(|os| os.name != "linux") {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

fn supplemental_groups(pod: &Pod, supported: bool) -> Result<(), Rejection> {
    let context = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !supported {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// Upstream's `declaredFeaturesAdmitHandler`: of the features that v1.36 infers from pods, the node declares all but
/// this one.
fn declared_features(pod: &Pod) -> Result<(), Rejection> {
    let host_users = pod.spec().and_then(|spec| spec.host_users);
    if host_users != Some(false) || !pod.host_network() {
        return Ok(());
    }
    Err(Rejection::new(
        "PodFeatureUnsupported",
        "Pod requires node features that are not available: UserNamespacesHostNetworkSupport",
    ))
}

#[cfg(test)]
mod tests;
