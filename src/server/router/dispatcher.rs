//! Calls the handler of each request's route.

use super::find::browsable;
use super::metrics::HttpMetrics;
use super::{POSTED_PODS_DISABLED, Port, Route, RouteEntry, RouteGroup, RouteGroupState};
use crate::base::clock;
use crate::host::HostMachine;
use crate::pods::pod_config::PostedPods;
use crate::server::handlers::checkpoint::Checkpoints;
use crate::server::handlers::container_logs::LogReaders;
use crate::server::handlers::explanations::Explanations;
use crate::server::handlers::health::HealthChecks;
use crate::server::handlers::node_logs::NodeLogs;
use crate::server::handlers::pods::{PodLists, machine};
use crate::server::handlers::process::Process;
use crate::server::handlers::scrapes::Scrapes;
use crate::server::handlers::stats::StatsReaders;
use crate::server::handlers::{events, legacy_stats, posted, profile, stats};
use crate::server::http::params::RouteError;
use crate::server::http::response::{Body, Request, read_body, text, with_connection_close};
use crate::server::http::{cross_site, gzip};
use crate::server::streaming::StreamTable;
use crate::state::events::EventRecorder;
use hyper::{Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// On routes without a body, a body of at most this many bytes is ignored; a larger one is an error.
const MAX_IGNORED_BODY: u64 = 8 * 1024;

/// The handlers of the routes, with the stores they read.
#[derive(Clone)]
pub struct RouteHandlers {
    /// `/pods`, `/runningpods/` and `/podInfo`.
    pub pods: PodLists,
    /// `/explain` and the pages.
    pub explanations: Explanations,
    /// `/metrics` and `/metrics/slis`.
    pub scrapes: Scrapes,
    /// Metrics of requests; `None` for no metrics.
    pub http_metrics: Option<HttpMetrics>,
    /// `/stats/summary`, `/metrics/cadvisor`, `/metrics/resource` and `/metrics/probes`.
    pub stats: StatsReaders,
    /// Source of `/events`.
    pub events: EventRecorder,
    /// The node's name, which is in the events.
    pub node_name: Arc<str>,
    /// `/configz`, `/flagz`, `/statusz` and `/debug/flags/v`.
    pub process: Process,
    /// `/exec`, `/attach`, `/run` and `/portForward`.
    pub streams: StreamTable,
    /// `/containerLogs`.
    pub logs: LogReaders,
    /// `/container` and `/containers`; `None` when pods cannot be posted.
    pub posted: Option<PostedPods>,
    /// `/checkpoint`.
    pub checkpoints: Checkpoints,
    /// `/spec/`.
    pub machine: Arc<HostMachine>,
    /// `/logs/`.
    pub node_logs: NodeLogs,
}

/// Calls the handler of each request's route.
pub(super) struct Dispatcher {
    pub(in crate::server) checks: HealthChecks,
    /// `None` on the health port.
    pub(in crate::server) route_handlers: Option<RouteHandlers>,
    pub(in crate::server) disabled: Vec<RouteGroup>,
}

impl Dispatcher {
    /// Answers a request with this route, or without one.
    pub(super) async fn serve(
        &self,
        port: Port,
        route: Result<(&'static RouteEntry, Route), RouteError>,
        request: Request,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        let (entry, route) = match self.check(&request, route) {
            Ok(found) => found,
            Err(refused) => return *refused,
        };
        let gzip = route.is_for_prometheus() && gzip::is_accepted(request.headers());
        let checks = &self.checks;
        let response = match (route, &self.route_handlers) {
            (Route::Health(query), _) => checks.serve(&query),
            (Route::HealthCheck(name), _) => checks.serve_check(&name),
            (_, None) => RouteError::NotFound.response(),
            (route, Some(route_handlers)) => {
                Box::pin(route_handlers.serve(port, entry, route, request, shutdown)).await
            }
        };
        if gzip { gzip::compressed(response).await } else { response }
    }

    /// Rejects cross-site requests, unknown routes, disabled routes and unexpected bodies.
    fn check(
        &self,
        request: &Request,
        route: Result<(&'static RouteEntry, Route), RouteError>,
    ) -> Result<(&'static RouteEntry, Route), Box<Response<Body>>> {
        if cross_site::is_cross_site_write(request.method(), request.headers()) {
            let body = "403 cross-site request refused\n".to_owned();
            return Err(Box::new(with_connection_close(text(StatusCode::FORBIDDEN, body))));
        }
        let (entry, route) = route.map_err(|error| Box::new(error.response()))?;
        let state = entry.group.map(|group| group.state(&self.disabled));
        if let Some(refused) = state.and_then(refusal) {
            return Err(Box::new(refused));
        }
        if entry.max_body.is_none() && exceeds_ignored_body(request.body()) {
            return Err(Box::new(unexpected_body()));
        }
        Ok((entry, route))
    }
}

impl RouteHandlers {
    async fn serve(
        &self,
        port: Port,
        entry: &RouteEntry,
        route: Route,
        request: Request,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        let limit = entry.max_body.unwrap_or(0);
        match route {
            // `Dispatcher::serve` handles these, because the health port has no route handlers.
            Route::Health(_) | Route::HealthCheck(_) => RouteError::NotFound.response(),
            Route::Pods => self.pods.pods(shutdown).await,
            Route::RunningPods => self.pods.running(shutdown).await,
            Route::PodInfo(name) => self.pods.info(&name, shutdown).await,
            Route::Overview(query) => self.explanations.overview(&query, shutdown).await,
            Route::Explain(query) => self.explanations.explain(&query),
            Route::NodePage(query) => self.explanations.node_page(&query, shutdown).await,
            Route::PodPage(pod, query) => {
                let explanations = &self.explanations;
                explanations.pod_page(&pod, &query, shutdown).await
            }
            Route::Events(query) => events::serve(&self.events, &self.node_name, &query),
            Route::Metrics => self.scrapes.metrics().await,
            Route::SliMetrics => self.scrapes.slis(),
            Route::CadvisorMetrics => stats::cadvisor(&self.stats).await,
            Route::ResourceMetrics => stats::resource(&self.stats).await,
            Route::ProbeMetrics => stats::probes(&self.stats),
            Route::Summary(only_cpu_and_memory) => {
                stats::summary(&self.stats, only_cpu_and_memory).await
            }
            Route::LegacyStats(target, query) => {
                let pods = self.pods.list_when_ready(shutdown);
                legacy_stats::serve(&self.stats, pods, request, &target, query).await
            }
            Route::Machine => machine(&self.machine),
            Route::Configz => self.process.configz(),
            Route::Flagz => self.process.flagz(),
            Route::Statusz => self.process.statusz(&browsable(port), clock::timestamp()),
            Route::PutVerbosity => match read_body(request, limit).await {
                Ok(body) => self.process.put_verbosity(&body),
                Err(refused) => *refused,
            },
            Route::Profile(seconds) => {
                let only_head = request.method() == hyper::Method::HEAD;
                profile::cpu((!only_head).then_some(seconds), shutdown).await
            }
            Route::NodeLogs(path, query) => {
                self.node_logs.serve(path, query, request.headers()).await
            }
            Route::ContainerLogs(name, query) => self.logs.serve(&name, &query, shutdown).await,
            Route::Exec(name, command, streams) => {
                let request = request.map(drop);
                self.streams.exec(request, &name, command, streams).await
            }
            Route::Attach(name, streams) => {
                let request = request.map(drop);
                self.streams.attach(request, &name, streams).await
            }
            Route::PortForward(name, ports) => {
                let request = request.map(drop);
                self.streams.port_forward(request, &name, &ports).await
            }
            Route::Run(name, command) => self.streams.run(request, &name, command, limit).await,
            Route::Checkpoint(name, seconds) => {
                let timeout = seconds.map(Duration::from_secs);
                self.checkpoints.make(&self.streams, &name, timeout).await
            }
            Route::PostPods(how) => match self.posted.clone() {
                Some(store) => match read_body(request, limit).await {
                    Ok(body) => posted::store_pods(store, how, body).await,
                    Err(refused) => *refused,
                },
                None => disabled(POSTED_PODS_DISABLED),
            },
        }
    }
}

/// Whether the body is, or may be, larger than [`MAX_IGNORED_BODY`].
fn exceeds_ignored_body(body: &impl hyper::body::Body) -> bool {
    !body.is_end_stream() && body.size_hint().upper().is_none_or(|size| size > MAX_IGNORED_BODY)
}

fn unexpected_body() -> Response<Body> {
    let body = "413 request body not allowed\n".to_owned();
    with_connection_close(text(StatusCode::PAYLOAD_TOO_LARGE, body))
}

fn disabled(why: &str) -> Response<Body> {
    text(StatusCode::METHOD_NOT_ALLOWED, format!("{why}\n"))
}

/// The response of a route of a group; `None` if the group is enabled.
fn refusal(state: RouteGroupState) -> Option<Response<Body>> {
    match state {
        RouteGroupState::Enabled => None,
        RouteGroupState::MethodNotAllowed(why) => Some(disabled(why)),
        RouteGroupState::NotFound => Some(RouteError::NotFound.response()),
    }
}
