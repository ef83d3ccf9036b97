//! State and clients that exist before the runtime has answered.

use super::{devices, images, introspect::Live, sources};
use crate::{
    apiserver::ApiServer,
    base::{metrics::Metrics, otel::Tracer},
    config::{Gate, KubeletConfig},
    cri::{CriConnection, CriMetrics, Endpoint, ImageClient, RuntimeClient},
    host::{Machine, SystemBus},
    images::{credentials::Keyring, records::PullRecords},
    model::AddressOrder,
    pods::pod_config::PostedPods,
    pods::status::{StatusManager, Statuses},
    pods::sync_loop::Heartbeat,
    resources::pod_resources,
    server::HealthChecks,
    state::{
        events::EventRecorder,
        node_object::{NodeObject, NodeObjectWriter},
        node_pressure::{NodePressureReader, NodePressureWriter},
        node_shutdown::{NodeShutdownReader, NodeShutdownWriter},
        pod_cache::{self, PodCache, PodCacheWriter},
        pod_history::PodHistory,
        pod_manager::{PodChanges, PodManager, PodManagerWriter},
        pod_state_store::PodStateStore,
    },
    volumes::KubeletRoot,
};
use anyhow::Context as _;
use jiff::Timestamp;
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::watch;

/// What every component may read, and the clients it may use.
pub(super) struct Stores {
    /// The API server, unless this is a standalone node.
    pub(super) api: Option<ApiServer>,
    /// The Node object of the API server.
    pub(super) node_object: NodeObject,
    /// The resources that the node is short of.
    pub(super) pressure: NodePressureReader,
    /// Whether the machine is shutting down.
    pub(super) shutting_down: NodeShutdownReader,
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
    /// Desired pods.
    pub(super) pods: PodManager,
    pub(super) statuses: Statuses,
    /// Pods that changed, if there is an API server to report them to.
    pub(super) changes: Option<Arc<PodChanges>>,
    pub(super) cache: PodCache,
    pub(super) heartbeat: Heartbeat,
    pub(super) started_at: Timestamp,
    pub(super) machine: Machine,
    pub(super) keyring: Keyring,
    /// Components that exist once the runtime has answered.
    pub(super) live: Arc<OnceLock<Live>>,
    pub(super) records: PullRecords,
    /// Pods that clients posted, if that is allowed.
    pub(super) posted: Option<PostedPods>,
    /// Whether every source has delivered.
    pub(super) all_delivered: watch::Receiver<bool>,
    pub(super) system: System,
    /// The cgroup of all pods, once it exists.
    pub(super) pods_cgroup: Arc<OnceLock<String>>,
}

/// The writing side of the stores. Each has one owner, which [`super::start`] chooses.
pub(super) struct Writers {
    pub(super) node_object: NodeObjectWriter,
    pub(super) pressure: NodePressureWriter,
    pub(super) shutting_down: NodeShutdownWriter,
    pub(super) pods: PodManagerWriter,
    pub(super) statuses: StatusManager,
    pub(super) cache: PodCacheWriter,
    pub(super) all_delivered: watch::Sender<bool>,
    /// The socket of the PodResources API, which listens already.
    pub(super) pod_resources: pod_resources::Socket,
}

/// What of the machine tests replace: directories of the kernel's file systems, and the message bus.
pub(super) struct System {
    /// A directory of plain directories instead of the kernel's cgroups.
    pub(super) cgroups: Option<PathBuf>,
    /// `/sys`.
    pub(super) sys: PathBuf,
    /// `/proc`, for processes that are moved between cgroups.
    pub(super) proc: PathBuf,
    /// Where systemd and logind are.
    pub(super) bus: Arc<SystemBus>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            cgroups: None,
            sys: "/sys".into(),
            proc: "/proc".into(),
            bus: Arc::default(),
        }
    }
}

/// Reads the state on disk and prepares connections. Families of metrics go to `metrics`.
///
/// # Errors
/// A directory or file that cannot be used, or an endpoint that cannot be parsed.
pub(super) fn open(
    config: &KubeletConfig,
    machine: Machine,
    api: Option<ApiServer>,
    metrics: Metrics,
) -> anyhow::Result<(Stores, Writers)> {
    let root = KubeletRoot::create(&config.root_dir)
        .with_context(|| format!("cannot use root directory {}", config.root_dir.display()))?;
    let state_store = PodStateStore::open(pod_state_dir(config))?;
    let records = images::records(config)?;
    let posted = config
        .allow_posted_pods
        .then(|| sources::posted_pods(config));
    let posted = posted.transpose().context("cannot keep posted pods")?;
    let tracing = config.tracing.as_ref();
    let tracer = tracing.map(|settings| Tracer::new(settings, &config.node_name, &metrics));
    let tracer = tracer.transpose().context("tracing")?.unwrap_or_default();
    let (runtime, images) = runtime_clients(config, &tracer, &metrics)?;
    let (cache_writer, cache) = pod_cache::pod_cache_with(AddressOrder::new(config.ipv6_first));
    let keyring = images::keyring(config, api.clone(), &metrics)?;
    let changes = api.as_ref().map(|_| Arc::<PodChanges>::default());
    let writers = Writers {
        node_object: NodeObjectWriter::default(),
        pressure: NodePressureWriter::default(),
        shutting_down: NodeShutdownWriter::default(),
        pods: PodManagerWriter::default().keeping(changes.clone()),
        statuses: StatusManager::marking(changes.as_ref().map(|changes| changes.pods.clone())),
        cache: cache_writer,
        all_delivered: watch::Sender::new(false),
        pod_resources: devices::socket(config),
    };
    let stores = Stores {
        api,
        node_object: writers.node_object.reader(),
        pressure: writers.pressure.subscribe(),
        shutting_down: writers.shutting_down.subscribe(),
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
        pods: writers.pods.reader(),
        statuses: writers.statuses.reader(),
        changes,
        cache,
        heartbeat: Heartbeat::new(),
        started_at: Timestamp::now(),
        machine,
        keyring,
        live: Arc::default(),
        records,
        posted,
        all_delivered: writers.all_delivered.subscribe(),
        system: System::default(),
        pods_cgroup: Arc::default(),
    };
    Ok((stores, writers))
}

impl Stores {
    /// The checks of the read-only port.
    pub(super) fn health_checks(&self, sync_frequency: Duration) -> HealthChecks {
        let heartbeat = self.heartbeat.clone();
        let limit = (2 * sync_frequency).max(Duration::from_secs(300));
        HealthChecks::ping()
            .with("log", || Ok(()))
            .with("syncloop", move || {
                if heartbeat.age() > limit {
                    Err("sync Loop took longer than expected".to_owned())
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
        RuntimeClient::new(connection).preferring_streams(config.is_on(Gate::CriListStreaming)),
        ImageClient::new(image_connection),
    ))
}

/// The directory has its name since before the store had its own, and is read by newer kubelets.
fn pod_state_dir(config: &KubeletConfig) -> PathBuf {
    config.root_dir.join("journal")
}
