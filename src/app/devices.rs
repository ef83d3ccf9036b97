//! Device plugins, and the server that says who has which devices.

use crate::{
    base::{Tasks, metrics::Metrics},
    config::KubeletConfig,
    model::PodExt as _,
    pods::pod_workers::PodWorkers,
    resources::{
        devices::{DeviceManager, plugin_watcher},
        pod_resources::{self, PodResources},
    },
    state::pod_manager::PodManager,
};
use std::sync::Arc;

/// Reads what containers have.
pub(super) async fn open(
    config: &KubeletConfig,
    metrics: &Metrics,
) -> anyhow::Result<DeviceManager> {
    let (root, metrics) = (config.root_dir.clone(), metrics.clone());
    let open = move || DeviceManager::open(&root, &metrics);
    Ok(tokio::task::spawn_blocking(open).await?)
}

/// Starts the tasks.
pub(super) fn start(
    config: &KubeletConfig,
    (pods, workers, devices): (&PodManager, &PodWorkers, &DeviceManager),
    metrics: &Metrics,
    tasks: &mut Tasks,
) {
    let shutdown = tasks.shutdown();
    let plugins = config.root_dir.join("plugins_registry");
    let watching = plugin_watcher::run(devices.clone(), plugins, shutdown.clone());
    tasks.spawn("device_plugins", devices.clone().run(shutdown.clone()));
    tasks.spawn("plugin_watcher", watching);
    let socket = config.root_dir.join("pod-resources").join("kubelet.sock");
    let pods = pod_resources(pods, workers, devices, metrics);
    tasks.spawn(
        "pod_resources",
        pod_resources::serve(pods, socket, shutdown),
    );
}

/// What agents on the node may read.
fn pod_resources(
    pods: &PodManager,
    workers: &PodWorkers,
    devices: &DeviceManager,
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
    PodResources::new(Arc::new(active), Arc::new(named), devices.clone(), metrics)
}
