//! What answers are made of: a way to look at each board, none of which the server owns.

use super::{
    checkpoint::Checkpoints, container_logs::LogReaders, metrics::HttpMetrics, process::Process,
    routes::ExplainQuery, stats::StatsViews, streaming::Streams,
};
use crate::{
    host::Machine,
    model::{Pod, PodStatus},
    pods::pod_config::PostedPods,
    server::explain::{Explanation, Overview},
    state::events::EventRecorder,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use std::{path::PathBuf, sync::Arc};

/// Every known pod with its current status, where it has one of its own.
pub type PodsView = Arc<dyn Fn() -> Vec<(Arc<Pod>, Option<Arc<v1::PodStatus>>)> + Send + Sync>;
/// The runtime's picture of every pod that it has anything of.
pub type RunningPodsView = Arc<dyn Fn() -> Vec<Arc<PodStatus>> + Send + Sync>;
/// The metrics as text in Prometheus' exposition format 0.0.4.
pub type MetricsView = Arc<dyn Fn() -> String + Send + Sync>;

/// Every known pod in a line.
pub type OverviewView = Arc<dyn Fn() -> Overview + Send + Sync>;
/// Why one pod is as it is; `None` when it is not known.
pub type ExplainView = Arc<dyn Fn(&ExplainQuery) -> Option<Explanation> + Send + Sync>;
/// The version of what the overview shows, and a future that ends when it changes after this call.
pub type NewsView = Arc<dyn Fn() -> (String, BoxFuture<'static, ()>) + Send + Sync>;

/// Ends when it is known which pods there are, or when that takes too long.
pub type Known = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Ends when the facts behind what is shown are on disk.
pub type Recorded = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// What the read-only port shows.
#[derive(Clone)]
pub struct Views {
    /// For `/pods`.
    pub pods: PodsView,
    /// For `/runningpods/`.
    pub running_pods: RunningPodsView,
    /// What those who ask for either wait for.
    pub known: Known,
    /// For `/metrics`.
    pub metrics: MetricsView,
    /// For `/metrics/slis`.
    pub sli_metrics: MetricsView,
    /// Counts requests, if they are counted.
    pub http: Option<HttpMetrics>,
    /// For `/stats/summary`, `/metrics/cadvisor`, `/metrics/resource` and `/metrics/probes`.
    pub stats: StatsViews,
    /// Waits until what the views show would be shown again after a restart.
    pub recorded: Recorded,
    /// For `/explain`.
    pub overview: OverviewView,
    /// For `/explain/<namespace>/<pod>`.
    pub explain: ExplainView,
    /// For those who wait for something to change.
    pub news: NewsView,
    /// For `/events`.
    pub events: EventRecorder,
    /// The node's name, which reports the events.
    pub node_name: Arc<str>,
    /// For `/configz`, `/flagz`, `/statusz` and `/debug/flags/v`.
    pub process: Process,
    /// For `/exec`, `/attach`, `/run` and `/portForward`.
    pub streams: Streams,
    /// For `/containerLogs`.
    pub logs: LogReaders,
    /// For `/container` and `/containers`; `None` when nobody may post pods.
    pub posted: Option<PostedPods>,
    /// For `/checkpoint`.
    pub checkpoints: Checkpoints,
    /// For `/spec/`.
    pub machine: Arc<Machine>,
    /// What `/logs/` shows.
    pub node_logs: PathBuf,
}
