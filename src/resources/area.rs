//! Opens the resource managers with the state of an earlier kubelet, and starts their tasks.

use super::allocation::{Allocations, ResizeMetrics};
use super::cm::{self, CgroupRules, CgroupsConfig, ContainerManager};
use super::devices::DeviceManager;
use super::dra::DraManager;
use super::managers::{self, ManagersConfig, NodeReserved, ResourceManagers};
use super::plugin_manager::{self, PluginHandler, PluginHandlers};
use super::pod_resources::{self, IsActive, PodResources, PodResourcesSocket};
use super::{Deps, DeviceManagers, HealthDetail, PodSetReader, ResourceEnforcement};
use crate::base::metrics::Metrics;
use crate::base::{Tasks, spawn_blocking};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Configuration of the area.
pub struct Config {
    /// The cgroups of the node.
    pub cgroups: CgroupsConfig,
    /// The CPU, memory and topology managers.
    pub managers: ManagersConfig,
    /// Reserved CPU and memory, which these managers do not give to pods.
    pub reserved: NodeReserved,
    /// How CPU and memory limits are enforced.
    pub enforcement: ResourceEnforcement,
    /// How much of the health of devices container statuses show.
    pub health: HealthDetail,
    /// `oomScoreAdj` of the kubelet.
    pub oom_score_adj: i32,
}

/// The resource managers; cheap to clone.
#[derive(Clone)]
pub struct ResourceArea {
    /// The device manager and the DRA manager.
    pub devices: DeviceManagers,
    /// The CPU, memory and topology managers.
    pub managers: ResourceManagers,
    /// Allocated and actuated amounts.
    pub allocations: Allocations,
    /// Metrics of resizes.
    pub resize_metrics: ResizeMetrics,
    /// The container manager, which manages cgroups.
    pub cgroups: ContainerManager,
    /// How CPU and memory limits are enforced.
    pub enforcement: ResourceEnforcement,
}

/// Reads the state of an earlier kubelet, creates the node's cgroups, and starts the tasks of the managers.
///
/// # Errors
/// State that cannot be read, or a configuration that the machine or the runtime does not support.
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
    let allocations = spawn_blocking(move || Allocations::read(&directory)).await??;
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

async fn open_devices(health: HealthDetail, deps: &Deps) -> anyhow::Result<DeviceManagers> {
    let (root, node_name) = (deps.root_dir.clone(), deps.node_name.clone());
    let (api, metrics) = (deps.api.clone(), deps.metrics.clone());
    let open = move || DeviceManagers {
        health,
        plugins: DeviceManager::open(&root, &metrics),
        dra: DraManager::open(&root, &node_name, api, &metrics),
    };
    Ok(spawn_blocking(open).await?)
}

/// Binds the socket of the PodResources API in the kubelet's directory, before the node reports that it is healthy, so
/// that agents that start then can connect. A failure is logged.
pub fn bind_pod_resources(root_dir: &Path) -> PodResourcesSocket {
    PodResourcesSocket::bind(&root_dir.join("pod-resources/kubelet.sock"))
}

/// Dependencies of the servers for plugins and agents.
pub struct PluginDeps {
    /// The kubelet's directory, in which plugins register.
    pub root_dir: PathBuf,
    /// Returns the desired pods, for the PodResources API.
    pub pods: PodSetReader,
    /// Returns whether a pod may have running containers, for the PodResources API.
    pub is_active: IsActive,
    /// Whether the PodResources API lists inactive pods too.
    pub list_inactive: bool,
    /// Registers CSI drivers; without it they get no response.
    pub csi_drivers: Option<Arc<dyn PluginHandler>>,
    /// The socket of the PodResources API.
    pub socket: PodResourcesSocket,
    /// Registry for metrics of the PodResources API.
    pub metrics: Metrics,
}

impl ResourceArea {
    /// Starts the tasks that serve device plugins, DRA drivers and the PodResources API.
    pub fn serve_plugins(&self, deps: PluginDeps, tasks: &mut Tasks) {
        let shutdown = tasks.shutdown();
        let DeviceManagers { plugins, dra, .. } = self.devices.clone();
        let mut handlers = PluginHandlers::new();
        handlers.insert("DevicePlugin", Arc::new(plugins.clone()));
        handlers.insert("DRAPlugin", Arc::new(dra.clone()));
        if let Some(csi_drivers) = deps.csi_drivers {
            handlers.insert("CSIPlugin", csi_drivers);
        }
        let registry = deps.root_dir.join("plugins_registry");
        let watching = plugin_manager::run(handlers, registry, shutdown.clone());
        tasks.spawn("device_plugins", plugins.run(shutdown.clone()));
        tasks.spawn("dra", dra.run(shutdown.clone()));
        tasks.spawn("plugin_watcher", watching);
        let api = PodResources::new(
            deps.pods,
            deps.is_active,
            deps.list_inactive,
            self.devices.clone(),
            self.managers.clone(),
            &deps.metrics,
        );
        let serving = pod_resources::serve(api, deps.socket, shutdown);
        tasks.spawn("pod_resources", serving);
    }
}
