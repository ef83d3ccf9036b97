//! Composition root: builds the components that need the runtime and starts their tasks.

use super::{
    Periods, Stores, Writers, cluster_node, cluster_objects, cluster_pods,
    container_resources::{self, ContainerResourceManagers},
    devices, eviction, images,
    introspect::LiveComponents,
    logs, memory, node, probes, resource_managers, runtime, shutdown, sources,
};
use crate::{
    base::Tasks,
    config::KubeletConfig,
    cri::{
        FeaturesReader, RuntimeFeatures, RuntimeInfo,
        events::{EventMetrics, event_stream},
        features_store,
    },
    host::KERNEL_LOG,
    model::validation::sysctl_allowlist::Allowlist,
    node::{eviction::EvictionDeps, oom, reclaim::Reclaim, stats::Stats},
    pods::{
        pleg::{self, PlegMetrics},
        pod_config::PodConfig,
        pod_sync::{ClusterInputs, PodStartMetrics, PodSync, StatusPublisher},
        pod_workers::{self, Delays, PodSyncObserver, PodWorkers},
        sync_loop::{self, LoopMetrics, PodAdmission, Resizes, SyncLoop},
    },
    runtime::kuberuntime::KubeGenericRuntimeManager,
    state::probe_results,
};
use std::sync::Arc;

/// Builds everything and starts every task.
///
/// # Errors
/// State that cannot be read, and settings that this machine or the runtime rules out.
pub(super) async fn start(
    config: &KubeletConfig,
    periods: Periods,
    stores: &Stores,
    writers: Writers,
    stats: Stats,
    info: &RuntimeInfo,
    tasks: &mut Tasks,
) -> anyhow::Result<PodWorkers> {
    images::recover_pulls(stores).await;
    let node = Arc::new(node::facts(config, &stores.machine)?);
    let (features_writer, features) = features_store(RuntimeFeatures::of(&info.status));
    let cluster = cluster_objects::start(config, stores, node.clone(), tasks);
    let resources = container_resources::start(config, stores, tasks).await?;
    let admission = admission(config, stores, &resources, features.clone()).await?;
    let (results_writer, results) = probe_results::probe_results();
    let runtime = runtime::manager(
        config,
        stores,
        node.clone(),
        &cluster,
        &resources,
        features,
        results.clone(),
    );
    let (event_stream, hints) =
        event_stream(stores.runtime.clone(), EventMetrics::new(&stores.metrics));
    let (pleg, state) = pleg::build(
        stores.runtime.clone(),
        writers.cache,
        hints,
        periods.pleg,
        &info.status,
        features_writer,
        PlegMetrics::new(&stores.metrics, &stores.cache),
    );
    let statuses = StatusPublisher::new(
        runtime.clone(),
        info.version.runtime_name.clone(),
        writers.statuses,
        stores.cache.clone(),
        results.clone(),
        stores.state_store.clone(),
    );
    let statuses = statuses.timing(PodStartMetrics::new(&stores.metrics));
    let statuses = statuses.in_cluster(stores.api.as_ref().map(|_| ClusterInputs {
        pods: stores.pods.clone(),
        host_ips: cluster.host_ips,
    }));
    let pod_sync = Arc::new(PodSync {
        runtime: runtime.clone(),
        cache: stores.cache.clone(),
        status_publisher: Arc::new(statuses),
        probes: probes::manager(stores, node.address().into(), results_writer),
        volumes: cluster.volumes,
        cgroups: resources.cgroups,
        state_store: stores.state_store.clone(),
        events: stores.events.clone(),
        pod_history: stores.pod_history.clone(),
        state: state.clone(),
    });
    let workers = workers(config, stores, &pod_sync);
    let _ = stores.live.set(LiveComponents {
        workers: workers.clone(),
        runtime: runtime.clone(),
        probes: pod_sync.probes.clone(),
        results: results.clone(),
        cache: stores.cache.clone(),
        state: state.clone(),
        pod_history: stores.pod_history.clone(),
        events: stores.events.clone(),
        statuses: pod_sync.status_publisher.clone(),
        volumes: pod_sync.volumes.clone(),
    });

    let plugins = resources.devices.plugins.clone();
    cluster_node::start(
        config,
        stores,
        writers.node_object,
        state,
        plugins,
        info,
        tasks,
    )
    .await?;
    devices::start(
        config,
        stores,
        &workers,
        resources.devices,
        resources.managers,
        writers.pod_resources,
        tasks,
    );
    let pod_sources = sources::config(config, stores);
    let (updates, sources) = PodConfig::start(pod_sources, stores.events.clone(), tasks)?;
    let sources_ready = sources.reader();
    cluster_pods::start(config, stores, &workers, &sources_ready, tasks);
    tasks.spawn("node.oom", {
        let (name, events) = (config.node_name.clone(), stores.events.clone());
        oom::run(KERNEL_LOG.into(), name, events, tasks.shutdown())
    });
    shutdown::start(config, stores, &workers, writers.shutting_down, tasks);
    let reclaim = reclaim(config, stores, runtime);
    let eviction = EvictionDeps {
        root: config.root_dir.clone(),
        cgroup_v2: stores.machine.cgroup_v2,
        pods_cgroup: stores.pods_cgroup.get().cloned(),
        reclaim: reclaim.clone(),
        stats,
        sources: sources_ready.clone(),
        pods: stores.pods.clone(),
        workers: workers.clone(),
        events: stores.events.clone(),
        pressure: writers.pressure,
    };
    eviction::start(config, eviction, &stores.metrics, tasks);
    let shutdown = tasks.shutdown();
    if !config.image_gc.is_off() {
        tasks.spawn("reclaim", reclaim.run(sources_ready, shutdown.clone()));
    }
    start_upkeep(config, stores, tasks);
    tasks.spawn("cri.events", event_stream.run(shutdown.clone()));
    let runtime_returned = pleg.returned.clone();
    pleg.start(tasks);
    let resize_rules = resource_managers::resize_rules(config, stores);
    let sync_loop = SyncLoop::new(sync_loop::SyncLoopDeps {
        updates,
        sources,
        metrics: LoopMetrics::new(&stores.metrics, &stores.pods, &workers),
        manager: writers.pods,
        workers: workers.clone(),
        cache: stores.cache.clone(),
        results,
        pod_sync,
        admission,
        heartbeat: stores.heartbeat.clone(),
        resizes: Resizes::new(resize_rules, resources.resize_metrics),
        housekeeping_period: periods.housekeeping,
        all_delivered: writers.all_delivered,
        runtime_returned,
    });
    tasks.spawn("sync_loop", sync_loop.run(shutdown));
    Ok(workers)
}

/// The pod workers, with their metrics.
fn workers(config: &KubeletConfig, stores: &Stores, pod_sync: &Arc<PodSync>) -> PodWorkers {
    let delays = Delays {
        resync: config.sync_frequency,
        ..Delays::default()
    };
    let observer = PodSyncObserver::new(&stores.metrics, &stores.tracer);
    let workers = PodWorkers::new(pod_sync.clone(), Some(observer), delays);
    let desired = stores.pods.clone();
    pod_workers::metrics::count(&workers, move || desired.uids(), &stores.metrics);
    workers
}

fn reclaim(
    config: &KubeletConfig,
    stores: &Stores,
    runtime: KubeGenericRuntimeManager,
) -> Arc<Reclaim> {
    Arc::new(Reclaim {
        collector: images::collector(config, stores),
        runtime,
        cache: stores.cache.clone(),
        events: stores.events.clone(),
        node_name: config.node_name.clone(),
        tracer: stores.tracer.clone(),
    })
}

/// Starts the tasks that save the pod state store, return memory to the kernel and rotate logs.
fn start_upkeep(config: &KubeletConfig, stores: &Stores, tasks: &mut Tasks) {
    let state_store = stores.state_store.clone();
    tasks.spawn("pod_state_store", state_store.run(tasks.shutdown()));
    let statuses = stores.statuses.clone();
    tasks.spawn("memory", memory::run(statuses, tasks.shutdown()));
    if let Some(rotation) = logs::rotation(config, &stores.runtime, &stores.cache) {
        tasks.spawn("logs.rotation", rotation.run(tasks.shutdown()));
    }
}

async fn admission(
    config: &KubeletConfig,
    stores: &Stores,
    resources: &ContainerResourceManagers,
    features: FeaturesReader,
) -> anyhow::Result<PodAdmission> {
    let unsafe_sysctls = &config.containers.allowed_unsafe_sysctls;
    Ok(PodAdmission {
        resources: resources.managers.clone(),
        sysctls: Allowlist::new(&stores.machine.kernel_release, unsafe_sysctls)?,
        app_armor: stores.machine.app_armor,
        pressure: stores.pressure.clone(),
        shutting_down: stores.shutting_down.clone(),
        features,
        standalone: stores.api.is_none(),
        node: cluster_node::for_admission(config, stores).await?,
    })
}
