//! `/exec`, `/attach`, `/run` and `/portForward`: connections that are proxied to the runtime's streaming server.
//!
//! The kubelet finds the container, requests a URL from the runtime, forwards the client's upgrade request to it, and
//! then copies bytes. The protocol inside (SPDY or WebSocket) is only known to client and runtime.
//!
//! Upstream: `getExec`, `getAttach`, `getRun` and `getPortForward` of `pkg/kubelet/server` and
//! to `UpgradeAwareHandler` of `k8s.io/apimachinery/pkg/util/proxy`.

pub(super) mod params;
pub(super) mod lookup;
mod splice;
mod target;
mod upgrade;

pub use params::{ContainerName, PodName};

use super::http::params::RouteError;
use super::http::query::pairs;
use super::http::response::{Body, Request as BodyRequest, read_body, text};
use super::http::websocket::{is_upgrade, is_websocket};
use super::known_pods::KnownPods;
use crate::base::error_chain;
use crate::base::metrics::metric_set;
use crate::cri::{CriError, RuntimeClient, StdStreams};
use crate::model::{ContainerId, PodExt as _, PodStatus};
use crate::pods::pod_sync::PodWithStatus;
use crate::state::pod_cache::PodCache;
use hyper::header::{self, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lookup::MissingContainer;
use splice::{SpliceEnd, splice};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Code;
use upgrade::{Failure, Switched};

/// Maximum number of concurrent streams and commands.
const MAX_STREAMS: usize = 512;
/// Timeout for the client to read the response to its upgrade.
const SWITCH: Duration = Duration::from_secs(10);
/// `Retry-After` if there are too many streams: the lifetime of a runtime's tokens, as upstream.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("60");

/// Dependencies of streams.
pub struct StreamDeps {
    /// The runtime of the streams.
    pub runtime: RuntimeClient,
    /// Metrics of WebSocket streams.
    pub metrics: StreamMetrics,
    /// The runtime status of every pod.
    pub cache: PodCache,
    /// All known pods.
    pub known: KnownPods,
    /// `streamingConnectionIdleTimeout`: idle streams are closed after this time; zero means never.
    pub idle: Duration,
}

/// Opens streams and tracks them until they end; cheap to clone.
#[derive(Clone)]
pub struct StreamTable {
    deps: Arc<StreamDeps>,
    slots: Arc<Semaphore>,
    open: TaskTracker,
    shutdown: CancellationToken,
}

/// Why a request is not forwarded.
#[derive(Debug, thiserror::Error)]
enum StreamRefusal {
    #[error(transparent)]
    Missing(#[from] MissingContainer),
    /// The text is upstream's.
    #[error("Upgrade request required")]
    NoUpgrade,
    #[error("query parameter \"port\" is required")]
    NoPort,
    #[error("too many streams are open ({MAX_STREAMS}); close one and try again")]
    TooManyRequests,
    #[error("{}", .0.grpc_text())]
    Runtime(#[from] CriError),
    #[error(transparent)]
    Target(#[from] target::RefusedUrl),
    #[error(transparent)]
    Upgrade(#[from] Failure),
    /// The text is that of upstream's `CodeExitError`.
    #[error("command '{cmd}' exited with {code}: {stderr}")]
    Exited { cmd: String, code: i32, stderr: String },
}

impl StreamTable {
    /// Streams are closed shortly after `shutdown`.
    pub fn new(deps: StreamDeps, shutdown: CancellationToken) -> Self {
        Self {
            deps: Arc::new(deps),
            slots: Arc::new(Semaphore::new(MAX_STREAMS)),
            open: TaskTracker::new(),
            shutdown,
        }
    }

    /// Waits for shutdown, and then until all streams are closed.
    pub async fn drained(self) -> anyhow::Result<()> {
        self.shutdown.cancelled().await;
        self.open.close();
        self.open.wait().await;
        Ok(())
    }

    /// Runs a command in a container, with streams.
    pub(super) async fn exec(
        &self,
        request: Request<()>,
        name: &ContainerName,
        command: Vec<String>,
        streams: StdStreams,
    ) -> Response<Body> {
        let url = async {
            let id = self.container(name).await?;
            let slot = self.slot(&request)?;
            let runtime = &self.deps.runtime;
            let url = runtime.exec(id.as_str(), command, streams).await?;
            if upgrade::closes_streams(request.headers()) {
                self.deps.metrics.websockets.with(["exec"]).inc();
            }
            Ok((url, slot))
        };
        self.answer("exec", url.await, request).await
    }

    /// Attaches to the first process of a container.
    pub(super) async fn attach(
        &self,
        request: Request<()>,
        name: &ContainerName,
        streams: StdStreams,
    ) -> Response<Body> {
        let url = async {
            let id = self.container(name).await?;
            let slot = self.slot(&request)?;
            let url = self.deps.runtime.attach(id.as_str(), streams).await?;
            if upgrade::closes_streams(request.headers()) {
                self.deps.metrics.websockets.with(["attach"]).inc();
            }
            Ok((url, slot))
        };
        self.answer("attach", url.await, request).await
    }

    /// Connects to ports of a pod. Over WebSocket the request has the ports; over SPDY each stream has its port.
    pub(super) async fn port_forward(
        &self,
        request: Request<()>,
        name: &PodName,
        ports: &[u16],
    ) -> Response<Body> {
        let url = async {
            let websocket = is_websocket(request.headers());
            if websocket && ports.is_empty() && !upgrade::is_tunnel(request.headers()) {
                return Err(StreamRefusal::NoPort);
            }
            let (found, runtime_status) = self.find(name).await?;
            let sandbox = lookup::sandbox(&found.0, &runtime_status)?;
            let slot = self.slot(&request)?;
            let ports = if websocket { ports } else { &[] };
            let runtime = &self.deps.runtime;
            let url = runtime.port_forward(sandbox.as_str(), ports).await?;
            if upgrade::is_tunnel(request.headers()) {
                self.deps.metrics.websockets.with(["portforward"]).inc();
            }
            Ok((url, slot))
        };
        self.answer("port-forward", url.await, request).await
    }

    /// Runs a command in a container to completion, and responds with its output and error output, one after the
    /// other. A command that is not in the query is in the body, a form of at most `max_body` bytes.
    pub(super) async fn run(
        &self,
        request: BodyRequest,
        name: &ContainerName,
        command: Option<Vec<String>>,
        max_body: usize,
    ) -> Response<Body> {
        let command = match command {
            Some(command) => command,
            None => match of_form(request, max_body).await {
                Ok(command) => command,
                Err(refused) => return *refused,
            },
        };
        let run = async {
            let id = self.container(name).await?;
            let _slot = self.free_slot()?;
            // Without a timeout, as upstream: it ends with the command, or when the client disconnects.
            let run = self.deps.runtime.exec_sync(id.as_str(), &command, Duration::ZERO);
            let output = run.await?;
            if output.exit_code != 0 {
                return Err(StreamRefusal::Exited {
                    cmd: command.join(" "),
                    code: output.exit_code,
                    stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
                });
            }
            Ok([output.stdout, output.stderr].concat())
        };
        match run.await {
            Ok(output) => text(StatusCode::OK, String::from_utf8_lossy(&output).into_owned()),
            Err(refusal) => refused("run", &refusal),
        }
    }

    /// The running instance of a container.
    ///
    /// # Errors
    /// The response for the client.
    pub(super) async fn running(
        &self,
        name: &ContainerName,
    ) -> Result<ContainerId, Box<Response<Body>>> {
        let found = self.container(name).await;
        found.map_err(|refusal| Box::new(refused("checkpoint", &refusal)))
    }

    pub(super) fn runtime(&self) -> &RuntimeClient {
        &self.deps.runtime
    }

    async fn container(&self, name: &ContainerName) -> Result<ContainerId, StreamRefusal> {
        let (found, runtime_status) = self.find(&name.pod).await?;
        Ok(lookup::container(&found.0, &runtime_status, name)?)
    }

    async fn find(&self, name: &PodName) -> Result<(PodWithStatus, Arc<PodStatus>), StreamRefusal> {
        let found = lookup::pod(self.deps.known.list_when_ready().await, name)?;
        let runtime_status = self.deps.cache.latest(&found.0.uid());
        Ok((found, runtime_status))
    }

    /// A permit for a stream, if the request is an upgrade.
    fn slot(&self, request: &Request<()>) -> Result<OwnedSemaphorePermit, StreamRefusal> {
        if is_upgrade(request.headers()) { self.free_slot() } else { Err(StreamRefusal::NoUpgrade) }
    }

    fn free_slot(&self) -> Result<OwnedSemaphorePermit, StreamRefusal> {
        let free = self.slots.clone().try_acquire_owned();
        free.map_err(|_| StreamRefusal::TooManyRequests)
    }

    /// Forwards the client's upgrade request to the runtime's URL, and forwards the response.
    async fn answer(
        &self,
        what: &'static str,
        url: Result<(String, OwnedSemaphorePermit), StreamRefusal>,
        mut request: Request<()>,
    ) -> Response<Body> {
        let switched = async {
            let (url, slot) = url?;
            let switched = upgrade::switch(target::parse(&url)?, &request).await?;
            Ok((switched, slot))
        };
        let (mut switched, slot) = match switched.await {
            Ok(switched) => switched,
            Err(refusal) => return refused(what, &refusal),
        };
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = std::mem::take(&mut switched.headers);
        // They are meaningless in this response, and some clients fail on them.
        for framing in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
            response.headers_mut().remove(framing);
        }
        let client = hyper::upgrade::on(&mut request);
        let path = request.uri().path().to_owned();
        let (idle, shutdown) = (self.deps.idle, self.shutdown.clone());
        self.open.spawn(async move {
            match stream(client, switched, idle, shutdown).await {
                Ok(end) => tracing::info!(what, path, end = %end, "Streaming connection closed"),
                Err(error) => {
                    tracing::info!(what, path, err = %error_chain(&*error), "Streaming request failed");
                }
            }
            drop(slot);
        });
        response
    }
}

/// Copies between both sides after the protocol switch, until the stream ends.
async fn stream(
    client: OnUpgrade,
    switched: Switched,
    idle: Duration,
    shutdown: CancellationToken,
) -> anyhow::Result<SpliceEnd> {
    let client = timeout(SWITCH, client).await??;
    let (client, runtime) = (TokioIo::new(client), TokioIo::new(switched.stream));
    Ok(splice(client, runtime, idle, shutdown).await)
}

/// The command in the form of a request's body.
async fn of_form(
    request: BodyRequest,
    max_body: usize,
) -> Result<Vec<String>, Box<Response<Body>>> {
    let body = read_body(request, max_body).await?;
    let form = String::from_utf8_lossy(&body);
    let command = pairs(form.trim()).and_then(|form| params::cmd(&form));
    let command = command.and_then(|command| command.ok_or_else(params::no_cmd));
    command.map_err(|bad| Box::new(RouteError::from(bad).response()))
}

fn refused(what: &'static str, refusal: &StreamRefusal) -> Response<Body> {
    let status = match refusal {
        StreamRefusal::Missing(_) => StatusCode::NOT_FOUND,
        StreamRefusal::NoUpgrade | StreamRefusal::NoPort => StatusCode::BAD_REQUEST,
        StreamRefusal::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        StreamRefusal::Runtime(error) => match error.code() {
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        },
        StreamRefusal::Exited { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        StreamRefusal::Upgrade(Failure::Refused(status, _)) => *status,
        StreamRefusal::Upgrade(Failure::Late) => StatusCode::GATEWAY_TIMEOUT,
        StreamRefusal::Target(_) | StreamRefusal::Upgrade(_) => StatusCode::BAD_GATEWAY,
    };
    if matches!(refusal, StreamRefusal::Target(_) | StreamRefusal::Upgrade(_)) {
        tracing::warn!(what, err = %error_chain(refusal), "Proxying to the runtime's streaming server failed");
    }
    let mut response = text(status, format!("{refusal}\n"));
    if status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}

metric_set! {
    /// Handles to the metrics of streams. Clones share them.
    pub struct StreamMetrics {
        websockets: Counter["subresource"] = "kubelet_websocket_streaming_requests_total",
            "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.";
    }
}
