//! The devices of containers: of device plugins, and of ResourceClaims.

use super::devices::{DeviceManager, RunOptions};
use super::dra::DraManager;
use crate::model::{Pod, PodExt as _};
use k8s_openapi::api::core::v1::{Container, ResourceStatus};

/// The managers of devices; cheap to clone.
#[derive(Clone)]
pub struct DeviceManagers {
    /// The device manager.
    pub plugins: DeviceManager,
    /// The DRA manager.
    pub dra: DraManager,
    /// The detail of device health in container statuses.
    pub health: HealthDetail,
}

/// How much of the health of devices container statuses show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthDetail {
    /// Nothing.
    Nothing,
    /// Everything but the messages of drivers.
    WithoutMessages,
    /// Everything.
    Everything,
}

impl HealthDetail {
    fn of(self, mut statuses: Vec<ResourceStatus>) -> Option<Vec<ResourceStatus>> {
        match self {
            Self::Nothing => statuses.clear(),
            Self::WithoutMessages => {
                let resources = statuses.iter_mut();
                let resources = resources.flat_map(|status| status.resources.iter_mut().flatten());
                resources.for_each(|resource| resource.message = None);
            }
            Self::Everything => {}
        }
        (!statuses.is_empty()).then_some(statuses)
    }
}

impl DeviceManagers {
    /// The devices, mounts, environment and annotations with which a container is created to use its devices.
    ///
    /// # Errors
    /// The container cannot have its devices.
    pub async fn run_options(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> anyhow::Result<RunOptions> {
        let mut options = self.plugins.run_options(pod, container).await?;
        let of_claims = self.dra.cdi_devices(pod, container).await?;
        options.cdi_devices.extend(of_claims);
        Ok(options)
    }

    /// `allocatedResourcesStatus` of a container; `None` if it has no devices, or if health is not shown.
    pub fn health_of(&self, pod: &Pod, container: &str) -> Option<Vec<ResourceStatus>> {
        let mut statuses = self.plugins.health_of(&pod.uid(), container);
        statuses.extend(self.dra.health_of(pod, container));
        self.health.of(statuses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn statuses_show_as_much_of_the_health_of_devices_as_the_gates_say() {
        let whole = json!([{"name": "claim:c", "resources": [
            {"resourceID": "a", "health": "Unhealthy", "message": "too hot"},
            {"resourceID": "b", "health": "Healthy"},
        ]}]);
        let bare = json!([{"name": "claim:c", "resources": [
            {"resourceID": "a", "health": "Unhealthy"},
            {"resourceID": "b", "health": "Healthy"},
        ]}]);
        let of = |detail: HealthDetail| {
            let statuses = serde_json::from_value(whole.clone()).unwrap();
            serde_json::to_value(detail.of(statuses)).unwrap()
        };
        assert_eq!(of(HealthDetail::Everything), whole);
        assert_eq!(of(HealthDetail::WithoutMessages), bare);
        assert_eq!(of(HealthDetail::Nothing), json!(null));
        assert_eq!(HealthDetail::Everything.of(Vec::new()), None);
    }
}
