//! From a route to a response. Everything shown is read from boards at this moment.

use super::{
    events,
    health::HealthChecks,
    list::{self, Body},
    route::{ExplainQuery, OverviewQuery, Port, Route, RouteError, route},
};
use crate::{
    events::EventRecorder,
    explain::{Explanation, Overview},
    metrics,
    model::{ContainerState, Pod, PodStatus},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, StatusCode,
    header::{self, HeaderValue},
};
use k8s_openapi::{
    api::core::v1::{self, Container, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;
use std::{fmt, sync::Arc, time::Duration};

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

/// How long an answer waits for the disk at most.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long an answer waits for news at most.
const NEWS: Duration = Duration::from_secs(25);

/// No request here needs a body; one up to this many bytes is ignored.
const MAX_BODY: u64 = 8 * 1024;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static(metrics::CONTENT_TYPE);

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
}

/// Answers the requests of one port; cheap to clone.
#[derive(Clone)]
pub struct Handlers {
    inner: Arc<Inner>,
}

struct Inner {
    checks: HealthChecks,
    views: Option<Views>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}

impl Handlers {
    /// Of the health port.
    pub fn health(checks: HealthChecks) -> Self {
        Self {
            inner: Arc::new(Inner {
                checks,
                views: None,
            }),
        }
    }

    /// Of the read-only port.
    pub fn read_only(checks: HealthChecks, views: Views) -> Self {
        Self {
            inner: Arc::new(Inner {
                checks,
                views: Some(views),
            }),
        }
    }

    fn port(&self) -> Port {
        match self.inner.views {
            Some(_) => Port::ReadOnly,
            None => Port::Health,
        }
    }

    /// Answers one request; its body is never read.
    pub(super) fn answer<B: hyper::body::Body>(&self, request: &Request<B>) -> Response<Body> {
        let body = request.body();
        if !body.is_end_stream() && body.size_hint().upper().is_none_or(|size| size > MAX_BODY) {
            let mut response = text(
                StatusCode::PAYLOAD_TOO_LARGE,
                "413 no body is expected here\n".into(),
            );
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            return response;
        }
        let uri = request.uri();
        match route(self.port(), request.method(), uri.path(), uri.query()) {
            Ok(route) => self.serve(route),
            Err(error) => refuse(&error),
        }
    }

    /// To be awaited before the answer is made. Ends at once, unless the request is for pods, and the
    /// kubelet has only just begun to learn of them, or wants to hear when something has changed. Then
    /// it ends when that is so, or after a while.
    pub(super) async fn until_news<B>(&self, request: &Request<B>) {
        let (Some(views), uri) = (&self.inner.views, request.uri()) else {
            return;
        };
        let found = route(self.port(), request.method(), uri.path(), uri.query());
        let after = match found {
            Ok(Route::Pods | Route::RunningPods) => return (views.known)().await,
            Ok(Route::Overview(OverviewQuery { after: Some(after) })) => after,
            _ => return,
        };
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

    /// To be awaited between making an answer and sending it: what somebody has been told holds also
    /// when the kubelet is killed the moment after.
    pub(super) async fn settle(&self) {
        if let Some(views) = &self.inner.views {
            let _ = tokio::time::timeout(PATIENCE, (views.recorded)()).await;
        }
    }

    fn serve(&self, route: Route) -> Response<Body> {
        match (route, &self.inner.views) {
            (Route::Health(query), _) => {
                let findings = self.inner.checks.all(&query);
                if findings.failures.is_empty() {
                    return text(StatusCode::OK, findings.text);
                }
                tracing::warn!(failures = ?findings.failures, "healthz check failed");
                text(StatusCode::INTERNAL_SERVER_ERROR, findings.text)
            }
            (Route::HealthCheck(name), _) => match self.inner.checks.one(&name) {
                Some(Ok(())) => text(StatusCode::OK, "ok".into()),
                Some(Err(why)) => {
                    let body = format!("internal server error: {why}\n");
                    text(StatusCode::INTERNAL_SERVER_ERROR, body)
                }
                None => refuse(&RouteError::NotFound),
            },
            (Route::Pods, Some(views)) => pods((views.pods)()),
            (Route::RunningPods, Some(views)) => running_pods((views.running_pods)()),
            (Route::Metrics, Some(views)) => full(StatusCode::OK, METRICS, (views.metrics)()),
            (Route::Overview(_), Some(views)) => one(&(views.overview)()),
            (Route::Explain(query), Some(views)) => match (views.explain)(&query) {
                Some(explanation) => one(&explanation),
                None => {
                    let ExplainQuery {
                        namespace, name, ..
                    } = &query;
                    let body = format!("404 no pod {namespace}/{name} is known here\n");
                    text(StatusCode::NOT_FOUND, body)
                }
            },
            (Route::Events(query), Some(views)) => {
                let node = views.node_name.clone();
                let items = events::select(views.events.recent(), &query)
                    .map(move |event| events::api(&event, &node));
                json(list::body("EventList", items))
            }
            (_, None) => refuse(&RouteError::NotFound),
        }
    }
}

/// A pod as an item of a list, with the status that the board has instead of the one it came with.
/// Nothing is copied: the shared objects are serialised where they are.
struct PodItem {
    pod: Arc<Pod>,
    status: Option<Arc<v1::PodStatus>>,
}

impl Serialize for PodItem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut item = serializer.serialize_struct("Pod", 3)?;
        item.serialize_field("metadata", &self.pod.metadata)?;
        if let Some(spec) = &self.pod.spec {
            item.serialize_field("spec", spec)?;
        }
        if let Some(status) = self.status.as_deref().or(self.pod.status.as_ref()) {
            item.serialize_field("status", status)?;
        }
        item.end()
    }
}

fn pods(pods: Vec<(Arc<Pod>, Option<Arc<v1::PodStatus>>)>) -> Response<Body> {
    let items = pods
        .into_iter()
        .map(|(pod, status)| PodItem { pod, status });
    json(list::body("PodList", items))
}

/// Upstream's form: of each pod with a running container its names, and of each such container name
/// and image.
fn running_pods(pods: Vec<Arc<PodStatus>>) -> Response<Body> {
    #[derive(Serialize)]
    struct Running {
        metadata: ObjectMeta,
        spec: PodSpec,
        status: v1::PodStatus,
    }
    let items = pods.into_iter().filter_map(|pod| {
        let running = pod
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Running);
        let containers: Vec<Container> = running
            .map(|container| Container {
                name: container.name.to_string(),
                image: Some(container.image.to_string()),
                ..Container::default()
            })
            .collect();
        (!containers.is_empty()).then(|| Running {
            metadata: ObjectMeta {
                name: Some(pod.name.to_string()),
                namespace: Some(pod.namespace.to_string()),
                uid: Some(pod.uid.to_string()),
                ..ObjectMeta::default()
            },
            spec: PodSpec {
                containers,
                ..PodSpec::default()
            },
            status: v1::PodStatus::default(),
        })
    });
    json(list::body("PodList", items))
}

fn refuse(error: &RouteError) -> Response<Body> {
    let status = match error {
        RouteError::NotFound => StatusCode::NOT_FOUND,
        RouteError::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        RouteError::BadQuery(_) => StatusCode::BAD_REQUEST,
    };
    let mut response = text(status, format!("{error}\n"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

fn text(status: StatusCode, body: String) -> Response<Body> {
    full(status, TEXT, body)
}

fn full(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Body> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    respond(status, content_type, body.boxed_unsync())
}

fn one(object: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(object) {
        Ok(body) => full(StatusCode::OK, JSON, body + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn json(body: Body) -> Response<Body> {
    respond(StatusCode::OK, JSON, body)
}

fn respond(status: StatusCode, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}
