//! The devices of containers: those of plugins, and those of claims.

use super::{
    devices::{DeviceManager, RunOptions},
    dra::DraManager,
};
use crate::model::{Pod, PodExt as _};
use k8s_openapi::api::core::v1::{Container, ResourceStatus};

/// The managers of devices; cheap to clone.
#[derive(Clone)]
pub struct ContainerDevices {
    /// Device plugins.
    pub plugins: DeviceManager,
    /// Drivers of claims.
    pub dra: DraManager,
    /// The part of the health of devices that statuses show.
    pub health: HealthDetail,
}

/// How much of the health of devices the status of a container shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthDetail {
    /// Nothing.
    Nothing,
    /// All but the messages of drivers.
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

impl ContainerDevices {
    /// What a container is created with to use its devices.
    ///
    /// # Errors
    /// The container does not get its devices.
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

    /// `allocatedResourcesStatus` of a container; `None` without devices, or if it shows nothing.
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
