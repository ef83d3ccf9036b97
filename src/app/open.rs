//! Opens the stores: reads the state on disk and prepares the clients.

use super::{
    devices, images, sources,
    stores::{Stores, System, Writers},
};
use crate::{
    apiserver::ApiServer,
    base::{metrics::Metrics, otel::Tracer},
    config::{FeatureGate, KubeletConfig},
    cri::{CriConnection, CriMetrics, ImageClient, RuntimeClient, RuntimeEndpoint},
    host::HostMachine,
    model::AddressOrder,
    pods::status::StatusManager,
    pods::sync_loop::Heartbeat,
    state::{
        events::EventRecorder,
        node_object::NodeObjectWriter,
        node_pressure::NodePressureWriter,
        node_shutdown::NodeShutdownWriter,
        pod_cache,
        pod_history::PodHistory,
        pod_manager::{PodChanges, PodManagerWriter},
        pod_state_store::PodStateStore,
    },
    volumes::KubeletRoot,
};
use anyhow::Context as _;
use jiff::Timestamp;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// Reads the state on disk and prepares connections. Families of metrics go to `metrics`.
///
/// # Errors
/// A directory or file that cannot be used, or an endpoint that cannot be parsed.
pub(super) fn stores(
    config: &KubeletConfig,
    machine: HostMachine,
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

/// The clients of the runtime's two services, on one connection if they share an endpoint.
fn runtime_clients(
    config: &KubeletConfig,
    tracer: &Tracer,
    metrics: &Metrics,
) -> anyhow::Result<(RuntimeClient, ImageClient)> {
    let cri_metrics = CriMetrics::new(metrics);
    let timeout = config.runtime.request_timeout;
    let endpoint = RuntimeEndpoint::parse(&config.runtime.endpoint)
        .with_context(|| format!("containerRuntimeEndpoint {:?}", config.runtime.endpoint))?;
    let image_endpoint = RuntimeEndpoint::parse(&config.runtime.image_endpoint)
        .with_context(|| format!("imageServiceEndpoint {:?}", config.runtime.image_endpoint))?;
    let connect = |endpoint| CriConnection::traced(endpoint, timeout, &cri_metrics, tracer.clone());
    let connection = connect(endpoint.clone());
    let image_connection = if image_endpoint == endpoint {
        connection.clone()
    } else {
        connect(image_endpoint)
    };
    Ok((
        RuntimeClient::new(connection)
            .preferring_streams(config.is_on(FeatureGate::CriListStreaming)),
        ImageClient::new(image_connection),
    ))
}

/// The directory has its name since before the store had its own, and is read by newer kubelets.
fn pod_state_dir(config: &KubeletConfig) -> PathBuf {
    config.root_dir.join("journal")
}
