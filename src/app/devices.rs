//! Device plugins, DRA drivers, and the server of the PodResources API.

use super::Stores;
use crate::{
    base::Tasks,
    config::{FeatureGate, KubeletConfig},
    model::PodExt as _,
    pods::pod_workers::PodWorkers,
    resources::{
        ContainerDevices, HealthDetail,
        devices::DeviceManager,
        dra::DraManager,
        managers::ResourceManagers,
        plugin_manager::{self, PluginHandlers},
        pod_resources::{self, PodResources},
    },
};
use std::sync::Arc;

/// Opens the managers with the assignments of an earlier kubelet.
pub(super) async fn open(
    config: &KubeletConfig,
    stores: &Stores,
) -> anyhow::Result<ContainerDevices> {
    let (root, node_name) = (config.root_dir.clone(), config.node_name.clone());
    let (api, metrics) = (stores.api.clone(), stores.metrics.clone());
    let health = if !config.is_on(FeatureGate::ResourceHealthStatus) {
        HealthDetail::Nothing
    } else if config.is_on(FeatureGate::ResourceHealthStatusMessage) {
        HealthDetail::Everything
    } else {
        HealthDetail::WithoutMessages
    };
    let open = move || ContainerDevices {
        health,
        plugins: DeviceManager::open(&root, &metrics),
        dra: DraManager::open(&root, &node_name, api, &metrics),
    };
    Ok(tokio::task::spawn_blocking(open).await?)
}

/// The socket of the PodResources API. It listens before the node reports that it is healthy.
pub(super) fn socket(config: &KubeletConfig) -> pod_resources::PodResourcesSocket {
    let directory = config.root_dir.join("pod-resources");
    pod_resources::PodResourcesSocket::bind(&directory.join("kubelet.sock"))
}

/// Starts the tasks.
pub(super) fn start(
    config: &KubeletConfig,
    stores: &Stores,
    workers: &PodWorkers,
    devices: ContainerDevices,
    managers: ResourceManagers,
    socket: pod_resources::PodResourcesSocket,
    tasks: &mut Tasks,
) {
    let shutdown = tasks.shutdown();
    let plugins = config.root_dir.join("plugins_registry");
    let api = pod_resources(stores, workers, devices.clone(), managers);
    let ContainerDevices {
        plugins: device_plugins,
        dra,
        ..
    } = devices;
    let mut handlers = PluginHandlers::new();
    handlers.insert("DevicePlugin", Arc::new(device_plugins.clone()));
    handlers.insert("DRAPlugin", Arc::new(dra.clone()));
    let watching = plugin_manager::run(handlers, plugins, shutdown.clone());
    tasks.spawn("device_plugins", device_plugins.run(shutdown.clone()));
    tasks.spawn("dra", dra.run(shutdown.clone()));
    tasks.spawn("plugin_watcher", watching);
    let serving = pod_resources::serve(api, socket, shutdown);
    tasks.spawn("pod_resources", serving);
}

/// The PodResources API, which agents on the node read.
fn pod_resources(
    stores: &Stores,
    workers: &PodWorkers,
    devices: ContainerDevices,
    managers: ResourceManagers,
) -> PodResources {
    let (known, pods, workers) = (stores.pods.clone(), stores.pods.clone(), workers.clone());
    let active = move || {
        let mut active = pods.pods();
        active.retain(|pod| !pod.is_terminal() && !workers.should_pod_be_finished(&pod.uid()));
        active
    };
    let named = move |namespace: &str, name: &str| {
        let mut all = known.pods().into_iter();
        all.find(|pod| pod.namespace() == namespace && pod.name() == name)
    };
    PodResources::new(
        Arc::new(active),
        Arc::new(named),
        devices,
        managers,
        &stores.metrics,
    )
}
