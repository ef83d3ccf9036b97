//! Starts the tasks of the area, once those of the area `pods` exist.

use super::csi_node::NodeInfoManager;
use super::event_sink::EventQueue;
use super::eviction::{EvictionDeps, EvictionManager, EvictionSettings};
use super::membership::{self, MembershipDeps, NodeProfile};
use super::oom;
use super::reclaim::Reclaim;
use super::shutdown::plan::ShutdownPhase;
use super::shutdown::{ShutdownDeps, ShutdownManager};
use super::startup_latency::StartupLatency;
use super::stats::Stats;
use crate::apiserver::ApiServer;
use crate::base::Tasks;
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use crate::cri::{RuntimeClient, RuntimeInfo};
use crate::host::{HostMachine, LOGIND_CONFIG_DIRECTORY, Logind, System};
use crate::images::Images;
use crate::images::gc::{CollectorDeps, ImageCollector, ImageGcPolicy};
use crate::pods::PodsHandles;
use crate::resources::ResourceArea;
use crate::state::Stores;
use crate::state::node_object::NodeObjectWriter;
use crate::state::node_pressure::NodePressureWriter;
use crate::state::node_shutdown::NodeShutdownWriter;
use std::sync::Arc;

/// Configuration of the area.
pub struct Config {
    /// The node's name, addresses and membership settings.
    pub profile: NodeProfile,
    /// Image garbage collection.
    pub image_gc: ImageGcPolicy,
    /// Eviction thresholds and grace periods.
    pub eviction: EvictionSettings,
    /// Phases of a graceful node shutdown; empty if it is disabled.
    pub shutdown_phases: Vec<ShutdownPhase>,
}

/// Dependencies of the area.
pub struct NodeDeps<'a> {
    /// The API server; `None` in standalone mode.
    pub api: Option<ApiServer>,
    /// The CRI runtime service.
    pub client: RuntimeClient,
    /// Name and version of the runtime, as reported at start.
    pub info: &'a RuntimeInfo,
    /// The image manager, with its pull records.
    pub images: &'a Images,
    /// The stores.
    pub stores: &'a Stores,
    /// The events since the kubelet started, for the API server.
    pub events: Option<EventQueue>,
    /// Registers CSI drivers; without it the node has no CSINode object.
    pub csi_node: Option<NodeInfoManager>,
    /// Writing end of the Node object.
    pub node_object: NodeObjectWriter,
    /// Writing end of the node's pressure.
    pub pressure: NodePressureWriter,
    /// Writing end of the shutdown flag.
    pub shutting_down: NodeShutdownWriter,
    /// Facts of the machine.
    pub machine: &'a HostMachine,
    /// Paths of the kernel's file systems, and the D-Bus system bus.
    pub system: &'a System,
    /// The container, device and resource managers.
    pub resources: &'a ResourceArea,
    /// The pod workers, and the stores of pods.
    pub pods: &'a PodsHandles,
    /// Resource usage of pods and the node.
    pub stats: Stats,
    /// Registry for the area's metrics.
    pub metrics: &'a Metrics,
    /// Returns whether no volume is left on the node that no pod wants.
    pub volumes_are_undone: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Tracer for image garbage collection.
    pub tracer: &'a Tracer,
}

/// Starts the tasks of the area.
///
/// # Errors
/// The machine cannot be read.
pub async fn start(config: Config, deps: NodeDeps<'_>, tasks: &mut Tasks) -> anyhow::Result<()> {
    let (stores, name) = (deps.stores, &config.profile.name);
    let has_api_server = deps.api.is_some();
    if let Some(api) = deps.api {
        let membership = MembershipDeps {
            api,
            client: deps.client.clone(),
            images: deps.images.client.clone(),
            info: deps.info,
            runtime_state: deps.pods.runtime_state.clone(),
            stores,
            node_object: deps.node_object,
            machine: deps.machine,
            devices: &deps.resources.devices.plugins,
            csi_node: deps.csi_node,
            events: deps.events,
            startup: StartupLatency::new(deps.metrics),
        };
        membership::start(&config.profile, membership, tasks).await?;
    }
    let (log, events) = (deps.system.kernel_log.clone(), stores.events.clone());
    tasks.spawn_until_shutdown("node.oom", oom::run(log, name.clone(), events));
    if !config.shutdown_phases.is_empty() {
        let shutdown = ShutdownDeps {
            node_name: name.clone(),
            phases: config.shutdown_phases,
            root: config.profile.root_dir.clone(),
            logind_config: LOGIND_CONFIG_DIRECTORY.into(),
            logind: Logind::new(deps.system.bus.clone()),
            sources: deps.pods.sources.clone(),
            pod_manager: stores.pod_manager.clone(),
            workers: deps.pods.workers.clone(),
            events: stores.events.clone(),
            shutting_down: deps.shutting_down,
            has_api_server,
            volumes_are_undone: deps.volumes_are_undone,
        };
        let manager = ShutdownManager::new(shutdown, deps.metrics);
        tasks.spawn_until_shutdown("node.shutdown", manager.run());
    }
    let collects_images = !config.image_gc.is_off();
    let collector = CollectorDeps {
        images: deps.images.client.clone(),
        runtime: deps.client,
        pod_manager: stores.pod_manager.clone(),
        cache: stores.pod_cache.clone(),
        records: deps.images.records.clone(),
        events: stores.events.clone(),
        node_name: name.clone(),
        policy: config.image_gc,
        root: config.profile.root_dir.clone(),
    };
    let reclaim = Arc::new(Reclaim {
        collector: ImageCollector::new(collector, deps.metrics),
        runtime: deps.pods.runtime.clone(),
        cache: stores.pod_cache.clone(),
        workers: deps.pods.workers.clone(),
        events: stores.events.clone(),
        node_name: name.clone(),
        tracer: deps.tracer.clone(),
    });
    let sources = deps.pods.sources.clone();
    let eviction = EvictionDeps {
        root: config.profile.root_dir,
        cgroup_v2: deps.machine.cgroup_v2,
        pods_cgroup: deps.resources.cgroups.all_pods(),
        reclaim: reclaim.clone(),
        stats: deps.stats,
        sources: sources.clone(),
        pod_manager: stores.pod_manager.clone(),
        workers: deps.pods.workers.clone(),
        events: stores.events.clone(),
        pressure: deps.pressure,
    };
    if !config.eviction.thresholds.is_empty() || config.eviction.local_storage {
        let manager = EvictionManager::new(config.eviction, eviction, deps.metrics);
        tasks.spawn_until_shutdown("node.eviction", manager.run());
    }
    if collects_images {
        tasks.spawn_until_shutdown("reclaim", reclaim.run(sources));
    }
    Ok(())
}
