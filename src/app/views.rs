//! What the HTTP server shows, read from the boards at the moment of the request.

use super::{Stores, build, introspect::Live};
use crate::{
    config::{KUBERNETES_VERSION, KubeletConfig, logging::LogControl},
    model::{Pod, PodExt, PodUid},
    pods::pod_sync::remembered,
    pods::status::Statuses,
    runtime::logs::ContainerLogs,
    server::explain::{Overview, row},
    server::{
        Checkpoints, ExplainQuery, HttpMetrics, Known, LogParts, LogReaders, NewsView, PodsView,
        Process, StatsViews, StreamMetrics, StreamParts, Streams, Views,
    },
    state::pod_manager::PodManager,
    state::pod_state_store::PodStateStore,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PodStatus;
use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Where the node's programs log.
const NODE_LOGS: &str = "/var/log";

/// How long after the kubelet's start those who ask for its pods wait at most until it knows them.
const BEGINNING: Duration = Duration::from_secs(3);

/// A pod with the status that the board has of it.
type Shown = (Arc<Pod>, Option<Arc<PodStatus>>);

/// The views of the read-only port and the local socket.
pub(super) fn of(
    stores: &Stores,
    config: &KubeletConfig,
    log: &LogControl,
    stats: StatsViews,
    shutdown: CancellationToken,
) -> Views {
    let node_name = config.node_name.as_str();
    let (manager, statuses) = (stores.manager.reader(), stores.statuses.reader());
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
    let board = Board {
        manager,
        statuses,
        state_store: stores.state_store.clone(),
    };
    let teller = Teller {
        board: board.clone(),
        live: stores.live.clone(),
        node_name: node_name.into(),
        endpoint: stores.runtime.connection().endpoint().to_string(),
        news: news(stores),
    };
    let (overview, explain, news) = (teller.clone(), teller.clone(), teller.news);
    let pods: PodsView = Arc::new(move || board.shown());
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
        logs: ContainerLogs::new(stores.cache.clone(), build::log_path(config)),
        pods: pods.clone(),
        known: known.clone(),
        split_streams: config.gate_enabled("PodLogsQuerySplitStreams"),
        stall: stream_idle,
    };
    Views {
        pods,
        known,
        streams: Streams::new(streams, shutdown),
        logs: LogReaders::new(logs),
        running_pods: Arc::new(running),
        metrics: Arc::new(move || metrics.text()),
        sli_metrics: Arc::new(move || sli_metrics.text()),
        http: Some(HttpMetrics::new(&stores.metrics)),
        stats,
        overview: Arc::new(move || overview.overview()),
        explain: Arc::new(move |query| explain.explain(query)),
        news,
        recorded: Arc::new(recorded),
        events: stores.events.clone(),
        node_name: node_name.into(),
        process: process(stores, config, log),
        node_logs: NODE_LOGS.into(),
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

/// Until the runtime has been looked at and the sources have delivered, an answer would be that there
/// are no pods. Both may be away for long, so nobody waits for ever.
fn known_by(stores: &Stores) -> Known {
    let (all_delivered, deadline) = (stores.all_delivered.clone(), Instant::now() + BEGINNING);
    Arc::new(move || -> BoxFuture<'static, ()> {
        let mut all_delivered = all_delivered.subscribe();
        Box::pin(async move {
            let known = all_delivered.wait_for(|all_delivered| *all_delivered);
            let _ = tokio::time::timeout_at(deadline, known).await;
        })
    })
}

/// What is shown of pods.
#[derive(Clone)]
struct Board {
    manager: PodManager,
    statuses: Statuses,
    state_store: PodStateStore,
}

impl Board {
    /// Pods that are wanted, and those that no source has any more until they have ended, as upstream
    /// shows them. A pod of which the runtime cannot be asked yet is as it was when the kubelet before
    /// this one showed it.
    fn shown(&self) -> Vec<Shown> {
        let with_status = |pod: Arc<Pod>| {
            let uid = pod.uid();
            let before = || self.state_store.read(&uid, remembered).map(Arc::new);
            let status = self.statuses.get(&uid).or_else(before);
            (pod, status)
        };
        let mut shown: Vec<Shown> = self.manager.pods().into_iter().map(with_status).collect();
        let known: HashSet<PodUid> = shown.iter().map(|(pod, _)| pod.uid()).collect();
        let entries = self.statuses.all().into_iter();
        let ending = entries.filter(|entry| !known.contains(&entry.pod.uid()));
        shown.extend(ending.map(|entry| (entry.pod, Some(entry.status))));
        shown
    }
}

/// The version of what is shown changes with every status and every decision. It names this process,
/// so that a client notices that it talks to another one.
fn news(stores: &Stores) -> NewsView {
    let (statuses, pod_history) = (stores.statuses.reader(), stores.pod_history.clone());
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

/// Tells about pods.
#[derive(Clone)]
struct Teller {
    board: Board,
    live: Arc<OnceLock<Live>>,
    node_name: Arc<str>,
    endpoint: String,
    news: NewsView,
}

impl Teller {
    fn overview(&self) -> Overview {
        // Before the boards are read, so that what changes meanwhile is news.
        let (version, _) = (self.news)();
        let live = self.live.get();
        let ending = live.map(Live::ending).unwrap_or_default();
        let pods = self.board.shown();
        let line = |(pod, status): &Shown| row(pod, status.as_deref(), ending.contains(&pod.uid()));
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
            remarks: live.map_or_else(unreached, Live::remarks),
            pods,
        }
    }

    /// Of several pods of the name, one that a source wants comes before one that is on its way out.
    fn explain(&self, query: &ExplainQuery) -> Option<crate::server::explain::Explanation> {
        let mut pods = self.board.shown().into_iter();
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
