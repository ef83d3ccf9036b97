//! The graph of parts, from the boards up to the loop.

use super::{
    Periods, cgroups, cluster_node, cluster_pods, devices, eviction, images, introspect::Live,
    logs, memory, node, probes, resource_managers, shutdown, sources, user_ids,
};
use crate::{
    apiserver::{
        ApiServer, claim::Claims, configmap_secret::Objects, runtime_class::RuntimeClasses,
        service::Services, token::Tokens, trust_bundle::TrustBundles,
    },
    base::Tasks,
    base::metrics::Metrics,
    base::otel::Tracer,
    config::KubeletConfig,
    cri::{
        CriConnection, CriMetrics, Endpoint, ImageClient, RuntimeClient, RuntimeFeatures,
        RuntimeInfo,
        events::{EventMetrics, event_stream},
        features_store,
    },
    host::{Machine, own_address},
    images::{credentials::Keyring, records::PullRecords},
    model::{AddressOrder, validation::sysctl_allowlist::Allowlist},
    node::eviction::Deps,
    node::reclaim::Reclaim,
    node::stats::Stats,
    pods::pleg::{self, PlegMetrics},
    pods::pod_config::{PodConfig, PostedPods},
    pods::pod_sync::{PodStartMetrics, PodSync, Remote, StatusPublisher},
    pods::pod_workers::{self, Delays, PodSyncObserver, PodWorkers},
    pods::prober::{self, ProbeManager},
    pods::status::StatusManager,
    pods::sync_loop::{Admission, Audits, Heartbeat, LoopMetrics, Resizes, SyncLoop},
    resources::{allocation::ResizeMetrics, pod_resources},
    runtime::handlers::{Hooks, runtime_exec},
    runtime::kuberuntime::{self, GcPolicy, KubeGenericRuntimeManager, SpecSettings, StartMetrics},
    server::HealthChecks,
    state::events::EventRecorder,
    state::node_object::{HostIps, NodeObjectWriter},
    state::node_pressure::NodePressureWriter,
    state::node_shutdown::NodeShutdownWriter,
    state::pod_cache::{self, PodCache, PodCacheWriter},
    state::pod_history::PodHistory,
    state::pod_manager::{PodChanges, PodManagerWriter},
    state::pod_state_store::PodStateStore,
    state::probe_results,
    volumes::{Cluster, HostMounter, KubeletRoot, VolumeManager},
};
use anyhow::Context as _;
use jiff::Timestamp;
use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::watch;

/// Everything that does not need the runtime to answer.
pub struct Stores {
    /// The API server, unless this is a node of its own.
    pub(super) api: Option<ApiServer>,
    /// The Node object that it has.
    pub(super) node_object: NodeObjectWriter,
    /// What the node is short of.
    pub(super) pressure: NodePressureWriter,
    /// Whether the machine is going down.
    pub(super) shutting_down: NodeShutdownWriter,
    pub(super) metrics: Metrics,
    pub(super) tracer: Tracer,
    /// Families of probes, which have a page of their own.
    pub(super) probe_metrics: Metrics,
    /// Families of health checks, which have a page of their own.
    pub(super) sli_metrics: Metrics,
    pub(super) events: EventRecorder,
    pub(super) pod_history: PodHistory,
    pub(super) runtime: RuntimeClient,
    pub(super) images: ImageClient,
    pub(super) state_store: PodStateStore,
    pub(super) root: KubeletRoot,
    pub(super) manager: PodManagerWriter,
    pub(super) statuses: StatusManager,
    /// What changed among pods, if there is an API server.
    pub(super) changes: Option<Arc<PodChanges>>,
    pub(super) cache: PodCache,
    pub(super) cache_writer: PodCacheWriter,
    pub(super) heartbeat: Heartbeat,
    pub(super) started_at: Timestamp,
    pub(super) machine: Machine,
    pub(super) keyring: Keyring,
    /// What exists once the runtime has answered.
    pub(super) live: Arc<OnceLock<Live>>,
    pub(super) records: PullRecords,
    /// Where those ask who read what containers have.
    pub(super) pod_resources: pod_resources::Socket,
    /// Where posted pods are kept, if they are taken.
    pub(super) posted: Option<PostedPods>,
    /// Whether every source has delivered.
    pub(super) all_delivered: watch::Sender<bool>,
    /// A directory in the place of the kernel's cgroups, for tests.
    pub(super) cgroup_dir: Option<PathBuf>,
    /// `/sys`, or a directory in its place, for tests.
    pub(super) sys_dir: PathBuf,
    /// `/proc` where processes are moved, or a directory in its place, for tests.
    pub(super) proc_dir: PathBuf,
    /// The cgroup of all pods, once it is there.
    pub(super) pods_cgroup: Arc<OnceLock<String>>,
}

impl Stores {
    /// Reads what is on disk and prepares connections. Families of metrics go to `metrics`.
    pub(super) fn open(
        config: &KubeletConfig,
        machine: Machine,
        api: Option<ApiServer>,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let root = KubeletRoot::create(&config.root_dir)
            .with_context(|| format!("cannot use root directory {}", config.root_dir.display()))?;
        let state_store = PodStateStore::open(journal_dir(config))?;
        let records = images::records(config)?;
        let posted = config
            .allow_posted_pods
            .then(|| sources::posted_pods(config));
        let posted = posted.transpose().context("cannot keep posted pods")?;
        let tracing = config.tracing.as_ref();
        let tracer = tracing.map(|settings| Tracer::new(settings, &config.node_name, &metrics));
        let tracer = tracer.transpose().context("tracing")?.unwrap_or_default();
        let (runtime, images) = runtime_clients(config, &tracer, &metrics)?;
        let (cache_writer, cache) =
            pod_cache::pod_cache_with(AddressOrder::of_node(&config.node_ips));
        let keyring = images::keyring(config, &metrics)?;
        let changes = api.as_ref().map(|_| Arc::<PodChanges>::default());
        Ok(Self {
            keyring,
            records,
            posted,
            api,
            node_object: NodeObjectWriter::default(),
            pressure: NodePressureWriter::default(),
            shutting_down: NodeShutdownWriter::default(),
            metrics,
            tracer,
            probe_metrics: Metrics::new(),
            sli_metrics: Metrics::new(),
            events: EventRecorder::new(),
            pod_history: PodHistory::new(),
            runtime,
            images,
            state_store,
            root,
            manager: PodManagerWriter::default().keeping(changes.clone()),
            statuses: StatusManager::marking(changes.as_ref().map(|changes| changes.pods.clone())),
            changes,
            cache,
            cache_writer,
            heartbeat: Heartbeat::new(),
            started_at: Timestamp::now(),
            machine,
            live: Arc::default(),
            pod_resources: devices::socket(config),
            all_delivered: watch::Sender::new(false),
            cgroup_dir: None,
            sys_dir: "/sys".into(),
            proc_dir: "/proc".into(),
            pods_cgroup: Arc::default(),
        })
    }

    /// The checks of the read-only port.
    pub(super) fn health_checks(&self, sync_frequency: Duration) -> HealthChecks {
        let heartbeat = self.heartbeat.clone();
        let limit = (2 * sync_frequency).max(Duration::from_secs(300));
        HealthChecks::ping()
            .with("log", || Ok(()))
            .with("syncloop", move || {
                let age = heartbeat.age();
                if age > limit {
                    Err(format!(
                        "the sync loop has not turned for {} s",
                        age.as_secs()
                    ))
                } else {
                    Ok(())
                }
            })
    }
}

/// The clients of the runtime's two services, on one connection if they share an endpoint.
fn runtime_clients(
    config: &KubeletConfig,
    tracer: &Tracer,
    metrics: &Metrics,
) -> anyhow::Result<(RuntimeClient, ImageClient)> {
    let cri_metrics = CriMetrics::new(metrics);
    let timeout = config.runtime.request_timeout;
    let endpoint = Endpoint::parse(&config.runtime.endpoint)
        .with_context(|| format!("containerRuntimeEndpoint {:?}", config.runtime.endpoint))?;
    let image_endpoint = Endpoint::parse(&config.runtime.image_endpoint)
        .with_context(|| format!("imageServiceEndpoint {:?}", config.runtime.image_endpoint))?;
    let connect = |endpoint| CriConnection::traced(endpoint, timeout, &cri_metrics, tracer.clone());
    let connection = connect(endpoint.clone());
    let image_connection = if image_endpoint == endpoint {
        connection.clone()
    } else {
        connect(image_endpoint)
    };
    Ok((
        RuntimeClient::new(connection),
        ImageClient::new(image_connection),
    ))
}

fn journal_dir(config: &KubeletConfig) -> PathBuf {
    config.root_dir.join("journal")
}

/// Builds what needs facts of the runtime, and starts every task.
pub(super) async fn start(
    config: &KubeletConfig,
    periods: Periods,
    stores: Stores,
    stats: Stats,
    info: &RuntimeInfo,
    tasks: &mut Tasks,
) -> anyhow::Result<PodWorkers> {
    images::recover_pulls(&stores).await;
    let sources = sources::config(config, &stores);
    let collector = images::collector(config, &stores);
    let node = Arc::new(node::facts(config, &stores.machine)?);
    let (features_writer, features) = features_store(RuntimeFeatures::of(&info.status));
    let devices = devices::open(config, &stores).await?;
    let user_namespaces = user_ids::namespaces(config, &stores.root).await?;
    let objects = Objects::new(config.local_objects_dir.clone(), stores.api.clone());
    let tokens = Tokens::new(stores.api.clone(), objects.changes());
    let services = Services::new(stores.api.clone(), objects.changes());
    let runtime_classes = RuntimeClasses::new(stores.api.clone(), objects.changes());
    if stores.api.is_some() {
        let known = config.root_dir.join("services.json");
        tasks.spawn("services", services.clone().run(known, tasks.shutdown()));
        let classes = runtime_classes.clone();
        tasks.spawn("runtime classes", classes.run(tasks.shutdown()));
    }
    let root = stores.root.clone();
    let cluster = Cluster {
        tokens,
        bundles: TrustBundles::new(stores.api.clone(), objects.changes()),
        claims: Claims::new(stores.api.clone(), objects.changes()),
        node: stores.node_object.reader(),
    };
    let volumes = VolumeManager::in_cluster(root, node.clone(), objects, cluster, HostMounter);
    let (results_writer, results) = probe_results::probe_results();
    let resources = resource_managers::start(config, &stores, tasks).await?;
    let managers = resources.clone();
    let allocations = resource_managers::allocations(config, tasks).await?;
    let resize_metrics = ResizeMetrics::new(&stores.metrics, &allocations);
    let resizes = Resizes::new(
        resource_managers::resize_rules(config, &stores),
        resize_metrics.clone(),
    );
    let admission = Admission {
        resources: resources.clone(),
        sysctls: Allowlist::new(
            &stores.machine.kernel_release,
            &config.containers.allowed_unsafe_sysctls,
        )?,
        app_armor: stores.machine.app_armor,
        pressure: stores.pressure.subscribe(),
        shutting_down: stores.shutting_down.subscribe(),
        features: features.clone(),
        node: stores.node_object.reader(),
    };
    let cgroups = cgroups::start(config, &stores, &resources, tasks).await?;
    let node_object = stores.node_object.reader();
    let host_ips = HostIps::new(node_object, &config.node_ips, own_address());
    let runtime = KubeGenericRuntimeManager::new(kuberuntime::Deps {
        runtime: stores.runtime.clone(),
        images: images::manager(config, &stores),
        cache: stores.cache.clone(),
        events: stores.events.clone(),
        pod_history: stores.pod_history.clone(),
        state_store: stores.state_store.clone(),
        results: results.clone(),
        hooks: Hooks::new(
            runtime_exec(stores.runtime.clone()),
            stores.events.clone(),
            &stores.metrics,
        ),
        volumes: volumes.clone(),
        user_namespaces,
        devices: devices.clone(),
        cgroups: cgroups.clone(),
        features,
        resources,
        allocations,
        resize_metrics,
        services,
        runtime_classes,
        metrics: StartMetrics::new(&stores.metrics),
        config: runtime_config(config),
        settings: SpecSettings {
            root: stores.root.clone(),
            pod_logs_dir: config.container_logs.pod_logs_dir.clone(),
            cluster_dns: config.dns.cluster_dns.clone(),
            cluster_domain: config.dns.cluster_domain.clone(),
            seccomp_default: config.containers.seccomp_default,
            cpu: cgroups::cpu_enforcement(config, &stores.machine),
            node: node.clone(),
            host_ips: host_ips.clone(),
        },
    });
    let writers = cluster_pods::Writers::of(&stores);
    let pods = stores.manager.reader();
    let remote = writers.as_ref().map(|_| Remote { pods, host_ips });
    let (stream, hints) = event_stream(stores.runtime.clone(), EventMetrics::new(&stores.metrics));
    let (pleg, state) = pleg::build(
        stores.runtime.clone(),
        stores.cache_writer,
        hints,
        periods.pleg,
        &info.status,
        features_writer,
        PlegMetrics::new(&stores.metrics, &stores.cache),
    );
    let view = probes::container_view(
        stores.cache.clone(),
        stores.manager.reader(),
        stores.statuses.reader(),
        node.address().into(),
    );
    let probe_parts = prober::Parts {
        started_at: stores.started_at,
        exec: runtime_exec(stores.runtime.clone()),
        view,
        results: results_writer,
        state_store: stores.state_store.clone(),
        events: stores.events.clone(),
    };
    let probe_manager = ProbeManager::new(probe_parts, &stores.metrics, &stores.probe_metrics);
    let statuses_board = stores.statuses.reader();
    let statuses = StatusPublisher::new(
        runtime.clone(),
        info.version.runtime_name.clone(),
        stores.statuses,
        stores.cache.clone(),
        results.clone(),
        stores.state_store.clone(),
    );
    let starts = PodStartMetrics::new(&stores.metrics);
    let statuses = Arc::new(statuses.timing(starts).in_cluster(remote));
    let reclaim = Arc::new(Reclaim {
        collector,
        runtime: runtime.clone(),
        cache: stores.cache.clone(),
        events: stores.events.clone(),
        node_name: config.node_name.clone(),
        tracer: stores.tracer.clone(),
    });
    let pod_sync = Arc::new(PodSync {
        runtime: runtime.clone(),
        cache: stores.cache.clone(),
        statuses,
        probes: probe_manager.clone(),
        volumes,
        cgroups,
        state_store: stores.state_store.clone(),
        events: stores.events.clone(),
        pod_history: stores.pod_history.clone(),
        state: state.clone(),
    });
    let cluster_node = cluster_node::Parts {
        api: stores.api.clone(),
        node_object: stores.node_object,
        events: stores.events.clone(),
        runtime: stores.runtime.clone(),
        images: stores.images.clone(),
        state: state.clone(),
        devices: devices.plugins.clone(),
        pressure: stores.pressure.subscribe(),
        shutting_down: stores.shutting_down.subscribe(),
        machine: stores.machine.clone(),
        metrics: stores.metrics.clone(),
    };
    cluster_node::start(config, cluster_node, info, tasks).await?;
    let rotation = logs::rotation(config, &stores.runtime, &stores.cache);
    let delays = Delays {
        resync: config.sync_frequency,
        ..Delays::default()
    };
    let observer = PodSyncObserver::new(&stores.metrics, &stores.tracer);
    let workers = PodWorkers::new(pod_sync.clone(), Some(observer), delays);
    let desired = stores.manager.reader();
    let of_pods = (&desired, &workers, &devices);
    devices::start(
        config,
        of_pods,
        managers,
        stores.pod_resources,
        &stores.metrics,
        tasks,
    );
    let loop_metrics = LoopMetrics::new(&stores.metrics, &desired, &workers);
    let wanted = desired.clone();
    pod_workers::metrics::count(&workers, move || wanted.uids(), &stores.metrics);
    let live = Live {
        workers: workers.clone(),
        runtime,
        probes: probe_manager,
        results: results.clone(),
        cache: stores.cache.clone(),
        state,
        pod_history: stores.pod_history.clone(),
        events: stores.events.clone(),
        statuses: pod_sync.statuses.clone(),
        volumes: pod_sync.volumes.clone(),
    };
    let _ = stores.live.set(live);
    let (updates, sources) = PodConfig::start(sources, stores.events.clone(), tasks)?;
    let sync_loop = SyncLoop {
        updates,
        sources,
        manager: stores.manager,
        workers: workers.clone(),
        cache: stores.cache,
        results,
        pod_sync,
        admission,
        heartbeat: stores.heartbeat,
        metrics: loop_metrics,
        cleaning: HashSet::new(),
        held: HashSet::new(),
        waiting: HashMap::new(),
        resizes,
        cleaned: Arc::default(),
        orphaned_logs: Arc::default(),
        audits: Audits::every(periods.audit),
        all_delivered: stores.all_delivered,
        runtime_returned: pleg.returned.clone(),
    };
    let (shutdown, ready) = (tasks.shutdown(), sync_loop.sources.reader());
    if let Some(writers) = writers {
        writers.start(config, &workers, &ready, tasks);
    }
    let deps = Deps {
        root: config.root_dir.clone(),
        cgroup_v2: stores.machine.cgroup_v2,
        pods_cgroup: stores.pods_cgroup.get().cloned(),
        reclaim: reclaim.clone(),
        stats,
        sources: ready.clone(),
        pods: desired,
        workers: workers.clone(),
        events: stores.events,
        pressure: stores.pressure,
    };
    let going_down = shutdown::Parts {
        pods: deps.pods.clone(),
        workers: workers.clone(),
        events: deps.events.clone(),
        shutting_down: stores.shutting_down,
    };
    shutdown::start(config, going_down, &stores.metrics, tasks);
    eviction::start(config, deps, &stores.metrics, tasks);
    if !config.image_gc.is_off() {
        tasks.spawn("reclaim", reclaim.run(ready, shutdown.clone()));
    }
    tasks.spawn("memory", memory::run(statuses_board, shutdown.clone()));
    tasks.spawn("journal", stores.state_store.run(shutdown.clone()));
    tasks.spawn("cri.events", stream.run(shutdown.clone()));
    pleg.start(tasks);
    if let Some(rotation) = rotation {
        tasks.spawn("logs.rotation", rotation.run(shutdown.clone()));
    }
    tasks.spawn("sync_loop", sync_loop.run(shutdown));
    Ok(workers)
}

fn runtime_config(config: &KubeletConfig) -> kuberuntime::Config {
    let containers = &config.containers;
    kuberuntime::Config {
        max_restart_back_off: containers.max_restart_back_off,
        gc_policy: GcPolicy {
            min_age: containers.min_dead_age,
            max_per_container: containers.max_dead_per_container.map(|n| n as usize),
            max_containers: containers.max_dead_total.map(|n| n as usize),
        },
        resolv_conf: config.dns.resolv_conf.clone(),
        log_links: Some(logs::links(&config.container_logs.pod_logs_dir)),
    }
}
