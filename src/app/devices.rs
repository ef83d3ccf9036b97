//! Device plugins, drivers of claims, and the server that says who has which devices.

use super::Stores;
use crate::{
    base::{Tasks, metrics::Metrics},
    config::KubeletConfig,
    model::PodExt as _,
    pods::pod_workers::PodWorkers,
    resources::{
        ContainerDevices,
        devices::DeviceManager,
        dra::DraManager,
        managers::ResourceManagers,
        plugin_manager::{self, PluginHandlers},
        pod_resources::{self, PodResources},
    },
    state::pod_manager::PodManager,
};
use std::sync::Arc;

/// Reads what containers have.
pub(super) async fn open(
    config: &KubeletConfig,
    stores: &Stores,
) -> anyhow::Result<ContainerDevices> {
    let (root, node_name) = (config.root_dir.clone(), config.node_name.clone());
    let (api, metrics) = (stores.api.clone(), stores.metrics.clone());
    let open = move || ContainerDevices {
        plugins: DeviceManager::open(&root, &metrics),
        dra: DraManager::open(&root, &node_name, api, &metrics),
    };
    Ok(tokio::task::spawn_blocking(open).await?)
}

/// The socket of those who read what containers have. It listens before the node says that it is healthy.
pub(super) fn socket(config: &KubeletConfig) -> pod_resources::Socket {
    let directory = config.root_dir.join("pod-resources");
    pod_resources::Socket::bind(&directory.join("kubelet.sock"))
}

/// Starts the tasks.
pub(super) fn start(
    config: &KubeletConfig,
    (pods, workers, devices): (&PodManager, &PodWorkers, &ContainerDevices),
    managers: ResourceManagers,
    socket: pod_resources::Socket,
    metrics: &Metrics,
    tasks: &mut Tasks,
) {
    let shutdown = tasks.shutdown();
    let plugins = config.root_dir.join("plugins_registry");
    let (of_plugins, of_claims) = (devices.plugins.clone(), devices.dra.clone());
    let mut handlers = PluginHandlers::new();
    handlers.insert("DevicePlugin", Arc::new(of_plugins.clone()));
    handlers.insert("DRAPlugin", Arc::new(of_claims.clone()));
    let watching = plugin_manager::run(handlers, plugins, shutdown.clone());
    tasks.spawn("device_plugins", of_plugins.run(shutdown.clone()));
    tasks.spawn("dra", of_claims.run(shutdown.clone()));
    tasks.spawn("plugin_watcher", watching);
    let pods = pod_resources(pods, workers, devices, managers, metrics);
    tasks.spawn(
        "pod_resources",
        pod_resources::serve(pods, socket, shutdown),
    );
}

/// What agents on the node may read.
fn pod_resources(
    pods: &PodManager,
    workers: &PodWorkers,
    devices: &ContainerDevices,
    managers: ResourceManagers,
    metrics: &Metrics,
) -> PodResources {
    let (known, pods, workers) = (pods.clone(), pods.clone(), workers.clone());
    let active = move || {
        let mut active = pods.pods();
        active.retain(|pod| !pod.is_terminal() && !workers.should_pod_be_finished(&pod.uid()));
        active
    };
    let named = move |namespace: &str, name: &str| {
        let mut all = known.pods().into_iter();
        all.find(|pod| pod.namespace() == namespace && pod.name() == name)
    };
    let (active, named, devices) = (Arc::new(active), Arc::new(named), devices.clone());
    PodResources::new(active, named, devices, managers, metrics)
}
