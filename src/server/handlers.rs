//! From a route to a response. Everything shown is read from boards at this moment.

use super::{
    auth::Gate,
    coalesced::Coalesced,
    cross_site, events, files,
    gate::admit,
    gzip,
    health::HealthChecks,
    legacy_stats, list,
    metrics::HttpMetrics,
    page,
    pods::{machine, pod_info, pods, running_pods},
    posted, profile,
    response::{
        Body, BodyError, Request, closing, full, full_bytes, json, not_found, one, read_body,
        refuse, text,
    },
    routes::{Entry, ExplainQuery, OverviewQuery, Port, Route, RouteError, Switch, route},
    spans, stats,
    views::Views,
};
use crate::{
    base::metrics,
    base::otel::Tracer,
    base::panics::{Place, contain},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::{Response, StatusCode, header::HeaderValue};
use jiff::Timestamp;
use std::{fmt, future::ready, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How long an answer waits for the disk at most.
const TIMEOUT: Duration = Duration::from_millis(100);

/// How long an answer waits for news at most.
const NEWS: Duration = Duration::from_secs(25);

/// Where no body is expected, one up to this many bytes is ignored.
const MAX_BODY: u64 = 8 * 1024;
const METRICS: HeaderValue = HeaderValue::from_static(metrics::CONTENT_TYPE);

/// What the table of routes says to a request.
type Found = Result<(&'static Entry, Route), RouteError>;

/// Answers the requests of one port; cheap to clone.
#[derive(Clone)]
pub struct Handlers {
    port: Port,
    access: Access,
    tracer: Tracer,
    shared: Arc<Shared>,
}

/// Who is answered.
#[derive(Clone)]
enum Access {
    /// Everybody who reaches the port.
    Open,
    /// Those whom the gate lets in.
    Gate(Gate),
    /// Nobody, with this reason.
    Refused(&'static str),
}

/// What all ports but the health port share.
struct Shared {
    checks: HealthChecks,
    views: Option<Views>,
    off: Vec<Switch>,
    metrics: Option<HttpMetrics>,
    scrapes: Coalesced,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Handlers {
    /// Of the health port.
    pub fn health(checks: HealthChecks) -> Self {
        let shared = Shared {
            checks,
            views: None,
            off: Vec::new(),
            metrics: None,
            scrapes: Coalesced::default(),
        };
        Self {
            port: Port::Health,
            access: Access::Open,
            tracer: Tracer::off(),
            shared: Arc::new(shared),
        }
    }

    /// Of the read-only port. The routes that the switches stand for are taken away.
    pub fn read_only(checks: HealthChecks, views: Views, off: Vec<Switch>) -> Self {
        let shared = Shared {
            metrics: views.http.clone(),
            checks,
            views: Some(views),
            off,
            scrapes: Coalesced::default(),
        };
        Self {
            port: Port::ReadOnly,
            access: Access::Open,
            tracer: Tracer::off(),
            shared: Arc::new(shared),
        }
    }

    /// The same, and each request that is answered is a span.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// Of the local socket, which shows everything to who can open it.
    #[must_use]
    pub fn local(&self) -> Self {
        Self {
            port: Port::Local,
            access: Access::Open,
            tracer: self.tracer.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Of the main port, for those whom the gate lets in.
    #[must_use]
    pub fn guarded(&self, gate: Gate) -> Self {
        Self {
            port: Port::Main,
            access: Access::Gate(gate),
            tracer: self.tracer.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Of a local socket, for a client that has to be refused.
    #[must_use]
    pub(super) fn refusing(&self) -> Self {
        let why =
            "403 only processes in the mount and pid namespaces of the kubelet are answered here\n";
        Self {
            access: Access::Refused(why),
            ..self.clone()
        }
    }

    /// Longest head of a request, bytes. A command in a container may be long.
    pub(super) fn longest_head(&self) -> usize {
        match self.port {
            Port::Health | Port::ReadOnly => 16 * 1024,
            Port::Main | Port::Local => 96 * 1024,
        }
    }

    /// Answers one request. Who waits for news is answered at once when the token is cancelled.
    pub(super) fn answer<B>(
        &self,
        request: hyper::Request<B>,
        stopping: &CancellationToken,
    ) -> BoxFuture<'static, Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let (method, uri) = (request.method(), request.uri());
        let found = route(self.port, method, uri.path(), uri.query());
        let entry = found.as_ref().ok().map(|(entry, _)| *entry);
        let metrics = self.shared.metrics.as_ref();
        let underway = metrics.map(|metrics| metrics.begin(self.port, method, entry));
        let (handlers, stopping) = (self.clone(), stopping.clone());
        Box::pin(async move {
            let answer = async { handlers.admit(request, found, &stopping).await };
            let answer = contain(Place::HttpRequest, answer).await;
            let answer = answer.unwrap_or_else(|_| {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                text(status, "internal error, see the log\n".to_owned())
            });
            match underway {
                Some(underway) => underway.until_sent(answer),
                None => answer,
            }
        })
    }

    /// Answers, once it is known that who asks may.
    fn admit<B>(
        &self,
        request: hyper::Request<B>,
        found: Found,
        stopping: &CancellationToken,
    ) -> BoxFuture<'static, Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let gate = match self.access.clone() {
            Access::Open => return self.dispatch(request, found, stopping),
            Access::Refused(why) => {
                let refused = closing(text(StatusCode::FORBIDDEN, why.into()));
                return Box::pin(ready(refused));
            }
            Access::Gate(gate) => gate,
        };
        let (handlers, stopping) = (self.clone(), stopping.clone());
        Box::pin(async move {
            match admit(&gate, handlers.port, request).await {
                Ok(request) => handlers.dispatch(request, found, &stopping).await,
                Err(refused) => *refused,
            }
        })
    }

    /// Answers a request of somebody who may ask, as a span where there are any.
    fn dispatch<B>(
        &self,
        request: hyper::Request<B>,
        found: Found,
        stopping: &CancellationToken,
    ) -> BoxFuture<'static, Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let entry = found.as_ref().ok().map(|(entry, _)| *entry);
        let span = spans::begin(&self.tracer, self.port, entry, &request);
        let answer = self.choose(request, found, stopping);
        match span {
            Some(span) => Box::pin(spans::until_sent(span, answer)),
            None => answer,
        }
    }

    fn choose<B>(
        &self,
        request: hyper::Request<B>,
        found: Found,
        stopping: &CancellationToken,
    ) -> BoxFuture<'static, Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let refused = |response| -> BoxFuture<'static, _> { Box::pin(ready(response)) };
        if cross_site::is_abuse(request.method(), request.headers()) {
            let body = "403 a page of another site may not ask for this\n".to_owned();
            return refused(closing(text(StatusCode::FORBIDDEN, body)));
        }
        let (entry, route) = match found {
            Ok(found) => found,
            Err(error) => return refused(refuse(&error)),
        };
        let refusal = entry
            .switch
            .and_then(|switch| switch.refusal(&self.shared.off));
        if let Some(text) = refusal {
            return refused(disabled(text));
        }
        if entry.body.is_none() && has_body(request.body()) {
            return refused(unexpected_body());
        }
        let gzip = route.is_for_prometheus() && gzip::is_accepted(request.headers());
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        let (handlers, stopping) = (self.clone(), stopping.clone());
        Box::pin(async move {
            let response = handlers.serve(entry, route, request, &stopping).await;
            match gzip {
                true => gzip::compressed(response).await,
                false => response,
            }
        })
    }

    async fn serve(
        &self,
        entry: &Entry,
        route: Route,
        request: Request,
        stopping: &CancellationToken,
    ) -> Response<Body> {
        let Some(views) = &self.shared.views else {
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
                match self.shared.scrapes.get(move || metrics()).await {
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
            Route::Statusz => views.process.statusz(self.port, Timestamp::now()),
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
                let findings = self.shared.checks.all(&query);
                if findings.failures.is_empty() {
                    return text(StatusCode::OK, findings.text);
                }
                tracing::warn!(failures = ?findings.failures, "healthz check failed");
                text(StatusCode::INTERNAL_SERVER_ERROR, findings.text)
            }
            Route::HealthCheck(name) => match self.shared.checks.one(&name) {
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
    let _ = tokio::time::timeout(NEWS, changed).await;
}

/// Sends an answer once what it says is on disk: what somebody has been told holds also when the kubelet
/// is killed the moment after.
async fn settled(views: &Views, answer: Response<Body>) -> Response<Body> {
    let _ = tokio::time::timeout(TIMEOUT, (views.recorded)()).await;
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
