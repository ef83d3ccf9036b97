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

    /// `allocatedResourcesStatus` of a container; `None` without devices.
    pub fn health_of(&self, pod: &Pod, container: &str) -> Option<Vec<ResourceStatus>> {
        let mut statuses = self.plugins.health_of(&pod.uid(), container);
        statuses.extend(self.dra.health_of(pod, container));
        (!statuses.is_empty()).then_some(statuses)
    }
}
