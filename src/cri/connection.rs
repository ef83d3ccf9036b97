//! A connection to a runtime socket, shared by the clients of its services.

use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::{Code, Request, Response, Status};

use super::codec::RawReply;
use super::endpoint::RuntimeEndpoint;
use super::error::CriError;
use super::metrics::CriMetrics;
use super::rpc::Rpc;
use super::transport::{self, CallDeadline, CriService};
use crate::base::otel::Tracer;

/// Maximum size of a reply. Runtimes usually limit messages to 16 MiB themselves.
pub(super) const MAX_REPLY: usize = 64 * 1024 * 1024;

/// A connection that is established by the first call, and again after it was lost. Clones share it.
#[derive(Clone)]
pub struct CriConnection {
    endpoint: RuntimeEndpoint,
    request_timeout: Duration,
    service: CriService,
}

impl CriConnection {
    /// A connection to `endpoint`; does not connect yet. `request_timeout` is `runtimeRequestTimeout` (default 2
    /// minutes), from which the deadlines of all calls derive. Must be called within a tokio runtime.
    pub fn new(endpoint: RuntimeEndpoint, request_timeout: Duration, metrics: &CriMetrics) -> Self {
        Self::traced(endpoint, request_timeout, metrics, Tracer::disabled())
    }

    /// As [`Self::new`], with a span for each call, whose context is sent to the runtime.
    pub fn traced(
        endpoint: RuntimeEndpoint,
        request_timeout: Duration,
        metrics: &CriMetrics,
        tracer: Tracer,
    ) -> Self {
        let service = transport::service(&endpoint, request_timeout, metrics.clone(), tracer);
        CriConnection { endpoint, request_timeout, service }
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &RuntimeEndpoint {
        &self.endpoint
    }

    /// The deadline of an ordinary call.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The service stack, for generated clients.
    pub(super) fn service(&self) -> CriService {
        self.service.clone()
    }

    /// Makes a call of the runtime service and returns the encoded reply.
    pub(super) async fn raw_reply<T>(&self, rpc: Rpc, request: T) -> Result<Bytes, CriError>
    where
        T: Message + Send + Sync + 'static,
    {
        let mut client =
            tonic::client::Grpc::new(self.service()).max_decoding_message_size(MAX_REPLY);
        let path = format!("/runtime.v1.RuntimeService/{}", rpc.method());
        let reply = match PathAndQuery::try_from(path) {
            Ok(path) => match client.ready().await {
                Ok(()) => client.unary(Request::new(request), path, RawReply::new()).await,
                Err(error) => Err(Status::from_error(error)),
            },
            Err(error) => Err(Status::new(Code::Internal, error.to_string())),
        };
        finish(rpc, reply)
    }
}

/// Makes a unary call of a generated client. The call's future is boxed, because it is several kilobytes in size and
/// hundreds of pods may wait for one.
pub(super) fn unary<T>(
    rpc: Rpc,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> impl Future<Output = Result<T, CriError>> {
    let call = Box::pin(call);
    async move { finish(rpc, call.await) }
}

/// The message of a reply, or the error as a [`CriError`].
pub(super) fn finish<T>(rpc: Rpc, reply: Result<Response<T>, Status>) -> Result<T, CriError> {
    match reply {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(CriError::from_status(rpc, &status)),
    }
}

/// A request with a specific deadline; `None` means no deadline.
pub(super) fn with_deadline<T>(message: T, deadline: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(CallDeadline(deadline));
    request
}
