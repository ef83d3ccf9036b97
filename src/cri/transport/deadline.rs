//! Ends calls that take too long. The deadline covers the whole call, body included.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tower::{BoxError, Service, ServiceExt};

use crate::cri::rpc::Rpc;

/// How often a call that outlives its deadline may take that deadline again.
const AFTERLIFE: u32 = 5;

/// Request extension: this call's own deadline (`None` is for ever) instead of the table's.
#[derive(Debug, Clone, Copy)]
pub(in crate::cri) struct CallDeadline(pub(in crate::cri) Option<Duration>);

/// Puts a deadline on every call that it knows.
#[derive(Clone)]
pub struct Deadline<S> {
    inner: S,
    request_timeout: Duration,
}

impl<S> Deadline<S> {
    pub(super) fn new(inner: S, request_timeout: Duration) -> Deadline<S> {
        Deadline {
            inner,
            request_timeout,
        }
    }
}

impl<S> Service<Request<Body>> for Deadline<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The wait for the connection is part of the call and under its deadline.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let rpc = Rpc::from_path(request.uri().path());
        let limit = match request.extensions().get::<CallDeadline>() {
            Some(CallDeadline(own)) => *own,
            None => rpc.and_then(|rpc| rpc.deadline(self.request_timeout)),
        };
        let call = self.inner.clone().oneshot(request);
        match (rpc, limit) {
            (Some(rpc), Some(limit)) => Box::pin(bounded(rpc, limit, call)),
            _ => Box::pin(async move { call.await.map_err(Into::into) }),
        }
    }
}

async fn bounded<F, E>(rpc: Rpc, limit: Duration, call: F) -> Result<Response<Body>, BoxError>
where
    F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    let at = Instant::now() + limit;
    let mut call = Box::pin(call);
    match timeout_at(at, call.as_mut()).await {
        Ok(Ok(response)) => Ok(response.map(|inner| {
            let late = Box::pin(sleep_until(at));
            Body::new(DeadlineBody {
                inner,
                late,
                rpc,
                limit,
            })
        })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            if rpc.outlives_deadline() {
                tokio::spawn(live_on(rpc, limit, call));
            }
            Err(Box::new(too_late(rpc, limit)))
        }
    }
}

/// Keeps a call alive that nobody waits for any more, so that the runtime does not cancel it.
async fn live_on<F, E>(rpc: Rpc, limit: Duration, call: Pin<Box<F>>)
where
    F: Future<Output = Result<Response<Body>, E>> + Send,
{
    let ended = match timeout(limit.saturating_mul(AFTERLIFE), call).await {
        Ok(Ok(_)) => "answered",
        Ok(Err(_)) => "failed",
        Err(_) => "cancelled",
    };
    tracing::info!(%rpc, ended, "call over its deadline ended");
}

fn too_late(rpc: Rpc, limit: Duration) -> Status {
    Status::deadline_exceeded(format!("the runtime did not answer {rpc} within {limit:?}"))
}

struct DeadlineBody {
    inner: Body,
    late: Pin<Box<Sleep>>,
    rpc: Rpc,
    limit: Duration,
}

impl HttpBody for DeadlineBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        match self.late.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(too_late(self.rpc, self.limit)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
