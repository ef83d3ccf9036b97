//! The routes, and how they are parsed from requests. Each handler parses its own query.

use crate::cri::StdStreams;
use crate::server::handlers::checkpoint::timeout;
use crate::server::handlers::container_logs::LogQuery;
use crate::server::handlers::container_logs::params::log_query;
use crate::server::handlers::events::EventsQuery;
use crate::server::handlers::explanations::{OverviewQuery, pod_name};
use crate::server::handlers::health::HealthQuery;
use crate::server::handlers::legacy_stats::{LegacyStatsQuery, LegacyStatsTarget};
use crate::server::handlers::node_log_query::NodeLogQuery;
use crate::server::handlers::posted::PostMode;
use crate::server::handlers::profile::seconds;
use crate::server::http::params::{RequestParams, RouteError};
use crate::server::http::query::BadQuery;
use crate::server::streaming::{ContainerName, PodName, params};

/// A parsed route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/pods`: every known pod with its status.
    Pods,
    /// `/runningpods/`: the pods that run according to the runtime.
    RunningPods,
    /// `/explain`: all known pods, one row per pod.
    Overview(OverviewQuery),
    /// `/explain/<namespace>/<pod>`: explains the state of one pod.
    Explain(PodName),
    /// `/`: the pods, for a browser.
    NodePage(OverviewQuery),
    /// `/pod/<namespace>/<pod>`: one pod, for a browser.
    PodPage(PodName, OverviewQuery),
    /// `/events`: recent events.
    Events(EventsQuery),
    /// `/metrics`.
    Metrics,
    /// `/metrics/slis`: the results of health checks.
    SliMetrics,
    /// `/metrics/cadvisor`: usage of containers.
    CadvisorMetrics,
    /// `/metrics/resource`: CPU and memory, for metrics-server.
    ResourceMetrics,
    /// `/metrics/probes`: probe results and durations.
    ProbeMetrics,
    /// `/stats/summary`: usage of the node and its pods; the flag selects CPU and memory only.
    Summary(bool),
    /// `/stats/` and below it: usage of the machine, a cgroup or a container.
    LegacyStats(LegacyStatsTarget, LegacyStatsQuery),
    /// `/healthz`: all checks.
    Health(HealthQuery),
    /// `/healthz/<name>`: one check.
    HealthCheck(String),
    /// `/configz`: the effective configuration.
    Configz,
    /// `/flagz`: the effective flags.
    Flagz,
    /// `/statusz`: information about the process.
    Statusz,
    /// `PUT /debug/flags/v`: sets the verbosity of the log.
    PutVerbosity,
    /// `/debug/pprof/profile`: a CPU profile of this many seconds.
    Profile(u64),
    /// `POST /container` and `/containers`: pods to run.
    PostPods(PostMode),
    /// `/checkpoint/…`: a checkpoint of a container, with a timeout in seconds.
    Checkpoint(ContainerName, Option<u64>),
    /// `/podInfo`: the status of one pod.
    PodInfo(PodName),
    /// `/spec/`: the machine.
    Machine,
    /// `/logs/<path>`: the node's logs.
    NodeLogs(String, Result<Option<NodeLogQuery>, BadQuery>),
    /// `/exec/…`: runs a command in a container, with these streams.
    Exec(ContainerName, Vec<String>, StdStreams),
    /// `/attach/…`: attaches to the first process of a container.
    Attach(ContainerName, StdStreams),
    /// `/portForward/…`: connects to ports of a pod.
    PortForward(PodName, Vec<u16>),
    /// `/run/…`: runs a command in a container to completion. `None` if the command is in the body.
    Run(ContainerName, Option<Vec<String>>),
    /// `/containerLogs/…`: the log of a container.
    ContainerLogs(ContainerName, LogQuery),
}

impl Route {
    /// Whether the response is in Prometheus' exposition format.
    pub(in crate::server) fn is_for_prometheus(&self) -> bool {
        matches!(
            self,
            Self::Metrics
                | Self::SliMetrics
                | Self::CadvisorMetrics
                | Self::ResourceMetrics
                | Self::ProbeMetrics
        )
    }
}

/// Parses the parts of a request to the route of a table entry.
pub(super) type Parse = fn(&RequestParams) -> Result<Route, RouteError>;

pub(super) fn health(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::Health(HealthQuery::parse(params)?))
}

pub(super) fn health_check(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::HealthCheck(params.path_parameter("check")))
}

pub(super) fn node_logs(params: &RequestParams) -> Result<Route, RouteError> {
    // If logs of services are disabled, the query is ignored, even an invalid one.
    let query = NodeLogQuery::parse(params);
    Ok(Route::NodeLogs(params.path_parameter("path"), query))
}

pub(super) fn overview(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::Overview(OverviewQuery::parse(params)?))
}

pub(super) fn explain(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::Explain(pod_name(params)?))
}

pub(super) fn node_page(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::NodePage(OverviewQuery::parse(params)?))
}

pub(super) fn pod_page(params: &RequestParams) -> Result<Route, RouteError> {
    let pod = pod_name(params)?;
    Ok(Route::PodPage(pod, OverviewQuery::parse(params)?))
}

/// As upstream, any value other than exactly one `true` requests everything.
pub(super) fn summary(params: &RequestParams) -> Result<Route, RouteError> {
    let only_cpu_and_memory = params.query_parameters("only_cpu_and_memory")? == ["true"];
    Ok(Route::Summary(only_cpu_and_memory))
}

pub(super) fn machine_info(params: &RequestParams) -> Result<Route, RouteError> {
    let query = LegacyStatsQuery::of_pairs(&params.pairs()?)?;
    Ok(Route::LegacyStats(LegacyStatsTarget::Machine, query))
}

pub(super) fn cgroup_info(params: &RequestParams) -> Result<Route, RouteError> {
    let query = LegacyStatsQuery::of_pairs(&params.pairs()?)?;
    Ok(Route::LegacyStats(LegacyStatsTarget::Cgroup, query))
}

pub(super) fn container_info(params: &RequestParams) -> Result<Route, RouteError> {
    let target = LegacyStatsTarget::container(params)?;
    let query = LegacyStatsQuery::of_pairs(&params.pairs()?)?;
    Ok(Route::LegacyStats(target, query))
}

pub(super) fn events(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::Events(EventsQuery::parse(params)?))
}

pub(super) fn checkpoint(params: &RequestParams) -> Result<Route, RouteError> {
    let timeout = timeout(params)?;
    Ok(Route::Checkpoint(ContainerName::parse(params)?, timeout))
}

pub(super) fn pod_info(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::PodInfo(params::legacy_pod_name(params)?))
}

pub(super) fn exec(params: &RequestParams) -> Result<Route, RouteError> {
    let query = params.pairs()?;
    let command = params::command(&query)?;
    let streams = params::std_streams(&query)?;
    Ok(Route::Exec(ContainerName::parse(params)?, command, streams))
}

pub(super) fn attach(params: &RequestParams) -> Result<Route, RouteError> {
    let streams = params::std_streams(&params.pairs()?)?;
    Ok(Route::Attach(ContainerName::parse(params)?, streams))
}

pub(super) fn port_forward(params: &RequestParams) -> Result<Route, RouteError> {
    let ports = params::ports(&params.pairs()?)?;
    Ok(Route::PortForward(PodName::parse(params)?, ports))
}

pub(super) fn run(params: &RequestParams) -> Result<Route, RouteError> {
    let command = params::cmd(&params.pairs()?)?;
    Ok(Route::Run(ContainerName::parse(params)?, command))
}

pub(super) fn container_logs(params: &RequestParams) -> Result<Route, RouteError> {
    let query = log_query(&params.pairs()?)?;
    Ok(Route::ContainerLogs(ContainerName::parse(params)?, query))
}

pub(super) fn profile(params: &RequestParams) -> Result<Route, RouteError> {
    Ok(Route::Profile(seconds(params)?))
}
