//! When two statuses are equal.

use k8s_openapi::api::core::v1::PodStatus;

/// Whether two statuses are equal: the order of conditions does not matter, nor does the
/// difference between an empty list and none. Both must have been normalised.
pub(super) fn same(a: &PodStatus, b: &PodStatus) -> bool {
    a == b || canonical(a) == canonical(b)
}

fn canonical(status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    let conditions = status.conditions.get_or_insert_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    status.container_statuses.get_or_insert_default();
    status.init_container_statuses.get_or_insert_default();
    status.ephemeral_container_statuses.get_or_insert_default();
    status.host_ips.get_or_insert_default();
    status.pod_ips.get_or_insert_default();
    for text in [&mut status.reason, &mut status.message] {
        text.take_if(|text| text.is_empty());
    }
    status
}
