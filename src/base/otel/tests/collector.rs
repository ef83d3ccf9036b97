//! A collector that records requests and answers as a test wants. Its side of the protocol is
//! OpenTelemetry's own code.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};
use tonic::{Code, Request, Response, Status};

/// Far longer than anything takes here.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// How to answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// With an error; the spans are not kept.
    Refuse(Code),
    /// All but this many are kept, as the answer says.
    Reject(i64),
    /// Not at all.
    Hang,
}

/// A request that was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) resource: Vec<KeyValue>,
    pub(crate) scope: InstrumentationScope,
    pub(crate) spans: Vec<Span>,
}

#[derive(Default)]
struct Shared {
    batches: Vec<Batch>,
    answers: VecDeque<Answer>,
    connections: usize,
    requests: usize,
}

/// It ends when this is dropped.
pub(crate) struct TestCollector {
    endpoint: String,
    shared: Arc<Mutex<Shared>>,
    accepting: JoinHandle<()>,
}

impl TestCollector {
    /// On a port of its own.
    pub(crate) async fn start() -> TestCollector {
        Self::start_at(([127, 0, 0, 1], 0).into()).await
    }

    /// On this port.
    pub(crate) async fn start_at(address: SocketAddr) -> TestCollector {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let streams = stream::unfold(listener, |listener| async move {
            let (stream, _) = listener.accept().await.ok()?;
            Some((stream, listener))
        });
        Self::hearing(address.to_string(), streams)
    }

    /// On a socket in the file system.
    pub(crate) fn start_on(path: &Path) -> TestCollector {
        let listener = UnixListener::bind(path).unwrap();
        let streams = stream::unfold(listener, |listener| async move {
            let (stream, _) = listener.accept().await.ok()?;
            Some((stream, listener))
        });
        Self::hearing(format!("unix://{}", path.display()), streams)
    }

    fn hearing<S>(endpoint: String, streams: impl Stream<Item = S> + Send + 'static) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shared = Arc::<Mutex<Shared>>::default();
        let service = Script(shared.clone());
        let accepting = tokio::spawn(async move {
            let (mut streams, mut open) = (pin!(streams), JoinSet::new());
            while let Some(stream) = streams.next().await {
                open.spawn(serve(stream, service.clone()));
            }
        });
        Self { endpoint, shared, accepting }
    }

    /// As the configuration wants it.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The next requests are answered so, in this order; all later ones well.
    pub(crate) fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.lock().answers.extend(answers);
    }

    pub(crate) fn batches(&self) -> Vec<Batch> {
        self.shared.lock().batches.clone()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let batches = self.batches().into_iter();
        batches.flat_map(|batch| batch.spans).collect()
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// How many requests came, answered or not.
    pub(crate) fn requests(&self) -> usize {
        self.shared.lock().requests
    }

    /// Waits for the next request.
    pub(crate) async fn until(&self, what: &str, fact: impl Fn(&TestCollector) -> bool) {
        let wait = async {
            while !fact(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(WAIT_LIMIT, wait).await;
        let spans = self.spans().into_iter().map(|span| span.name);
        assert!(waited.is_ok(), "not {what}: {:?}", spans.collect::<Vec<_>>());
    }

    /// Waits for spans of which this holds, and returns them.
    pub(crate) async fn wait(&self, what: &str, wanted: impl Fn(&Span) -> bool) -> Vec<Span> {
        self.until(what, |all| all.spans().iter().any(&wanted)).await;
        let spans = self.spans().into_iter();
        spans.filter(|span| wanted(span)).collect()
    }
}

impl Drop for TestCollector {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Clone)]
struct Script(Arc<Mutex<Shared>>);

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, script: Script) {
    script.0.lock().connections += 1;
    let service = TowerToHyperService::new(TraceServiceServer::new(script));
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

#[tonic::async_trait]
impl TraceService for Script {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let answer = {
            let mut shared = self.0.lock();
            shared.requests += 1;
            shared.answers.pop_front()
        };
        let partial_success = match answer {
            Some(Answer::Refuse(code)) => return Err(Status::new(code, "as told")),
            Some(Answer::Hang) => std::future::pending().await,
            Some(Answer::Reject(rejected_spans)) => Some(ExportTracePartialSuccess {
                rejected_spans,
                error_message: "too old".to_owned(),
            }),
            None => None,
        };
        let mut shared = self.0.lock();
        for resource in request.into_inner().resource_spans {
            for scope in resource.scope_spans {
                shared.batches.push(Batch {
                    resource: resource.resource.clone().unwrap().attributes,
                    scope: scope.scope.unwrap(),
                    spans: scope.spans,
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse { partial_success }))
    }
}

pub(crate) fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

/// Trace and span as in `traceparent`, without flags.
pub(crate) fn ids(span: &Span) -> (String, String) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (hex(&span.trace_id), hex(&span.span_id))
}
