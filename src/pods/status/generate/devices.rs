//! The health of a container's devices. Pure.

use super::DeviceHealth;
use k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};

/// `allocatedResourcesStatus`; `None` without devices.
pub(super) fn of(devices: &DeviceHealth) -> Option<Vec<ResourceStatus>> {
    let statuses = devices.iter().map(|(name, devices)| {
        let resources = devices.iter().map(|(id, healthy)| ResourceHealth {
            resource_id: id.clone(),
            health: Some(if *healthy { "Healthy" } else { "Unhealthy" }.into()),
            ..ResourceHealth::default()
        });
        ResourceStatus {
            name: name.clone(),
            resources: Some(resources.collect()),
        }
    });
    (!devices.is_empty()).then(|| statuses.collect())
}
