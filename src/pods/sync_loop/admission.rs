//! Whether this node may run a pod at all. Pure.
//!
//! A pod that is rejected here has failed, with a reason; this process does not admit it again. Answers to upstream's admit handlers, in their order.

mod app_armor;
pub mod sysctls;

use crate::{
    cri::RuntimeFeatures,
    model::{Pod, PodExt},
};
use sysctls::Allowlist;

/// The node as admission sees it.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Kernel parameters that pods may set.
    pub sysctls: &'a Allowlist,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// What the runtime can do.
    pub features: RuntimeFeatures,
}

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason`, and the reason of the event.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
}

impl Rejection {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// The first rule that a pod breaks, if there is one.
pub fn admit(pod: &Pod, node: &NodeView<'_>) -> Result<(), Rejection> {
    sysctls::admit(pod, node.sysctls)?;
    operating_system(pod)?;
    supplemental_groups(pod, node.features)?;
    app_armor::admit(pod, node.app_armor)
}

fn operating_system(pod: &Pod) -> Result<(), Rejection> {
    let labels = pod.metadata.labels.as_ref();
    if labels
        .and_then(|labels| labels.get("kubernetes.io/os"))
        .is_some_and(|os| os != "linux")
    {
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

fn supplemental_groups(pod: &Pod, features: RuntimeFeatures) -> Result<(), Rejection> {
    let context = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !features.supplemental_groups_policy {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
