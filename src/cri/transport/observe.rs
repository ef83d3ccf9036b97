//! Records metrics and a span of every call. Requests and replies are not logged, because they may contain secrets.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::BoxError;
use tracing::Instrument;

use crate::base::clock::{self, Instant};
use crate::base::otel::{Parent, Span, TraceSpanKind, Tracer};
use crate::cri::metrics::CriMetrics;
use crate::cri::rpc::Rpc;

/// Records a call made by `send`.
pub(super) async fn observed<F>(
    rpc: Rpc,
    mut request: Request<Body>,
    metrics: CriMetrics,
    tracer: &Tracer,
    send: impl FnOnce(Request<Body>) -> F,
) -> Result<Response<Body>, BoxError>
where
    F: Future<Output = Result<Response<Body>, BoxError>>,
{
    let record = CallRecord {
        rpc,
        begin: clock::instant(),
        metrics,
        span: begin_span(tracer, &mut request),
        done: false,
    };
    let log_span = tracing::debug_span!("cri", %rpc);
    recorded(send(request), record).instrument(log_span).await
}

/// The span of a call, with name and attributes as in upstream's `otelgrpc`. Its context is added to the request.
fn begin_span(tracer: &Tracer, request: &mut Request<Body>) -> Option<Span> {
    let name = || request.uri().path().trim_start_matches('/').to_owned();
    let mut span = tracer.start(TraceSpanKind::Client, Parent::Current, || name().into())?;
    span.set_attributes(|| {
        let name = name();
        let (service, method) = name.split_once('/').unwrap_or_default();
        [
            ("rpc.system", "grpc".into()),
            ("rpc.service", service.to_owned().into()),
            ("rpc.method", method.to_owned().into()),
        ]
    });
    span.context().put_into(request.headers_mut());
    Some(span)
}

async fn recorded<F>(call: F, mut record: CallRecord) -> Result<Response<Body>, BoxError>
where
    F: Future<Output = Result<Response<Body>, BoxError>>,
{
    match call.await {
        Ok(response) => match status_of(response.headers()) {
            Some(code) => {
                record.end(code);
                Ok(response)
            }
            None => Ok(response.map(|inner| Body::new(ObservedBody { inner, record }))),
        },
        Err(error) => {
            record.end(error.downcast_ref::<Status>().map_or(Code::Unavailable, Status::code));
            Err(error)
        }
    }
}

/// The `grpc-status` in headers or trailers, if there is one.
fn status_of(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// A call in progress; recorded exactly once, at the latest when dropped.
struct CallRecord {
    rpc: Rpc,
    begin: Instant,
    metrics: CriMetrics,
    span: Option<Span>,
    done: bool,
}

impl CallRecord {
    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let took = clock::since(self.begin);
        let stopped_watching = self.rpc.is_watch() && code == Code::Cancelled;
        let failed = code != Code::Ok && !stopped_watching;
        self.metrics.observe(self.rpc, took, failed);
        if let Some(mut span) = self.span.take() {
            span.set_attributes(|| [("rpc.grpc.status_code", i64::from(i32::from(code)).into())]);
            if failed {
                // The runtime's message may contain secrets, so only the code is recorded.
                span.set_error(|| code.to_string());
            }
        }
        tracing::debug!(rpc = %self.rpc, ?code, ?took, "CRI call ended");
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

struct ObservedBody {
    inner: Body,
    record: CallRecord,
}

impl HttpBody for ObservedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.record.end(status_of(trailers).unwrap_or(Code::Unknown));
                }
            }
            Some(Err(status)) => {
                let code = status.code();
                self.record.end(code);
            }
            None => self.record.end(Code::Unknown),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
