//! A fake runtime for tests: a gRPC server on a temporary socket, with responses by method name.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::base::clock;
use crate::base::metrics::Metrics;
use crate::cri::{CriConnection, CriMetrics, ImageClient, RuntimeClient, RuntimeEndpoint};

/// The response of a method.
pub(crate) enum Reply {
    /// These encoded messages, and then success.
    Messages(Vec<Vec<u8>>),
    Fail(Code, &'static str),
    /// No response.
    Hang,
    /// A delayed response.
    After(Duration, Box<Reply>),
    /// Messages from a channel; the stream ends when the sender is dropped.
    Stream(mpsc::Receiver<Vec<u8>>),
}

impl Reply {
    pub(crate) fn message(message: &impl Message) -> Reply {
        Reply::Messages(vec![message.encode_to_vec()])
    }
}

type Handler = Box<dyn Fn(&[u8]) -> Reply + Send + Sync>;

/// The responses by method name, and the received calls.
#[derive(Clone, Default)]
pub(crate) struct Script {
    handlers: Arc<Mutex<HashMap<&'static str, Handler>>>,
    calls: Arc<Mutex<Vec<String>>>,
    aborted: Arc<Mutex<Vec<String>>>,
}

impl Script {
    /// Sets the response of `method`, computed from the encoded request.
    pub(crate) fn on(
        &self,
        method: &'static str,
        handler: impl Fn(&[u8]) -> Reply + Send + Sync + 'static,
    ) -> &Script {
        self.handlers.lock().insert(method, Box::new(handler));
        self
    }

    /// Number of calls of `method`.
    pub(crate) fn calls(&self, method: &str) -> usize {
        self.calls.lock().iter().filter(|called| *called == method).count()
    }

    /// Number of calls of `method` that the client cancelled.
    pub(crate) fn aborted(&self, method: &str) -> usize {
        self.aborted.lock().iter().filter(|called| *called == method).count()
    }

    async fn answer(&self, request: Request<hyper::body::Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        self.calls.lock().push(method.clone());
        let mut abort = OnAbort { script: self.clone(), method: Some(method.clone()) };
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        let body = body.unwrap_or_default();
        let message = body.get(5..).unwrap_or_default();
        let mut reply = match self.handlers.lock().get(method.as_str()) {
            Some(handler) => handler(message),
            None => Reply::Fail(Code::Unimplemented, "unknown method"),
        };
        while let Reply::After(wait, next) = reply {
            tokio::time::sleep(wait).await;
            reply = *next;
        }
        if matches!(reply, Reply::Hang) {
            std::future::pending::<()>().await;
        }
        abort.method = None;
        respond(reply)
    }
}

struct OnAbort {
    script: Script,
    method: Option<String>,
}

impl Drop for OnAbort {
    fn drop(&mut self) {
        if let Some(method) = self.method.take() {
            self.script.aborted.lock().push(method);
        }
    }
}

fn respond(reply: Reply) -> Response<Body> {
    let messages: BoxStream<'static, Vec<u8>> = match reply {
        Reply::Fail(code, message) => return Status::new(code, message).into_http(),
        Reply::Messages(messages) => stream::iter(messages).boxed(),
        Reply::Stream(receiver) => tokio_stream::wrappers::ReceiverStream::new(receiver).boxed(),
        Reply::Hang | Reply::After(..) => unreachable!("handled before"),
    };
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let frames = messages
        .map(|message| {
            let mut frame = vec![0u8];
            frame.extend((message.len() as u32).to_be_bytes());
            frame.extend(message);
            Frame::data(Bytes::from(frame))
        })
        .chain(stream::iter([Frame::trailers(trailers)]))
        .map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let kind = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// A fake runtime that is stopped when dropped.
pub(crate) struct TestRuntime {
    dir: tempfile::TempDir,
    pub(crate) script: Script,
    pub(crate) metrics: Metrics,
    server: Option<JoinSet<()>>,
}

impl TestRuntime {
    /// A socket without a listener.
    pub(crate) fn stopped() -> TestRuntime {
        TestRuntime {
            dir: tempfile::tempdir().unwrap(),
            script: Script::default(),
            metrics: Metrics::new(),
            server: None,
        }
    }

    pub(crate) fn started() -> TestRuntime {
        let mut runtime = TestRuntime::stopped();
        runtime.start();
        runtime
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("cri.sock")
    }

    pub(crate) fn start(&mut self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let mut server = JoinSet::new();
        server.spawn(serve(listener, self.script.clone()));
        self.server = Some(server);
    }

    /// Closes the server and all its connections, and removes the socket.
    pub(crate) async fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.shutdown().await;
        }
        let _ = std::fs::remove_file(self.socket());
    }

    pub(crate) fn connection(&self, timeout: Duration) -> CriConnection {
        let endpoint = RuntimeEndpoint::parse(path_text(&self.socket())).unwrap();
        CriConnection::new(endpoint, timeout, &CriMetrics::register(&self.metrics))
    }

    pub(crate) fn client(&self, timeout: Duration) -> RuntimeClient {
        RuntimeClient::new(self.connection(timeout))
    }

    pub(crate) fn images(&self) -> ImageClient {
        ImageClient::new(self.connection(Duration::from_secs(10)))
    }
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

async fn serve(listener: UnixListener, script: Script) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let script = script.clone();
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let script = script.clone();
                async move { Ok::<_, Infallible>(script.answer(request).await) }
            });
            let io = hyper_util::rt::TokioIo::new(stream);
            let executor = hyper_util::rt::TokioExecutor::new();
            let _ = hyper::server::conn::http2::Builder::new(executor)
                .serve_connection(io, service)
                .await;
        });
    }
}

/// Waits until the condition is true; panics after a minute.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = clock::instant() + Duration::from_secs(60);
    while !holds() {
        assert!(clock::instant() < end, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
