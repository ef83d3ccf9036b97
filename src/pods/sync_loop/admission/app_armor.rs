//! Whether AppArmor can be enforced where a pod relies on it. Pure. Upstream:
//! `pkg/security/apparmor`.

use super::Rejection;
use crate::model::{Pod, PodExt, keys};
use k8s_openapi::api::core::v1::AppArmorProfile;

/// Rejects a pod with an AppArmor profile if the kernel does not enforce AppArmor.
pub(super) fn admit(pod: &Pod, enforced: bool) -> Result<(), Rejection> {
    if enforced || !is_required(pod) {
        Ok(())
    } else {
        Err(Rejection::new(
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ))
    }
}

fn is_required(pod: &Pod) -> bool {
    let confined = |profile: Option<&AppArmorProfile>| {
        profile.is_some_and(|profile| profile.type_ != "Unconfined")
    };
    let context = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let mut containers = pod.containers().iter().chain(pod.init_containers());
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut former = annotations.filter(|(key, _)| key.starts_with(keys::APP_ARMOR_PREFIX));
    confined(context.and_then(|context| context.app_armor_profile.as_ref()))
        || containers.any(|container| {
            let context = container.security_context.as_ref();
            confined(context.and_then(|context| context.app_armor_profile.as_ref()))
        })
        || former.any(|(_, profile)| profile != "unconfined")
}
