//! Opens the managers of resources with the state of an earlier kubelet, and starts their tasks.

use super::{
    ContainerDevices, CpuEnforcement, Deps, HealthDetail,
    allocation::{Allocations, ResizeMetrics},
    cm::{self, CgroupRules, CgroupsConfig, ContainerManager},
    devices::DeviceManager,
    dra::DraManager,
    managers::{self, ManagersConfig, NodeReserved, ResourceManagers},
    plugin_manager::{self, PluginHandlers},
    pod_resources::{self, ActivePods, PodByName, PodResources, PodResourcesSocket},
};
use crate::base::{Tasks, metrics::Metrics};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The settings of the area.
pub struct Config {
    /// The node's cgroups.
    pub cgroups: CgroupsConfig,
    /// The managers of exclusive CPUs and memory.
    pub managers: ManagersConfig,
    /// What they keep from pods.
    pub reserved: NodeReserved,
    /// How CPU and memory limits are enforced.
    pub enforcement: CpuEnforcement,
    /// How much of the health of devices statuses show.
    pub health: HealthDetail,
    /// `oomScoreAdj` of the kubelet.
    pub oom_score_adj: i32,
}

/// The managers of resources; cheap to clone.
#[derive(Clone)]
pub struct ResourceArea {
    /// Devices of plugins and of claims.
    pub devices: ContainerDevices,
    /// Exclusive CPUs and memory.
    pub managers: ResourceManagers,
    /// Allocated and actuated amounts.
    pub allocations: Allocations,
    /// Counts resizes.
    pub resize_metrics: ResizeMetrics,
    /// The node's cgroups.
    pub cgroups: ContainerManager,
    /// How CPU and memory limits are enforced.
    pub enforcement: CpuEnforcement,
}

/// Reads the state of an earlier kubelet, makes the node's cgroups, and starts the tasks of both.
///
/// # Errors
/// State that cannot be read, or settings that the machine or the runtime rules out.
pub async fn start(config: Config, deps: &Deps, tasks: &mut Tasks) -> anyhow::Result<ResourceArea> {
    let devices = open_devices(config.health, deps).await?;
    let rules = CgroupRules {
        enforcement: config.enforcement,
        assigns_cpus: config.managers.cpu.is_some(),
        oom_score_adj: config.oom_score_adj,
    };
    let managers = managers::open(config.managers, config.reserved, deps).await?;
    tasks.spawn("resources", managers.clone().run(tasks.shutdown()));
    let directory = deps.root_dir.clone();
    let allocations = tokio::task::spawn_blocking(move || Allocations::read(&directory)).await??;
    tasks.spawn("allocations", allocations.clone().run(tasks.shutdown()));
    let cgroups = cm::start(&config.cgroups, rules, deps, &managers, tasks).await?;
    Ok(ResourceArea {
        devices,
        managers,
        resize_metrics: ResizeMetrics::new(&deps.metrics, &allocations),
        allocations,
        cgroups,
        enforcement: config.enforcement,
    })
}

async fn open_devices(health: HealthDetail, deps: &Deps) -> anyhow::Result<ContainerDevices> {
    let (root, node_name) = (deps.root_dir.clone(), deps.node_name.clone());
    let (api, metrics) = (deps.api.clone(), deps.metrics.clone());
    let open = move || ContainerDevices {
        health,
        plugins: DeviceManager::open(&root, &metrics),
        dra: DraManager::open(&root, &node_name, api, &metrics),
    };
    Ok(tokio::task::spawn_blocking(open).await?)
}

/// The socket of the PodResources API below the kubelet's directory. It listens before the node reports that it is
/// healthy.
pub fn bind_pod_resources(root_dir: &Path) -> PodResourcesSocket {
    PodResourcesSocket::bind(&root_dir.join("pod-resources/kubelet.sock"))
}

/// What plugins and agents on the node are served with.
pub struct PluginDeps {
    /// The kubelet's directory, where plugins register.
    pub root_dir: PathBuf,
    /// Pods that have not ended, for agents.
    pub active_pods: ActivePods,
    /// A pod by its name, for agents.
    pub pod_by_name: PodByName,
    /// Where agents connect.
    pub socket: PodResourcesSocket,
    /// Registry of the families about agents.
    pub metrics: Metrics,
}

impl ResourceArea {
    /// Starts the tasks that serve device plugins, DRA drivers and the agents that read who has what.
    pub fn serve_plugins(&self, deps: PluginDeps, tasks: &mut Tasks) {
        let shutdown = tasks.shutdown();
        let ContainerDevices { plugins, dra, .. } = self.devices.clone();
        let mut handlers = PluginHandlers::new();
        handlers.insert("DevicePlugin", Arc::new(plugins.clone()));
        handlers.insert("DRAPlugin", Arc::new(dra.clone()));
        let registry = deps.root_dir.join("plugins_registry");
        let watching = plugin_manager::run(handlers, registry, shutdown.clone());
        tasks.spawn("device_plugins", plugins.run(shutdown.clone()));
        tasks.spawn("dra", dra.run(shutdown.clone()));
        tasks.spawn("plugin_watcher", watching);
        let api = PodResources::new(
            deps.active_pods,
            deps.pod_by_name,
            self.devices.clone(),
            self.managers.clone(),
            &deps.metrics,
        );
        let serving = pod_resources::serve(api, deps.socket, shutdown);
        tasks.spawn("pod_resources", serving);
    }
}
