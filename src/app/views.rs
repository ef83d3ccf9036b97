//! Views of the stores for the HTTP server.

use super::{Stores, introspect::LiveComponents, logs};
use crate::{
    config::{FeatureGate, KUBERNETES_VERSION, KubeletConfig, logging::LogControl},
    model::PodExt,
    pods::pod_sync::{KnownPods, PodWithStatus},
    runtime::logs::ContainerLogs,
    server::explain::{Overview, row},
    server::{
        BeforeScrape, Checkpoints, ExplainQuery, Explanations, HttpMetrics, LogParts, LogReaders,
        NodeLogs, OverviewVersion, PodLists, PodsView, Process, Recorded, Scrapes, StatsViews,
        StreamMetrics, StreamParts, StreamTable, Views, ViewsReady,
    },
};
use futures::future::BoxFuture;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Where the node's programs log.
const NODE_LOGS: &str = "/var/log";
/// The program that reads the logs of the node's services.
const JOURNALCTL: &str = "journalctl";

/// Time after the kubelet's start during which requests for pods wait until the pods are known.
const STARTUP_WAIT: Duration = Duration::from_secs(3);

/// The views of the read-only port and the local socket.
pub(super) fn of(
    stores: &Stores,
    config: &KubeletConfig,
    log: &LogControl,
    stats: StatsViews,
    claims: BeforeScrape,
    shutdown: CancellationToken,
) -> Views {
    let node_name = config.node_name.as_str();
    let (manager, statuses) = (stores.pods.clone(), stores.statuses.clone());
    let cache = stores.cache.clone();
    let running = move || {
        let mut pods = cache.pods();
        pods.retain(|pod| pod.is_active());
        pods
    };
    let (metrics, sli_metrics) = (stores.metrics.clone(), stores.sli_metrics.clone());
    let state_store = stores.state_store.clone();
    let recorded = move || -> BoxFuture<'static, ()> {
        let state_store = state_store.clone();
        Box::pin(async move { state_store.flush().await })
    };
    let known = known_by(stores);
    let known_pods = KnownPods::new(manager, statuses, stores.state_store.clone());
    let reporter = PodReporter {
        pods: known_pods.clone(),
        live: stores.live.clone(),
        node_name: node_name.into(),
        endpoint: stores.runtime.connection().endpoint().to_string(),
        overview_version: overview_version(stores),
    };
    let (overview, explain, overview_version) = (
        reporter.clone(),
        reporter.clone(),
        reporter.overview_version,
    );
    let pods: PodsView = Arc::new(move || known_pods.list());
    let stream_idle = config.server.stream_idle;
    let streams = StreamParts {
        runtime: stores.runtime.clone(),
        metrics: StreamMetrics::new(&stores.metrics),
        cache: stores.cache.clone(),
        pods: pods.clone(),
        known: known.clone(),
        idle: stream_idle,
    };
    let logs = LogParts {
        logs: ContainerLogs::new(stores.cache.clone(), logs::path(config)),
        pods: pods.clone(),
        known: known.clone(),
        split_streams: config.is_on(FeatureGate::PodLogsQuerySplitStreams),
        stall: stream_idle,
    };
    let recorded: Recorded = Arc::new(recorded);
    let process = process(stores, config, log);
    Views {
        streams: StreamTable::new(streams, shutdown),
        logs: LogReaders::new(logs),
        scrapes: Scrapes::new(
            Arc::new(move || metrics.text()),
            Arc::new(move || sli_metrics.text()),
            claims,
        ),
        http: Some(HttpMetrics::new(&stores.metrics)),
        stats,
        explanations: Explanations {
            overview: Arc::new(move || overview.overview()),
            explain: Arc::new(move |query| explain.explain(query)),
            overview_version,
            recorded: recorded.clone(),
            version: process.version,
        },
        pods: PodLists {
            pods,
            running: Arc::new(running),
            ready: known,
            recorded,
        },
        events: stores.events.clone(),
        node_name: node_name.into(),
        process,
        node_logs: node_logs(config),
        posted: stores.posted.clone(),
        checkpoints: Checkpoints {
            directory: Arc::new(config.root_dir.join("checkpoints")),
        },
        machine: Arc::new(stores.machine.clone()),
    }
}

fn process(stores: &Stores, config: &KubeletConfig, log: &LogControl) -> Process {
    let (read, write) = (log.clone(), log.clone());
    Process {
        started: stores.started_at,
        version: env!("CARGO_PKG_VERSION"),
        behaves_as: KUBERNETES_VERSION,
        configuration: Arc::new(config.shown.clone()),
        flags: Arc::new(config.flags_shown.clone()),
        verbosity: Arc::new(move || read.verbosity()),
        set_verbosity: Arc::new(move |verbosity| write.set_verbosity(verbosity)),
    }
}

/// Until the runtime status is complete and the sources have delivered, a response would say that there are no
/// pods. Both may take long, so there is a deadline.
fn known_by(stores: &Stores) -> ViewsReady {
    let (all_delivered, deadline) = (stores.all_delivered.clone(), Instant::now() + STARTUP_WAIT);
    Arc::new(move || -> BoxFuture<'static, ()> {
        let mut all_delivered = all_delivered.clone();
        Box::pin(async move {
            let known = all_delivered.wait_for(|all_delivered| *all_delivered);
            let _ = tokio::time::timeout_at(deadline, known).await;
        })
    })
}

/// The version of the overview changes with every status and every entry of the history. It names this process,
/// so that a client notices a restart.
fn overview_version(stores: &Stores) -> OverviewVersion {
    let (statuses, pod_history) = (stores.statuses.clone(), stores.pod_history.clone());
    let started = stores.started_at.as_millisecond();
    Arc::new(move || {
        let (mut statuses, mut pod_history) = (statuses.subscribe(), pod_history.subscribe());
        let (of_statuses, of_decisions) = (
            *statuses.borrow_and_update(),
            *pod_history.borrow_and_update(),
        );
        let changed = async move {
            tokio::select! {
                _ = statuses.changed() => {}
                _ = pod_history.changed() => {}
            }
        };
        let version = format!("{started}-{of_statuses}-{of_decisions}");
        (version, Box::pin(changed))
    })
}

/// Explains pods.
#[derive(Clone)]
struct PodReporter {
    pods: KnownPods,
    live: Arc<OnceLock<LiveComponents>>,
    node_name: Arc<str>,
    endpoint: String,
    overview_version: OverviewVersion,
}

impl PodReporter {
    fn overview(&self) -> Overview {
        // Read before the stores, so that a change in between is not missed.
        let (version, _) = (self.overview_version)();
        let live = self.live.get();
        let terminating = live.map(LiveComponents::terminating).unwrap_or_default();
        let pods = self.pods.list();
        let line = |(pod, status): &PodWithStatus| {
            row(pod, status.as_deref(), terminating.contains(&pod.uid()))
        };
        let mut pods: Vec<_> = pods.iter().map(line).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        let unreached = || {
            vec![format!(
                "waiting for the container runtime at {}",
                self.endpoint
            )]
        };
        Overview {
            version,
            node: self.node_name.to_string(),
            remarks: live.map_or_else(unreached, LiveComponents::remarks),
            pods,
        }
    }

    /// Of several pods of the name, one that a source wants comes before one that is on its way out.
    fn explain(&self, query: &ExplainQuery) -> Option<crate::server::explain::Explanation> {
        let mut pods = self.pods.list().into_iter();
        let (pod, status) = pods.find(|(pod, _)| {
            pod.namespace() == query.namespace
                && pod.name() == query.name
                && query
                    .uid
                    .as_ref()
                    .is_none_or(|uid| *uid == *pod.uid().as_str())
        })?;
        Some(self.live.get()?.explain(&pod, status.as_deref()))
    }
}

fn node_logs(config: &KubeletConfig) -> NodeLogs {
    let files = NodeLogs::of(NODE_LOGS);
    if config.effective.enable_system_log_query == Some(true) {
        files.with_journal(JOURNALCTL)
    } else {
        files
    }
}
