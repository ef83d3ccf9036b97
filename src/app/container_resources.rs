//! The components that decide what containers get of the machine.

use super::{Stores, cgroups, devices, resource_managers, user_ids};
use crate::{
    base::Tasks,
    config::KubeletConfig,
    resources::{
        ContainerDevices,
        allocation::{Allocations, ResizeMetrics},
        cm::ContainerManager,
        managers::ResourceManagers,
    },
    runtime::kuberuntime::UserNamespaces,
};

/// Managers of resources, with the state of an earlier kubelet.
pub(super) struct ContainerResourceManagers {
    pub(super) devices: ContainerDevices,
    pub(super) user_namespaces: UserNamespaces,
    pub(super) managers: ResourceManagers,
    pub(super) allocations: Allocations,
    pub(super) resize_metrics: ResizeMetrics,
    pub(super) cgroups: ContainerManager,
}

/// Reads the state of an earlier kubelet, makes the node's cgroups, and starts the tasks of both.
pub(super) async fn start(
    config: &KubeletConfig,
    stores: &Stores,
    tasks: &mut Tasks,
) -> anyhow::Result<ContainerResourceManagers> {
    let devices = devices::open(config, stores).await?;
    let user_namespaces = user_ids::namespaces(config, &stores.root).await?;
    let managers = resource_managers::start(config, stores, tasks).await?;
    let allocations = resource_managers::allocations(config, tasks).await?;
    let cgroups = cgroups::start(config, stores, &managers, tasks).await?;
    Ok(ContainerResourceManagers {
        devices,
        user_namespaces,
        managers,
        resize_metrics: ResizeMetrics::new(&stores.metrics, &allocations),
        allocations,
        cgroups,
    })
}
