//! From a route to a response. Everything shown is read from stores when it is requested.

use super::{
    coalesced::Coalesced,
    cross_site, events, files, gzip,
    health::HealthChecks,
    layers::{ResponseFuture, RoutedRequest},
    legacy_stats, list, page,
    pods::{machine, pod_info, pods, running_pods},
    posted, profile,
    response::{
        Body, Request, closing, full, full_bytes, json, not_found, one, read_body, refuse, text,
    },
    routes::{Entry, ExplainQuery, OverviewQuery, Port, Route, RouteError, Switch},
    stats,
    views::Views,
};
use crate::base::metrics;
use hyper::{Response, StatusCode, header::HeaderValue};
use jiff::Timestamp;
use std::{
    convert::Infallible,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// How long a response waits for the disk at most.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a request waits for a change at most.
const NEWS_TIMEOUT: Duration = Duration::from_secs(25);

/// Where no body is expected, one up to this many bytes is ignored.
const MAX_BODY: u64 = 8 * 1024;
const METRICS: HeaderValue = HeaderValue::from_static(metrics::CONTENT_TYPE);

/// What the routers of all ports share.
pub(super) struct RouterState {
    pub(super) checks: HealthChecks,
    /// `None` on the health port.
    pub(super) views: Option<Views>,
    pub(super) off: Vec<Switch>,
    pub(super) scrapes: Coalesced,
}

/// Passes each request to the handler of its route; cheap to clone.
#[derive(Clone)]
pub(super) struct Router {
    state: Arc<RouterState>,
    stopping: CancellationToken,
}

impl Service<RoutedRequest> for Router {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, routed: RoutedRequest) -> ResponseFuture {
        let RoutedRequest {
            request,
            port,
            found,
            ..
        } = routed;
        let (entry, route) = match self.check(&request, found) {
            Ok(found) => found,
            Err(refused) => return Box::pin(ready(Ok(*refused))),
        };
        let gzip = route.is_for_prometheus() && gzip::is_accepted(request.headers());
        let router = self.clone();
        Box::pin(async move {
            let response = router.serve(port, entry, route, request).await;
            Ok(if gzip {
                gzip::compressed(response).await
            } else {
                response
            })
        })
    }
}

impl Router {
    pub(super) fn new(state: Arc<RouterState>, stopping: CancellationToken) -> Self {
        Self { state, stopping }
    }

    /// The route of a request that may be served.
    fn check(
        &self,
        request: &Request,
        found: Result<(&'static Entry, Route), RouteError>,
    ) -> Result<(&'static Entry, Route), Box<Response<Body>>> {
        if cross_site::is_abuse(request.method(), request.headers()) {
            let body = "403 a page of another site may not ask for this\n".to_owned();
            return Err(Box::new(closing(text(StatusCode::FORBIDDEN, body))));
        }
        let (entry, route) = found.map_err(|error| Box::new(refuse(&error)))?;
        let refusal = entry
            .switch
            .and_then(|switch| switch.refusal(&self.state.off));
        if let Some(text) = refusal {
            return Err(Box::new(disabled(text)));
        }
        if entry.body.is_none() && has_body(request.body()) {
            return Err(Box::new(unexpected_body()));
        }
        Ok((entry, route))
    }

    async fn serve(
        &self,
        port: Port,
        entry: &Entry,
        route: Route,
        request: Request,
    ) -> Response<Body> {
        let stopping = &self.stopping;
        let Some(views) = &self.state.views else {
            return self.health_alone(route);
        };
        match route {
            Route::Health(_) | Route::HealthCheck(_) => self.health_alone(route),
            Route::Pods => {
                unless(stopping, (views.known)()).await;
                settled(views, pods((views.pods)())).await
            }
            Route::RunningPods => {
                unless(stopping, (views.known)()).await;
                running_pods((views.running_pods)())
            }
            Route::Metrics => {
                let metrics = views.metrics.clone();
                match self.state.scrapes.get(move || metrics()).await {
                    Ok(body) => full_bytes(StatusCode::OK, METRICS, body),
                    Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("500 {error}\n")),
                }
            }
            Route::SliMetrics => full(StatusCode::OK, METRICS, (views.sli_metrics)()),
            Route::Summary(only_cpu_and_memory) => {
                stats::summary(&views.stats, only_cpu_and_memory).await
            }
            Route::ContainerInfo(target, query) => {
                let known = unless(stopping, (views.known)());
                legacy_stats::answer(views, known, request, &target, query).await
            }
            Route::CadvisorMetrics => stats::cadvisor(&views.stats).await,
            Route::ResourceMetrics => stats::resource(&views.stats).await,
            Route::ProbeMetrics => stats::probes(&views.stats),
            Route::Overview(OverviewQuery { after }) => {
                if let Some(after) = after {
                    unless(stopping, news(views, &after)).await;
                }
                settled(views, one(&(views.overview)())).await
            }
            Route::Explain(query) => settled(views, explain(views, &query)).await,
            Route::NodePage(OverviewQuery { after }) => {
                if let Some(after) = after {
                    unless(stopping, news(views, &after)).await;
                }
                settled(views, page::node(views, Timestamp::now())).await
            }
            Route::PodPage(query, OverviewQuery { after }) => {
                if let Some(after) = after {
                    unless(stopping, news(views, &after)).await;
                }
                settled(views, page::pod(views, &query)).await
            }
            Route::Events(query) => {
                let node = views.node_name.clone();
                let items = events::select(views.events.recent(), &query)
                    .map(move |event| events::api(&event, &node));
                json(list::body("EventList", items))
            }
            Route::Configz => views.process.configz(),
            Route::Flagz => views.process.flagz(),
            Route::Statusz => views.process.statusz(port, Timestamp::now()),
            Route::PutVerbosity => match read_body(request, entry.body.unwrap_or(0)).await {
                Ok(body) => views.process.put_verbosity(&body),
                Err(refused) => *refused,
            },
            Route::Profile(seconds) => {
                let only_head = request.method() == hyper::Method::HEAD;
                profile::cpu((!only_head).then_some(seconds), stopping).await
            }
            Route::Exec(name, command, streams) => {
                let request = request.map(drop);
                views.streams.exec(request, &name, command, streams).await
            }
            Route::Attach(name, streams) => {
                let request = request.map(drop);
                views.streams.attach(request, &name, streams).await
            }
            Route::PortForward(name, ports) => {
                let request = request.map(drop);
                views.streams.port_forward(request, &name, &ports).await
            }
            Route::Run(name, command) => {
                let most = entry.body.unwrap_or(0);
                views.streams.run(request, &name, command, most).await
            }
            Route::ContainerLogs(name, query) => views.logs.answer(&name, &query, stopping).await,
            Route::PostPods(how) => {
                let Some(store) = views.posted.clone() else {
                    return disabled(Switch::PostedPods.refusal(&[Switch::PostedPods]).flatten());
                };
                match read_body(request, entry.body.unwrap_or(0)).await {
                    Ok(body) => posted::take(store, how, body).await,
                    Err(refused) => *refused,
                }
            }
            Route::Checkpoint(name, seconds) => {
                let limit = seconds.map(Duration::from_secs);
                views.checkpoints.make(&views.streams, &name, limit).await
            }
            Route::PodInfo(name) => {
                unless(stopping, (views.known)()).await;
                settled(views, pod_info((views.pods)(), &name)).await
            }
            Route::Machine => machine(&views.machine),
            Route::NodeLogs(path) => {
                files::serve(views.node_logs.clone(), path, request.headers()).await
            }
        }
    }

    fn health_alone(&self, route: Route) -> Response<Body> {
        match route {
            Route::Health(query) => {
                let findings = self.state.checks.all(&query);
                if findings.failures.is_empty() {
                    return text(StatusCode::OK, findings.text);
                }
                tracing::warn!(failures = ?findings.failures, "healthz check failed");
                text(StatusCode::INTERNAL_SERVER_ERROR, findings.text)
            }
            Route::HealthCheck(name) => match self.state.checks.one(&name) {
                Some(Ok(())) => text(StatusCode::OK, "ok".into()),
                Some(Err(why)) => {
                    let body = format!("internal server error: {why}\n");
                    text(StatusCode::INTERNAL_SERVER_ERROR, body)
                }
                None => refuse(&RouteError::NotFound),
            },
            _ => refuse(&RouteError::NotFound),
        }
    }
}

/// Whether more of a body comes than is passed over in silence.
fn has_body(body: &impl hyper::body::Body) -> bool {
    !body.is_end_stream() && body.size_hint().upper().is_none_or(|size| size > MAX_BODY)
}

fn unexpected_body() -> Response<Body> {
    let body = "413 no body is expected here\n".to_owned();
    closing(text(StatusCode::PAYLOAD_TOO_LARGE, body))
}

/// Without a text, there is no such page.
fn disabled(why: Option<&str>) -> Response<Body> {
    match why {
        Some(why) => text(StatusCode::METHOD_NOT_ALLOWED, format!("{why}\n")),
        None => refuse(&RouteError::NotFound),
    }
}

/// Waits for something, but not while the server stops.
async fn unless(stopping: &CancellationToken, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = stopping.cancelled() => {}
    }
}

/// Ends when the version is another one, or after a while.
async fn news(views: &Views, after: &str) {
    let changed = async {
        loop {
            let (version, changed) = (views.news)();
            if version != after {
                return;
            }
            changed.await;
        }
    };
    let _ = tokio::time::timeout(NEWS_TIMEOUT, changed).await;
}

/// Sends an answer once what it says is on disk: what somebody has been told holds also when the kubelet
/// is killed the moment after.
async fn settled(views: &Views, answer: Response<Body>) -> Response<Body> {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, (views.recorded)()).await;
    answer
}

fn explain(views: &Views, query: &ExplainQuery) -> Response<Body> {
    if let Some(explanation) = (views.explain)(query) {
        return one(&explanation);
    }
    let ExplainQuery {
        namespace, name, ..
    } = query;
    not_found(&format!("no pod {namespace}/{name} is known here"))
}
