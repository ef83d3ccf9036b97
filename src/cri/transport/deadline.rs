//! Enforces the deadlines of calls, which cover the whole call including the body.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Sleep, sleep_until, timeout, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tower::BoxError;

use crate::base::panics::PanicScope;
use crate::base::{clock, spawn};
use crate::cri::rpc::Rpc;

/// A detached call that exceeded its deadline is cancelled after this many further deadlines.
const OVERRUN_FACTOR: u32 = 5;

/// Request extension: the deadline of this call instead of the default one; `None` means no deadline.
#[derive(Debug, Clone, Copy)]
pub(in crate::cri) struct CallDeadline(pub(in crate::cri) Option<Duration>);

/// Returns `DeadlineExceeded` after `limit`, if there is one. The call is then cancelled, or continues without its
/// caller if [`Rpc::outlives_deadline`].
pub(super) async fn bounded<F, E>(
    rpc: Rpc,
    limit: Option<Duration>,
    call: F,
) -> Result<Response<Body>, BoxError>
where
    F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    let Some(limit) = limit else {
        return call.await.map_err(Into::into);
    };
    let at = clock::instant() + limit;
    let mut call = Box::pin(call);
    match timeout_at(at, call.as_mut()).await {
        Ok(Ok(response)) => Ok(response.map(|inner| {
            let deadline = Box::pin(sleep_until(at));
            Body::new(DeadlineBody { inner, deadline, rpc, limit })
        })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            if rpc.outlives_deadline() {
                spawn(PanicScope::Other, run_detached(rpc, limit, call));
            }
            Err(Box::new(deadline_exceeded(rpc, limit)))
        }
    }
}

/// Continues a call after its caller received `DeadlineExceeded`, so that the runtime does not cancel it.
async fn run_detached<F, E>(rpc: Rpc, limit: Duration, call: Pin<Box<F>>)
where
    F: Future<Output = Result<Response<Body>, E>> + Send,
{
    let outcome = match timeout(limit.saturating_mul(OVERRUN_FACTOR), call).await {
        Ok(Ok(_)) => "succeeded",
        Ok(Err(_)) => "failed",
        Err(_) => "cancelled",
    };
    tracing::info!(%rpc, outcome, "CRI call finished after its deadline");
}

fn deadline_exceeded(rpc: Rpc, limit: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "context deadline exceeded: {rpc} did not return within {limit:?}"
    ))
}

struct DeadlineBody {
    inner: Body,
    deadline: Pin<Box<Sleep>>,
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
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(deadline_exceeded(self.rpc, self.limit)))),
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
