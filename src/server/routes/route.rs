//! The routes, and how they are parsed from requests. Each handler parses its own query.

use crate::{
    cri::StdStreams,
    server::{
        checkpoint::timeout,
        container_logs::{LogQuery, params::log_query},
        events::EventsQuery,
        explanations::{ExplainQuery, OverviewQuery},
        health::HealthQuery,
        legacy_stats::{LegacyStatsQuery, LegacyStatsTarget},
        node_log_query::NodeLogQuery,
        posted::PostMode,
        profile::seconds,
        query::BadQuery,
        route_parts::{RouteError, RouteParts},
        streaming::{ContainerName, PodName, params},
    },
};

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
    Explain(ExplainQuery),
    /// `/`: the pods, for a browser.
    NodePage(OverviewQuery),
    /// `/pod/<namespace>/<pod>`: one pod, for a browser.
    PodPage(ExplainQuery, OverviewQuery),
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
pub(super) type Parse = fn(&RouteParts) -> Result<Route, RouteError>;

pub(super) fn nothing(_: &RouteParts) -> Result<Route, RouteError> {
    Err(RouteError::NotFound)
}

pub(super) fn health(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::Health(HealthQuery::parse(parts)?))
}

pub(super) fn health_check(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::HealthCheck(parts.path("check")))
}

pub(super) fn node_logs(parts: &RouteParts) -> Result<Route, RouteError> {
    // If logs of services are disabled, the query is ignored, even an invalid one.
    let query = NodeLogQuery::parse(parts);
    Ok(Route::NodeLogs(parts.path("path"), query))
}

pub(super) fn overview(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::Overview(OverviewQuery::parse(parts)?))
}

pub(super) fn explain(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::Explain(ExplainQuery::parse(parts)?))
}

pub(super) fn node_page(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::NodePage(OverviewQuery::parse(parts)?))
}

pub(super) fn pod_page(parts: &RouteParts) -> Result<Route, RouteError> {
    let pod = ExplainQuery::parse(parts)?;
    Ok(Route::PodPage(pod, OverviewQuery::parse(parts)?))
}

/// As upstream, any value other than exactly one `true` requests everything.
pub(super) fn summary(parts: &RouteParts) -> Result<Route, RouteError> {
    let only = parts.all("only_cpu_and_memory")? == ["true"];
    Ok(Route::Summary(only))
}

pub(super) fn machine_info(parts: &RouteParts) -> Result<Route, RouteError> {
    let query = LegacyStatsQuery::of_pairs(&parts.pairs()?)?;
    Ok(Route::LegacyStats(LegacyStatsTarget::Machine, query))
}

pub(super) fn cgroup_info(parts: &RouteParts) -> Result<Route, RouteError> {
    let query = LegacyStatsQuery::of_pairs(&parts.pairs()?)?;
    Ok(Route::LegacyStats(LegacyStatsTarget::Cgroup, query))
}

pub(super) fn container_info(parts: &RouteParts) -> Result<Route, RouteError> {
    let target = LegacyStatsTarget::container(parts)?;
    let query = LegacyStatsQuery::of_pairs(&parts.pairs()?)?;
    Ok(Route::LegacyStats(target, query))
}

pub(super) fn events(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::Events(EventsQuery::parse(parts)?))
}

pub(super) fn checkpoint(parts: &RouteParts) -> Result<Route, RouteError> {
    let timeout = timeout(parts)?;
    Ok(Route::Checkpoint(ContainerName::parse(parts)?, timeout))
}

pub(super) fn pod_info(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::PodInfo(params::legacy_pod_name(parts)?))
}

pub(super) fn exec(parts: &RouteParts) -> Result<Route, RouteError> {
    let query = parts.pairs()?;
    let command = params::command(&query)?;
    let streams = params::std_streams(&query)?;
    Ok(Route::Exec(ContainerName::parse(parts)?, command, streams))
}

pub(super) fn attach(parts: &RouteParts) -> Result<Route, RouteError> {
    let streams = params::std_streams(&parts.pairs()?)?;
    Ok(Route::Attach(ContainerName::parse(parts)?, streams))
}

pub(super) fn port_forward(parts: &RouteParts) -> Result<Route, RouteError> {
    let ports = params::ports(&parts.pairs()?)?;
    Ok(Route::PortForward(PodName::parse(parts)?, ports))
}

pub(super) fn run(parts: &RouteParts) -> Result<Route, RouteError> {
    let command = params::cmd(&parts.pairs()?)?;
    Ok(Route::Run(ContainerName::parse(parts)?, command))
}

pub(super) fn container_logs(parts: &RouteParts) -> Result<Route, RouteError> {
    let query = log_query(&parts.pairs()?)?;
    Ok(Route::ContainerLogs(ContainerName::parse(parts)?, query))
}

pub(super) fn profile(parts: &RouteParts) -> Result<Route, RouteError> {
    Ok(Route::Profile(seconds(parts)?))
}
