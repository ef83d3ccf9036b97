//! Builds the server area: the handler of the ports, on top of the stores.

use super::PortHandler;
use super::handlers::checkpoint::Checkpoints;
use super::handlers::container_logs::{LogDeps, LogReaders};
use super::handlers::health::HealthChecks;
use super::handlers::node_logs::NodeLogs;
use super::handlers::pod_explainer::PodExplainer;
use super::handlers::pods::PodLists;
use super::handlers::process::Process;
use super::handlers::scrapes::{ScrapeHook, Scrapes};
use super::handlers::stats::StatsReaders;
use super::known_pods::KnownPods;
use super::pods_api::{Changes, PodsApi};
use super::router::RouteGroup;
use super::router::dispatcher::RouteHandlers;
use super::router::metrics::HttpMetrics;
use super::streaming::{StreamDeps, StreamMetrics, StreamTable};
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use crate::cri::RuntimeClient;
use crate::host::HostMachine;
use crate::node::stats::{ClaimMeter, ClaimVolumes, Stats};
use crate::pods::PodsReader;
use crate::runtime::logs::{ContainerLogs, LogPathFn};
use crate::state::Stores;
use crate::volumes::VolumeManager;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The directory that `/logs/` serves.
const NODE_LOGS: &str = "/var/log";
/// The program that reads the logs of the node's services.
const JOURNALCTL: &str = "journalctl";

/// The settings of the server.
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// The directory for checkpoints of containers.
    pub checkpoints_dir: PathBuf,
    /// Returns the path of a container's log.
    pub log_path: LogPathFn,
    /// `PodLogsQuerySplitStreams`: whether stdout and stderr can be requested separately.
    pub split_log_streams: bool,
    /// Whether the logs of the node's services are served.
    pub log_query: bool,
    /// Idle timeout of streams (exec, attach, port-forward); zero means none.
    pub stream_idle: Duration,
    /// Groups of routes that are disabled.
    pub disabled: Vec<RouteGroup>,
}

/// The dependencies of the server.
pub struct ServerDeps<'a> {
    /// The stores.
    pub stores: &'a Stores,
    /// The stores of pods.
    pub pods: &'a PodsReader,
    /// The runtime, for streaming requests and checkpoints.
    pub runtime: &'a RuntimeClient,
    /// The volumes of pods.
    pub volumes: &'a VolumeManager,
    /// The volumes of claims, for their metrics.
    pub claims: ClaimVolumes,
    /// Resource usage of the node and of pods.
    pub stats: &'a Stats,
    /// The machine.
    pub machine: &'a HostMachine,
    /// The process: configuration, flags, version and log verbosity.
    pub process: Process,
    /// The metrics of `/metrics`.
    pub metrics: &'a Metrics,
    /// The metrics of `/metrics/probes`.
    pub probe_metrics: &'a Metrics,
    /// The metrics of `/metrics/slis`.
    pub sli_metrics: &'a Metrics,
    /// Records the spans of requests.
    pub tracer: &'a Tracer,
}

/// Builds the unauthenticated handler of the read-only port, and the table of streams, which end after `shutdown`.
/// `Ports::serve` makes the handlers of the main port and of the local socket from that handler.
pub fn build(
    config: Config,
    checks: HealthChecks,
    deps: ServerDeps<'_>,
    shutdown: CancellationToken,
) -> (PortHandler, StreamTable) {
    let node_name: Arc<str> = config.node_name.into();
    let known = known_pods(deps.stores, deps.pods);
    let streams = StreamDeps {
        runtime: deps.runtime.clone(),
        metrics: StreamMetrics::register(deps.metrics),
        cache: deps.stores.pod_cache.clone(),
        known: known.clone(),
        idle: config.stream_idle,
    };
    let logs = LogDeps {
        logs: ContainerLogs::new(deps.stores.pod_cache.clone(), config.log_path),
        known: known.clone(),
        split_streams: config.split_log_streams,
        write_timeout: config.stream_idle,
    };
    let explainer = PodExplainer::new(
        deps.stores.clone(),
        deps.pods.clone(),
        deps.volumes.clone(),
        node_name.clone(),
        deps.runtime.connection().endpoint().to_string(),
        deps.process.started,
    );
    let node_logs = NodeLogs::of(NODE_LOGS);
    let (metrics, sli_metrics) = (deps.metrics.clone(), deps.sli_metrics.clone());
    let route_handlers = RouteHandlers {
        streams: StreamTable::new(streams, shutdown),
        logs: LogReaders::new(logs),
        scrapes: Scrapes::new(
            Arc::new(move || metrics.text()),
            Arc::new(move || sli_metrics.text()),
            measure_claim_volumes(deps.claims, deps.metrics),
        ),
        http_metrics: Some(HttpMetrics::register(deps.metrics)),
        stats: StatsReaders::of(deps.stats, deps.probe_metrics.clone()),
        explanations: explainer.explanations(deps.process.version),
        pods: PodLists { known, cache: deps.stores.pod_cache.clone() },
        events: deps.stores.events.clone(),
        node_name,
        process: deps.process,
        node_logs: if config.log_query { node_logs.with_journal(JOURNALCTL) } else { node_logs },
        posted: deps.pods.posted.clone(),
        checkpoints: Checkpoints { directory: Arc::new(config.checkpoints_dir) },
        machine: Arc::new(deps.machine.clone()),
    };
    let streams = route_handlers.streams.clone();
    let handler = PortHandler::read_only(checks, route_handlers, config.disabled);
    (handler.traced(deps.tracer.clone()), streams)
}

/// Builds the Pods API, which ends with `shutdown`.
///
/// # Errors
/// The compiled-in protobuf descriptors cannot be decoded.
pub fn pods_api(
    stores: &Stores,
    pods: &PodsReader,
    shutdown: CancellationToken,
) -> anyhow::Result<PodsApi> {
    let changes =
        Changes { pods: stores.pod_manager.subscribe(), statuses: pods.statuses.subscribe() };
    PodsApi::new(known_pods(stores, pods), changes, shutdown)
}

fn known_pods(stores: &Stores, pods: &PodsReader) -> KnownPods {
    let seen = pods.all_sources_seen.clone();
    KnownPods::new(pods.lister.clone(), seen, stores.state_store.clone())
}

/// Measures the volumes of claims before each scrape of `/metrics`.
fn measure_claim_volumes(volumes: ClaimVolumes, metrics: &Metrics) -> ScrapeHook {
    let meter = ClaimMeter::new(volumes, metrics);
    Arc::new(move || {
        let meter = meter.clone();
        Box::pin(async move { meter.measure().await })
    })
}
