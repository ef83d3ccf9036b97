//! Public interface of the area: its stores, which are readable at once, and the handles of its components, which exist
//! once the runtime is reachable.

use super::mirror::{MirrorDeps, MirrorPods};
use super::pleg::{self, Pleg, PlegMetrics, RuntimeStateReader};
use super::pod_config::{self, MissingPath, PodConfig, PostedPods, SourcesReadyReader};
use super::pod_sync::{ClusterInputs, PodLister, PodStartMetrics, PodSync, StatusPublisher};
use super::pod_workers::{self, Delays, PodSyncObserver, PodWorkers, WorkerPhase};
use super::prober::{ProbeManager, ProberDeps, container_view};
use super::status::{StatusManager, Statuses};
use super::status_writer::{StatusWriter, StatusWriterDeps};
use super::sync_loop::{
    AdmissionDeps, HousekeepingSchedule, LoopMetrics, ResizeRules, Resizes, SyncLoop,
    SyncLoopMonitor,
};
use crate::apiserver::ApiServer;
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use crate::base::{Tasks, clock};
use crate::cri::events::{EventMetrics, EventStream, event_stream};
use crate::cri::{FeaturesWriter, RuntimeClient, RuntimeInfo};
use crate::model::{PodSource, PodUid};
use crate::resources::ResourceArea;
use crate::runtime::handlers::runtime_exec;
use crate::runtime::kuberuntime::KubeGenericRuntimeManager;
use crate::state::Stores;
use crate::state::node_object::HostIps;
use crate::state::pod_cache::PodCacheWriter;
use crate::state::pod_manager::PodManagerWriter;
use crate::state::probe_results::ProbeResultsWriter;
use crate::volumes::VolumeManager;
use jiff::Timestamp;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The readable stores of the area; cheap to clone.
#[derive(Clone)]
pub struct PodsReader {
    /// The API statuses of pods.
    pub statuses: Statuses,
    /// Lists the pods for `/pods`.
    pub lister: PodLister,
    /// Pods that clients posted; `None` when that is not allowed.
    pub posted: Option<PostedPods>,
    /// When the sync loop last ran.
    pub sync_loop_monitor: SyncLoopMonitor,
    /// Whether every source has sent a list, complete or not.
    pub all_sources_seen: watch::Receiver<bool>,
    /// The handles of the area's components; `None` until the runtime is reachable.
    pub handles: watch::Receiver<Option<PodsHandles>>,
}

/// The writing ends of the area's stores, for [`build`].
pub struct PodsWriters {
    status_manager: StatusManager,
    all_sources_seen: watch::Sender<bool>,
    handles: watch::Sender<Option<PodsHandles>>,
}

/// Opens the stores of the area.
pub fn open(
    stores: &Stores,
    posted: Option<PostedPods>,
    metrics: &Metrics,
) -> (PodsReader, PodsWriters) {
    let changed = stores.changes.as_ref();
    let status_manager =
        StatusManager::new(changed.map(|changes| changes.pods.clone())).measured(metrics);
    let writers = PodsWriters {
        status_manager,
        all_sources_seen: watch::Sender::new(false),
        handles: watch::Sender::new(None),
    };
    let statuses = writers.status_manager.reader();
    let counted = statuses.clone();
    stores.sizes.add("statuses", move || counted.count());
    let reader = PodsReader {
        lister: PodLister {
            pod_manager: stores.pod_manager.clone(),
            statuses: statuses.clone(),
            state_store: stores.state_store.clone(),
        },
        statuses,
        posted,
        sync_loop_monitor: SyncLoopMonitor::new(),
        all_sources_seen: writers.all_sources_seen.subscribe(),
        handles: writers.handles.subscribe(),
    };
    (reader, writers)
}

/// Handles of the area's components that other areas use; cheap to clone.
#[derive(Clone)]
pub struct PodsHandles {
    /// One worker per pod.
    pub workers: PodWorkers,
    /// Makes the runtime match a pod.
    pub runtime: KubeGenericRuntimeManager,
    /// Probes.
    pub probes: ProbeManager,
    /// The runtime's health.
    pub runtime_state: RuntimeStateReader,
    /// Which sources have delivered.
    pub sources: SourcesReadyReader,
    /// `staticPodPath` while it does not exist.
    pub missing_path: MissingPath,
}

impl PodsHandles {
    /// Pods that are terminating.
    pub fn terminating(&self) -> HashSet<PodUid> {
        let known = self.workers.worker_pods().into_iter();
        known
            .filter(|pod| matches!(pod.phase, WorkerPhase::Terminating { .. }))
            .map(|pod| pod.uid)
            .collect()
    }

    /// What keeps pods from running: errors of the runtime and its network, and a missing `staticPodPath`.
    pub fn warnings(&self) -> Vec<String> {
        let state = self.runtime_state.borrow();
        [state.runtime_error(clock::instant()), state.network_error(), self.missing_path.warning()]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The settings of the area.
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// Where pods come from.
    pub sources: pod_config::Config,
    /// `syncFrequency`: period of syncs without a change, to which up to a half is added as jitter.
    pub sync_frequency: Duration,
    /// Periods of the PLEG.
    pub pleg: pleg::Config,
    /// Period of housekeeping.
    pub housekeeping_period: Duration,
    /// Which resources this node does not resize.
    pub resize_rules: ResizeRules,
    /// Where containers on the host network are probed.
    pub node_ip: String,
}

/// The dependencies of the area.
pub struct PodsDeps<'a> {
    /// The API server; `None` in standalone mode.
    pub api: Option<ApiServer>,
    /// The runtime.
    pub client: RuntimeClient,
    /// The runtime's first Version and Status replies.
    pub info: &'a RuntimeInfo,
    /// What the runtime can do, to be kept up to date.
    pub features: FeaturesWriter,
    /// The stores.
    pub stores: &'a Stores,
    /// The one writing end of the pod cache.
    pub cache: PodCacheWriter,
    /// The one writing end of the desired pods.
    pub pod_manager: PodManagerWriter,
    /// The one writing end of the probe results.
    pub results: ProbeResultsWriter,
    /// Resources of pods.
    pub resources: &'a ResourceArea,
    /// Volumes.
    pub volumes: VolumeManager,
    /// Makes the runtime match a pod.
    pub runtime: KubeGenericRuntimeManager,
    /// What admission reads.
    pub admission: AdmissionDeps,
    /// The node's addresses.
    pub host_ips: HostIps,
    /// When the kubelet started.
    pub started_at: Timestamp,
    /// Registry of the area's families.
    pub metrics: &'a Metrics,
    /// Registry of the probe metrics, which are served at `/metrics/probes`.
    pub probe_metrics: &'a Metrics,
    /// Spans of syncs.
    pub tracer: &'a Tracer,
}

/// The tasks of the area, which do not run yet.
pub struct PodsTasks {
    sources: PodConfig,
    pleg: Pleg,
    events: EventStream,
    cluster: Option<(MirrorPods, StatusWriter)>,
    all_sources_seen: watch::Receiver<bool>,
    sync_loop: SyncLoop,
}

/// Builds the area's components and publishes their handles to the readers. Nothing runs until [`PodsTasks::start`].
///
/// # Errors
/// The URL of static pods, or one of its headers, is invalid.
pub fn build(
    config: Config,
    reader: &PodsReader,
    writers: PodsWriters,
    deps: PodsDeps<'_>,
) -> anyhow::Result<(PodsHandles, PodsTasks)> {
    let stores = deps.stores;
    let (events, changes) = event_stream(deps.client.clone(), EventMetrics::register(deps.metrics));
    let (pleg, runtime_state) = pleg::build(
        deps.client.clone(),
        deps.cache,
        changes,
        config.pleg,
        &deps.info.status,
        deps.features,
        PlegMetrics::new(deps.metrics, &stores.pod_cache),
    );
    let status_publisher = StatusPublisher::new(
        deps.runtime.clone(),
        deps.info.version.runtime_name.clone(),
        writers.status_manager,
        stores,
        PodStartMetrics::register(deps.metrics),
        deps.api.as_ref().map(|_| ClusterInputs {
            pod_manager: stores.pod_manager.clone(),
            host_ips: deps.host_ips,
        }),
    );
    let probes = ProberDeps {
        started_at: deps.started_at,
        exec: runtime_exec(deps.client),
        view: container_view(
            stores.pod_cache.clone(),
            stores.pod_manager.clone(),
            reader.statuses.clone(),
            stores.state_store.clone(),
            config.node_ip,
        ),
        results: deps.results,
        state_store: stores.state_store.clone(),
        events: stores.events.clone(),
    };
    let (status_publisher, probes) =
        (Arc::new(status_publisher), ProbeManager::new(probes, deps.metrics, deps.probe_metrics));
    let pod_sync = Arc::new(PodSync::new(
        stores,
        deps.runtime.clone(),
        status_publisher.clone(),
        probes.clone(),
        deps.volumes,
        deps.resources.cgroups.clone(),
        runtime_state.clone(),
    ));
    let delays = Delays { resync: config.sync_frequency, ..Delays::default() };
    let observer = PodSyncObserver::new(deps.metrics, deps.tracer);
    let workers = PodWorkers::new(pod_sync.clone(), Some(observer), delays);
    let pod_manager = stores.pod_manager.clone();
    pod_workers::metrics::register_working_pods(&workers, move || pod_manager.uids(), deps.metrics);
    let (sources, updates, sources_ready) =
        PodConfig::build(config.sources, stores.events.clone())?;
    let handles = PodsHandles {
        workers: workers.clone(),
        runtime: deps.runtime,
        probes,
        runtime_state,
        sources: sources_ready.reader(),
        missing_path: sources.missing_path(),
    };
    register_sizes(stores, &handles, status_publisher);
    let cluster = deps.api.and_then(|api| {
        cluster_writers(api, config.node_name, reader, &handles, stores, deps.metrics)
    });
    let sync_loop = SyncLoop {
        updates,
        sources: sources_ready,
        metrics: LoopMetrics::new(deps.metrics, &stores.pod_manager, &workers),
        pod_manager: deps.pod_manager,
        workers,
        cache: stores.pod_cache.clone(),
        results: stores.probe_results.clone(),
        pod_sync,
        admission: deps.admission,
        sync_loop_monitor: reader.sync_loop_monitor.clone(),
        resizes: Resizes::new(config.resize_rules, deps.resources.resize_metrics.clone()),
        housekeeping_schedule: HousekeepingSchedule::every(config.housekeeping_period),
        all_sources_seen: writers.all_sources_seen,
        runtime_recovered: pleg.recovered.clone(),
        removals: Default::default(),
        deferred: Default::default(),
        pending_admissions: Default::default(),
        awaits_settled: Default::default(),
        orphans_outside_runtime: Default::default(),
    };
    writers.handles.send_replace(Some(handles.clone()));
    let tasks = PodsTasks {
        sources,
        pleg,
        events,
        cluster,
        all_sources_seen: reader.all_sources_seen.clone(),
        sync_loop,
    };
    Ok((handles, tasks))
}

fn register_sizes(stores: &Stores, handles: &PodsHandles, status_publisher: Arc<StatusPublisher>) {
    let probes = handles.probes.clone();
    stores.sizes.add("probed_pods", move || probes.count());
    stores.sizes.add("status_inputs", move || status_publisher.count());
    let workers = handles.workers.clone();
    stores.sizes.add_all(move || workers.sizes());
    let runtime = handles.runtime.clone();
    stores.sizes.add_all(move || runtime.sizes());
}

/// Builds the tasks that write mirror pods and statuses to the API server.
fn cluster_writers(
    api: ApiServer,
    node_name: String,
    reader: &PodsReader,
    handles: &PodsHandles,
    stores: &Stores,
    metrics: &Metrics,
) -> Option<(MirrorPods, StatusWriter)> {
    let changes = stores.changes.as_ref()?;
    let mirror_pods = MirrorPods::new(MirrorDeps {
        api: api.clone(),
        node_name,
        node: stores.node_object.clone(),
        pod_manager: stores.pod_manager.clone(),
        name_in_use: {
            let workers = handles.workers.clone();
            Box::new(move |name, except| workers.is_name_in_use(name, except))
        },
        mirrors_known: {
            let sources = handles.sources.clone();
            Box::new(move || sources.delivered(PodSource::Api))
        },
        pods_known: {
            let sources = handles.sources.clone();
            Box::new(move || sources.all_complete())
        },
        changed: changes.mirrors.clone(),
    });
    let status_writer = StatusWriter::new(StatusWriterDeps {
        api,
        statuses: reader.statuses.clone(),
        pod_manager: stores.pod_manager.clone(),
        may_be_running: {
            let workers = handles.workers.clone();
            Box::new(move |uid| workers.could_have_running_containers(uid))
        },
        changed: changes.pods.clone(),
        metrics: metrics.clone(),
    });
    Some((mirror_pods, status_writer))
}

impl PodsTasks {
    /// Starts them, the sync loop last.
    pub fn start(self, tasks: &mut Tasks) {
        let shutdown = tasks.shutdown();
        self.sources.start(tasks);
        if let Some((mirrors, statuses)) = self.cluster {
            let mirrors = mirrors.run(self.all_sources_seen, shutdown.clone());
            tasks.spawn("mirror_pods", mirrors);
            tasks.spawn("status_writer", statuses.run(shutdown.clone()));
        }
        tasks.spawn_until_shutdown("cri.events", self.events.run());
        self.pleg.start(tasks);
        tasks.spawn("sync_loop", self.sync_loop.run(shutdown));
    }
}
