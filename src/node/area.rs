//! The face of the area: starts its tasks once the parts of pods exist.

use super::{
    eviction::{EvictionDeps, EvictionManager, EvictionSettings},
    membership::{self, MembershipDeps, NodeProfile},
    oom,
    reclaim::Reclaim,
    shutdown::{ShutdownDeps, ShutdownManager, plan::ShutdownPhase},
    stats::Stats,
};
use crate::{
    apiserver::ApiServer,
    base::{Tasks, metrics::Metrics, otel::Tracer},
    cri::{RuntimeClient, RuntimeInfo},
    host::{HostMachine, KERNEL_LOG, LOGIND_CONFIG_DIRECTORY, Logind, System},
    images::{
        Images,
        gc::{CollectorParts, ImageCollector, ImageGcPolicy},
    },
    pods::Pods,
    resources::ResourceArea,
    state::{
        State, node_object::NodeObjectWriter, node_pressure::NodePressureWriter,
        node_shutdown::NodeShutdownWriter,
    },
};
use std::sync::Arc;

/// The settings of the area.
pub struct Config {
    /// What the kubelet says of its node.
    pub profile: NodeProfile,
    /// When unused images are removed.
    pub image_gc: ImageGcPolicy,
    /// When pods are evicted.
    pub eviction: EvictionSettings,
    /// How pods are stopped before the machine goes down; empty when they are not.
    pub shutdown_phases: Vec<ShutdownPhase>,
}

/// What the area works with.
pub struct NodeDeps<'a> {
    /// The API server; `None` for a node of its own.
    pub api: Option<ApiServer>,
    /// The runtime.
    pub client: RuntimeClient,
    /// What the runtime answered first.
    pub info: &'a RuntimeInfo,
    /// Images, and the records of their pulls.
    pub images: &'a Images,
    /// The stores.
    pub state: &'a State,
    /// The one writing end of the Node object.
    pub node_object: NodeObjectWriter,
    /// The one writing end of the node's pressure.
    pub pressure: NodePressureWriter,
    /// The one writing end of whether the machine goes down.
    pub shutting_down: NodeShutdownWriter,
    /// The machine.
    pub machine: &'a HostMachine,
    /// Where logind is.
    pub system: &'a System,
    /// Resources of pods.
    pub resources: &'a ResourceArea,
    /// The parts of pods.
    pub pods: &'a Pods,
    /// What pods use.
    pub stats: Stats,
    /// Registry of the area's families.
    pub metrics: &'a Metrics,
    /// Spans of image collections.
    pub tracer: &'a Tracer,
}

/// Starts the tasks of the area.
///
/// # Errors
/// The machine cannot be measured.
pub async fn start(config: Config, deps: NodeDeps<'_>, tasks: &mut Tasks) -> anyhow::Result<()> {
    let (state, name) = (deps.state, &config.profile.name);
    let reports = deps.api.is_some();
    if let Some(api) = deps.api {
        let membership = MembershipDeps {
            api,
            client: deps.client.clone(),
            images: deps.images.client.clone(),
            info: deps.info,
            runtime_state: deps.pods.runtime_state.clone(),
            state,
            node_object: deps.node_object,
            machine: deps.machine,
            devices: &deps.resources.devices.plugins,
            metrics: deps.metrics,
        };
        membership::join(&config.profile, membership, tasks).await?;
    }
    let (log, events) = (KERNEL_LOG.into(), state.events.clone());
    let watching = oom::run(log, name.clone(), events, tasks.shutdown());
    tasks.spawn("node.oom", watching);
    if !config.shutdown_phases.is_empty() {
        let shutdown = ShutdownDeps {
            node_name: name.clone(),
            phases: config.shutdown_phases,
            root: config.profile.root_dir.clone(),
            logind_config: LOGIND_CONFIG_DIRECTORY.into(),
            logind: Logind::new(deps.system.bus.clone()),
            pods: state.pods.clone(),
            workers: deps.pods.workers.clone(),
            events: state.events.clone(),
            shutting_down: deps.shutting_down,
            reports,
        };
        let manager = ShutdownManager::new(shutdown, deps.metrics);
        tasks.spawn("node.shutdown", manager.run(tasks.shutdown()));
    }
    let collects_images = !config.image_gc.is_off();
    let collector = CollectorParts {
        images: deps.images.client.clone(),
        runtime: deps.client,
        pods: state.pods.clone(),
        records: deps.images.records.clone(),
        events: state.events.clone(),
        node_name: name.clone(),
        policy: config.image_gc,
        root: config.profile.root_dir.clone(),
    };
    let reclaim = Arc::new(Reclaim {
        collector: ImageCollector::new(collector, deps.metrics),
        runtime: deps.pods.runtime.clone(),
        cache: state.cache.clone(),
        workers: deps.pods.workers.clone(),
        events: state.events.clone(),
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
        pods: state.pods.clone(),
        workers: deps.pods.workers.clone(),
        events: state.events.clone(),
        pressure: deps.pressure,
    };
    if !config.eviction.thresholds.is_empty() || config.eviction.local_storage {
        let manager = EvictionManager::new(config.eviction, eviction, deps.metrics);
        tasks.spawn("node.eviction", manager.run(tasks.shutdown()));
    }
    if collects_images {
        tasks.spawn("reclaim", reclaim.run(sources, tasks.shutdown()));
    }
    Ok(())
}
