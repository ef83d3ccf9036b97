//! An API server on loopback with scripted reviews, over HTTPS.

use super::pki::Authority;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet},
};
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

/// The last part of the path, and the `spec` of the review.
type Script = dyn Fn(&str, &Value) -> Answer + Send + Sync;

/// The body of a response.
pub type Reply = BoxBody<Bytes, Infallible>;
/// Answers a request of a client with these credentials.
type Handler = dyn Fn(Request<Incoming>, bool) -> BoxFuture<'static, Response<Reply>> + Send + Sync;

/// The server; it ends with the test.
pub struct Scripted {
    pub port: u16,
    authority: Authority,
    /// The authority of client certificates, which replace the token.
    pub clients: Arc<Authority>,
    shown: Arc<Mutex<Vec<Option<Vec<u8>>>>>,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    task: JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The token of the kubeconfig.
pub const TOKEN: &str = "node-token";

impl Scripted {
    pub async fn start(script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let (all, script): (_, Arc<Script>) = (seen.clone(), Arc::new(script));
        let reviews = move |request, known| -> BoxFuture<'static, _> {
            Box::pin(answer(request, known, all.clone(), script.clone()))
        };
        let mut server = Self::serve(reviews).await;
        server.seen = seen;
        server
    }

    /// A server of any requests.
    pub async fn serve(
        handler: impl Fn(Request<Incoming>, bool) -> BoxFuture<'static, Response<Reply>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let authority = Authority::new("cluster");
        let own = authority.server("kubernetes");
        let clients = Arc::new(Authority::new("clients"));
        let mut roots = rustls::RootCertStore::empty();
        roots.add(clients.der()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            provider.clone(),
        );
        let verifier = verifier
            .allow_unauthenticated()
            .build()
            .expect("authorities");
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.der.clone()], own.key())
            .expect("a certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shown = Arc::default();
        let handler: Arc<Handler> = Arc::new(handler);
        let certificates: Arc<Mutex<Vec<Option<Vec<u8>>>>> = Arc::clone(&shown);
        let task = tokio::spawn(async move {
            // Connections end with the server.
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                let certificates = certificates.clone();
                open.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let chain = stream.get_ref().1.peer_certificates();
                    let certificate = chain
                        .and_then(|chain| chain.first())
                        .map(|own| own.to_vec());
                    let service = service_fn(move |request: Request<Incoming>| {
                        certificates.lock().push(certificate.clone());
                        let allowed = format!("Bearer {TOKEN}");
                        let token = request.headers().get(header::AUTHORIZATION);
                        let token = token.is_some_and(|it| it.as_bytes() == allowed.as_bytes());
                        let reply = handler(request, token || certificate.is_some());
                        async { Ok::<_, Infallible>(reply.await) }
                    });
                    let served =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let _ = served.await;
                });
            }
        });
        Self {
            port,
            authority,
            clients,
            shown,
            seen: Arc::default(),
            task,
        }
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
        self.shown.lock().last().cloned().flatten()
    }

    /// The specs of all reviews of a kind so far: `tokenreviews` or `subjectaccessreviews`.
    pub fn seen(&self, kind: &str) -> Vec<Value> {
        let seen = self.seen.lock();
        let of_kind = seen.iter().filter(|(path, _)| path == kind);
        of_kind.map(|(_, spec)| spec.clone()).collect()
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

async fn answer(
    request: Request<Incoming>,
    known: bool,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    script: Arc<Script>,
) -> Response<Reply> {
    let kind = request.uri().path().rsplit('/').next().unwrap_or_default();
    let kind = kind.to_owned();
    let body = request.into_body().collect().await.expect("a whole body");
    let mut review: Value = serde_json::from_slice(&body.to_bytes()).expect("a review");
    let spec = review["spec"].take();
    seen.lock().push((kind.clone(), spec.clone()));
    let (status, text) = match (known, script(&kind, &spec)) {
        (false, _) => (401, "Unauthorized".to_owned()),
        (true, Answer::Silence) => std::future::pending().await,
        (true, Answer::Garbage) => (201, format!("<{spec}>")),
        (true, Answer::Json(201, status)) => {
            review["spec"] = spec;
            review["status"] = status;
            (201, review.to_string())
        }
        (true, Answer::Json(status, body)) => (status, body.to_string()),
    };
    reply(status, text)
}

/// A response of one piece.
pub fn reply(status: u16, text: impl Into<Bytes>) -> Response<Reply> {
    let mut response = Response::new(Full::new(text.into()).boxed());
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    response
}
