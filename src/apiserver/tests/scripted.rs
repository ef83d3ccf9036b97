//! An API server on loopback with scripted reviews, over HTTPS.

use super::pki::Authority;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
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

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    /// Null if there is none.
    pub body: Value,
}

impl Call {
    /// The last part of the path.
    fn kind(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// The status and the body of the response; `None` is no response.
type Script = dyn Fn(&Call) -> Option<(u16, String)> + Send + Sync;

/// The response to a review.
fn review(call: &Call, answer: Answer) -> Option<(u16, String)> {
    Some(match answer {
        Answer::Silence => return None,
        Answer::Garbage => (201, format!("<{}>", call.body["spec"])),
        Answer::Json(201, status) => {
            let mut review = call.body.clone();
            review["status"] = status;
            (201, review.to_string())
        }
        Answer::Json(status, body) => (status, body.to_string()),
    })
}

/// The server; it ends with the test.
pub struct Scripted {
    pub port: u16,
    authority: Authority,
    /// The authority of client certificates, which replace the token.
    pub clients: Arc<Authority>,
    shown: Arc<Mutex<Vec<Option<Vec<u8>>>>>,
    seen: Arc<Mutex<Vec<Call>>>,
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
    /// Responds to reviews, by the last part of the path and their `spec`.
    pub async fn start(script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        let respond = move |call: &Call| review(call, script(call.kind(), &call.body["spec"]));
        Self::serving(respond).await
    }

    /// Responds to every request with a status and a body, or not at all.
    pub async fn serving(
        script: impl Fn(&Call) -> Option<(u16, String)> + Send + Sync + 'static,
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
        let (seen, shown) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let (all, script): (_, Arc<Script>) = (seen.clone(), Arc::new(script));
        let certificates: Arc<Mutex<Vec<Option<Vec<u8>>>>> = Arc::clone(&shown);
        let task = tokio::spawn(async move {
            // Connections end with the server.
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, all, script) = (acceptor.clone(), all.clone(), script.clone());
                let certificates = certificates.clone();
                open.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let chain = stream.get_ref().1.peer_certificates();
                    let certificate = chain
                        .and_then(|chain| chain.first())
                        .map(|own| own.to_vec());
                    let service = service_fn(move |request| {
                        certificates.lock().push(certificate.clone());
                        let has_certificate = certificate.is_some();
                        answer(request, has_certificate, all.clone(), script.clone())
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
            seen,
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
        let of_kind = seen.iter().filter(|call| call.kind() == kind);
        of_kind.map(|call| call.body["spec"].clone()).collect()
    }

    /// All requests so far.
    pub fn calls(&self) -> Vec<Call> {
        self.seen.lock().clone()
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
    has_certificate: bool,
    seen: Arc<Mutex<Vec<Call>>>,
    script: Arc<Script>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let allowed = format!("Bearer {TOKEN}");
    let known = request.headers().get(header::AUTHORIZATION);
    let known = known.is_some_and(|value| value.as_bytes() == allowed.as_bytes());
    let known = known || has_certificate;
    let (method, path) = (
        request.method().to_string(),
        request.uri().path().to_owned(),
    );
    let body = request.into_body().collect().await.expect("a whole body");
    let body = body.to_bytes();
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).expect("JSON")
    };
    let call = Call { method, path, body };
    seen.lock().push(call.clone());
    let (status, text) = match (known, script(&call)) {
        (false, _) => (401, "Unauthorized".to_owned()),
        (true, Some(response)) => response,
        (true, None) => std::future::pending().await,
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    Ok(response)
}
