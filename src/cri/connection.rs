//! One runtime socket, shared by the clients of its services.

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

/// The largest reply that is read. Runtimes commonly refuse to send more than 16 MiB themselves.
pub(super) const MAX_REPLY: usize = 64 * 1024 * 1024;

/// A connection that opens with the first call and reopens after it broke. Clones share it.
#[derive(Clone)]
pub struct CriConnection {
    endpoint: RuntimeEndpoint,
    request_timeout: Duration,
    service: CriService,
}

impl CriConnection {
    /// Prepares a connection to `endpoint`. `request_timeout` is `runtimeRequestTimeout` (2 minutes
    /// by default), from which the deadlines of all calls follow. Needs a running tokio runtime.
    pub fn new(endpoint: RuntimeEndpoint, request_timeout: Duration, metrics: &CriMetrics) -> Self {
        Self::traced(endpoint, request_timeout, metrics, Tracer::off())
    }

    /// The same; each call is a span, whose context is sent to the runtime.
    pub fn traced(
        endpoint: RuntimeEndpoint,
        request_timeout: Duration,
        metrics: &CriMetrics,
        tracer: Tracer,
    ) -> Self {
        let service = transport::service(&endpoint, request_timeout, metrics.clone(), tracer);
        CriConnection {
            endpoint,
            request_timeout,
            service,
        }
    }

    /// Where the runtime listens.
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
                Ok(()) => {
                    client
                        .unary(Request::new(request), path, RawReply::new())
                        .await
                }
                Err(error) => Err(Status::from_error(error)),
            },
            Err(error) => Err(Status::new(Code::Internal, error.to_string())),
        };
        finish(rpc, reply)
    }
}

/// The message of a reply, or the error as a [`CriError`].
pub(super) fn finish<T>(rpc: Rpc, reply: Result<Response<T>, Status>) -> Result<T, CriError> {
    match reply {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(CriError::from_status(rpc, &status)),
    }
}

/// A request with a deadline of its own; `None` means no deadline.
pub(super) fn with_deadline<T>(message: T, deadline: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(CallDeadline(deadline));
    request
}
