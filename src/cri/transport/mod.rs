//! The transport of the generated clients: a lazily opened HTTP/2 connection over a unix socket. Each call passes, from
//! the outside in, the concurrency limit of heavy calls, metrics and a span, and the deadline. Waiting for a permit does
//! not count as call time; waiting for the connection does.

mod connector;
mod deadline;
mod observe;

use std::future::Future;
use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tonic::body::Body;
use tonic::transport::Channel;
use tower::{BoxError, Service, ServiceExt};

pub use connector::ConnectFailure;
pub(super) use deadline::CallDeadline;

use super::endpoint::RuntimeEndpoint;
use super::metrics::CriMetrics;
use super::rpc::{HeavyCallKind, Rpc};
use crate::base::EarlyReleaseSemaphore;
use crate::base::otel::Tracer;

/// Lower bound of the concurrency limit of each kind of heavy calls; the limit is twice the number of processors if that
/// is more. More concurrent calls do not make a runtime faster, but each of them slower.
const MIN_HEAVY_CALLS: usize = 8;
/// A call that takes longer releases its permit and continues, so that one that hangs does not delay others.
const PERMIT_HOLD: Duration = Duration::from_secs(2);

/// The service under the generated clients. Clones share the connection and the limits.
#[derive(Clone)]
pub struct CriService {
    channel: Channel,
    request_timeout: Duration,
    metrics: CriMetrics,
    tracer: Tracer,
    starts: EarlyReleaseSemaphore,
    tear_downs: EarlyReleaseSemaphore,
}

impl CriService {
    async fn send(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let Some(rpc) = Rpc::from_path(request.uri().path()) else {
            return self.channel.oneshot(request).await.map_err(Into::into);
        };
        let limit = match rpc.heavy_kind() {
            Some(HeavyCallKind::Start) => Some(self.starts.clone()),
            Some(HeavyCallKind::TearDown) => Some(self.tear_downs.clone()),
            None => None,
        };
        match limit {
            Some(limit) => limit.acquire().await.run(self.call(rpc, request)).await,
            None => self.call(rpc, request).await,
        }
    }

    async fn call(self, rpc: Rpc, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let timeout = match request.extensions().get::<CallDeadline>() {
            Some(CallDeadline(deadline)) => *deadline,
            None => rpc.deadline(self.request_timeout),
        };
        let send = |request| deadline::bounded(rpc, timeout, self.channel.oneshot(request));
        observe::observed(rpc, request, self.metrics, &self.tracer, send).await
    }
}

impl Service<Request<Body>> for CriService {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// Flow-control windows: replies of megabytes should not wait for window updates.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Limit of concurrent heavy calls, and of pods that start at the same time: at least 8, or twice the
/// processors.
pub fn max_heavy_calls() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    MIN_HEAVY_CALLS.max(2 * processors)
}

/// Builds the service; connects when the first call is made. Needs a running tokio runtime.
pub(super) fn service(
    endpoint: &RuntimeEndpoint,
    timeout: Duration,
    metrics: CriMetrics,
    tracer: Tracer,
) -> CriService {
    // The authority is not used on a unix socket; runtimes expect "localhost".
    let channel = tonic::transport::Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect_with_connector_lazy(connector::UnixConnector::new(endpoint.clone()));
    let limit = || EarlyReleaseSemaphore::new(max_heavy_calls(), PERMIT_HOLD);
    CriService {
        channel,
        request_timeout: timeout,
        metrics,
        tracer,
        starts: limit(),
        tear_downs: limit(),
    }
}
