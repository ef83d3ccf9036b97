//! An API server on loopback with scripted replies, over HTTP/2 or HTTP/1.1 with TLS.

use super::pki::Authority;
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// The response to one review.
pub enum Answer {
    /// This status, and this as the review's `status` if it is 201, else as the whole body.
    Json(u16, Value),
    /// Bytes that are not JSON.
    Garbage,
    /// No response.
    Silence,
}

/// The response to one request.
pub enum Reply {
    /// A status and a body.
    Json(u16, Value),
    /// The same with any body.
    Bytes(u16, Vec<u8>),
    /// 200 with a body that goes on until its [`Pushed`] is dropped.
    Stream(mpsc::Receiver<io::Result<Bytes>>),
    /// No response.
    Silence,
}

/// Writes the body of a [`Reply::Stream`].
pub struct Pushed(mpsc::Sender<io::Result<Bytes>>);

impl Pushed {
    /// Sends bytes as one frame.
    pub async fn bytes(&self, bytes: impl Into<Bytes>) {
        self.0.send(Ok(bytes.into())).await.expect("a reader");
    }

    /// Sends a line.
    pub async fn line(&self, line: &Value) {
        self.bytes(format!("{line}\n")).await;
    }

    /// Waits until it has no readers.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Breaks the response in the middle.
    pub async fn cut(self) {
        let error = io::Error::other("cut");
        self.0.send(Err(error)).await.expect("a reader");
    }
}

impl Reply {
    /// A stream and its writer.
    pub fn stream() -> (Pushed, Self) {
        let (sender, receiver) = mpsc::channel(256);
        (Pushed(sender), Self::Stream(receiver))
    }

    /// A `Status` with this code and reason.
    pub fn status(code: u16, reason: &str) -> Self {
        let text = format!("scripted {reason}");
        let body = json!({"kind": "Status", "code": code, "reason": reason, "message": text});
        Self::Json(code, body)
    }
}

/// A request as the server received it.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    /// As it was sent, with its escapes.
    pub query: String,
    pub content_type: String,
    /// `null` when there is none.
    pub body: Value,
    pub version: http::Version,
}

impl Received {
    /// The method and the path.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// A parameter of the query without its escapes.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut all = self.query.split('&').filter_map(|one| one.split_once('='));
        let (_, value) = all.find(|(key, _)| *key == name)?;
        let value = percent_encoding::percent_decode_str(value);
        Some(value.decode_utf8().expect("text").into_owned())
    }
}

type Script = dyn Fn(&Received) -> Reply + Send + Sync;

/// The server; it ends with the test.
pub struct Scripted {
    pub port: u16,
    authority: Authority,
    /// The authority of client certificates, which replace the token.
    pub clients: Arc<Authority>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    script: Box<Script>,
    shown: Mutex<Vec<Option<Vec<u8>>>>,
    received: Mutex<Vec<Received>>,
    connections: Mutex<Vec<Connection>>,
    away: AtomicBool,
}

struct Connection {
    task: AbortHandle,
    frozen: Arc<AtomicBool>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The token of the kubeconfig.
pub const TOKEN: &str = "node-token";

impl Scripted {
    /// A server of reviews; the script gets the last part of the path, and the `spec` of the review.
    pub async fn start(script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        Self::serve(move |request| {
            let kind = request.path.rsplit('/').next().unwrap_or_default();
            let spec = &request.body["spec"];
            match script(kind, spec) {
                Answer::Silence => Reply::Silence,
                Answer::Garbage => Reply::Bytes(201, format!("<{spec}>").into_bytes()),
                Answer::Json(201, status) => {
                    let mut review = request.body.clone();
                    review["status"] = status;
                    Reply::Json(201, review)
                }
                Answer::Json(status, body) => Reply::Json(status, body),
            }
        })
        .await
    }

    /// Responds with a status and a body, or not at all.
    pub async fn serving(
        script: impl Fn(&Received) -> Option<(u16, String)> + Send + Sync + 'static,
    ) -> Self {
        Self::serve(move |request| match script(request) {
            Some((status, body)) => Reply::Bytes(status, body.into_bytes()),
            None => Reply::Silence,
        })
        .await
    }

    /// Responds to each request as the script says.
    pub async fn serve(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let authority = Authority::new("cluster");
        let clients = Arc::new(Authority::new("clients"));
        let acceptor = acceptor(&authority, &clients);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            shown: Mutex::default(),
            received: Mutex::default(),
            connections: Mutex::default(),
            away: AtomicBool::new(false),
        });
        let task = tokio::spawn(accept(listener, acceptor, shared.clone()));
        Self { port, authority, clients, shared, task }
    }

    /// A kubeconfig for it in this directory.
    pub fn kubeconfig(&self, directory: &Path) -> PathBuf {
        kubeconfig(directory, self.port, &self.authority)
    }

    /// Its authority, PEM.
    pub fn authority(&self) -> String {
        self.authority.pem()
    }

    /// The client certificate of the latest request.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        self.shared.shown.lock().last().cloned().flatten()
    }

    /// All requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().clone()
    }

    /// The specs of all reviews of a kind so far: `tokenreviews` or `subjectaccessreviews`.
    pub fn seen(&self, kind: &str) -> Vec<Value> {
        let received = self.shared.received.lock();
        let of_kind = received.iter().filter(|one| one.path.rsplit('/').next() == Some(kind));
        of_kind.map(|one| one.body["spec"].clone()).collect()
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for connection in &*self.shared.connections.lock() {
            connection.task.abort();
        }
    }

    /// All present connections stay open, and nothing comes or goes any more.
    pub fn freeze(&self) {
        for connection in &*self.shared.connections.lock() {
            connection.frozen.store(true, Ordering::SeqCst);
        }
    }

    /// Breaks all connections, and new ones until it is back.
    pub fn set_away(&self, away: bool) {
        self.shared.away.store(away, Ordering::SeqCst);
        if away {
            self.cut();
        }
    }
}

/// A kubeconfig for an API server on loopback.
pub fn kubeconfig(directory: &Path, port: u16, authority: &Authority) -> PathBuf {
    std::fs::write(directory.join("cluster.crt"), authority.pem()).expect("write");
    let path = directory.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": "cluster.crt",
        }}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    std::fs::write(&path, text.to_string()).expect("write");
    path
}

fn acceptor(authority: &Authority, clients: &Authority) -> TlsAcceptor {
    let own = authority.server("kubernetes");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(clients.der()).expect("an authority");
    let provider = crate::base::tls_provider();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    );
    let verifier = verifier.allow_unauthenticated().build().expect("authorities");
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.der.clone()], own.key())
        .expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // Connections end with the server.
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if shared.away.load(Ordering::SeqCst) {
            continue;
        }
        let frozen = Arc::new(AtomicBool::new(false));
        let stream = Freezable { stream, frozen: frozen.clone() };
        let task = open.spawn(connection(stream, acceptor.clone(), shared.clone()));
        shared.connections.lock().push(Connection { task, frozen });
    }
}

async fn connection(stream: Freezable, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let tls = stream.get_ref().1;
    let chain = tls.peer_certificates();
    let certificate = chain.and_then(|chain| chain.first()).map(|own| own.to_vec());
    let is_http2 = tls.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| respond(request, certificate.clone(), shared.clone()));
    let stream = TokioIo::new(stream);
    if is_http2 {
        let mut server = http2::Builder::new(TokioExecutor::new());
        // As many as the API server allows.
        let _ = server.max_concurrent_streams(100).serve_connection(stream, service).await;
    } else {
        let _ = http1::Builder::new().serve_connection(stream, service).await;
    }
}

async fn respond(
    request: Request<Incoming>,
    certificate: Option<Vec<u8>>,
    shared: Arc<Shared>,
) -> Result<Response<BoxBody<Bytes, io::Error>>, Infallible> {
    let allowed = format!("Bearer {TOKEN}");
    let known = request.headers().get(header::AUTHORIZATION);
    let known = known.is_some_and(|value| value.as_bytes() == allowed.as_bytes());
    let known = known || certificate.is_some();
    shared.shown.lock().push(certificate);
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.map_or("", |kind| kind.to_str().expect("text"));
    let received = Received {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        content_type: content_type.to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
        version: head.version,
    };
    shared.received.lock().push(received.clone());
    let whole =
        |bytes: Vec<u8>| Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed();
    let (status, body) = if known {
        match (shared.script)(&received) {
            Reply::Silence => std::future::pending().await,
            Reply::Json(status, body) => (status, whole(body.to_string().into_bytes())),
            Reply::Bytes(status, body) => (status, whole(body)),
            Reply::Stream(receiver) => {
                let pieces = stream::unfold(receiver, |mut receiver| async {
                    let piece = receiver.recv().await?;
                    Some((piece.map(Frame::data), receiver))
                });
                let body = StreamBody::new(pieces);
                (200, body.boxed())
            }
        }
    } else {
        (401, whole(b"Unauthorized".to_vec()))
    };
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    Ok(response)
}

/// A stream that can go silent without an end.
struct Freezable {
    stream: TcpStream,
    frozen: Arc<AtomicBool>,
}

impl Freezable {
    fn thawed(&mut self) -> Poll<Pin<&mut TcpStream>> {
        if self.frozen.load(Ordering::SeqCst) {
            Poll::Pending
        } else {
            Poll::Ready(Pin::new(&mut self.stream))
        }
    }
}

impl AsyncRead for Freezable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.thawed()).poll_read(context, buffer)
    }
}

impl AsyncWrite for Freezable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.thawed()).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.thawed()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.thawed()).poll_shutdown(context)
    }
}
