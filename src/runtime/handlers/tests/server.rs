//! Small servers that answer what a test scripts, and record their requests.

use crate::runtime::handlers::health::health_check_response::ServingStatus;
use crate::runtime::handlers::health::health_server::{Health, HealthServer};
use crate::runtime::handlers::health::{HealthCheckRequest, HealthCheckResponse};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

const CERT: &[u8] = include_bytes!("../testdata/cert.pem");
const KEY: &[u8] = include_bytes!("../testdata/key.pem");

/// A server that ends with its handle.
pub(super) struct Server {
    pub(super) port: u16,
    /// Heads of the requests, in the order in which they came.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port that nothing listens on.
pub(super) async fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

/// What to answer to a request with this path, byte for byte.
pub(super) type Answers = fn(&str, u16) -> String;

/// A whole answer.
pub(super) fn reply(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

impl Server {
    pub(super) async fn http(address: &str, answers: Answers) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(talk(stream, answers, port, seen.clone()));
            }
        });
        Self { port, requests, task }
    }

    pub(super) async fn https(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let provider = crate::base::tls_provider();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(CERT).unwrap()],
                PrivateKeyDer::from_pem_slice(KEY).unwrap(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::spawn(talk(stream, answers, port, seen.clone()));
                }
            }
        });
        Self { port, requests, task }
    }

    pub(super) async fn grpc() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(HealthServer::new(ByName));
                let executor = hyper_util::rt::TokioExecutor::new();
                tokio::spawn(
                    hyper::server::conn::http2::Builder::new(executor)
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { port, requests: Arc::default(), task }
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answers: Answers,
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            // The other side spoke no HTTP; say so as web servers do.
            Err(_) => return,
        }
        if head.len() == 1 && head[0] == 0x16 {
            let answer = reply("400 Bad Request", "", "this is not TLS");
            let _ = stream.write_all(answer.as_bytes()).await;
            // Read on, or closing with unread bytes resets what was said.
            let _ = stream.read_to_end(&mut head).await;
            return;
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    seen.lock().push(head);
    let answer = answers(&path, port);
    let _ = stream.write_all(answer.as_bytes()).await;
    if path == "/hang" || path == "/half" {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let _ = stream.shutdown().await;
}

/// A health service whose answers are in the name of the requested service.
struct ByName;

#[tonic::async_trait]
impl Health for ByName {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let agent = request.metadata().get("user-agent").unwrap();
        assert!(agent.to_str().unwrap().starts_with("kube-probe/1.36"));
        let status = match request.get_ref().service.as_str() {
            "good" => ServingStatus::Serving,
            "bad" => ServingStatus::NotServing,
            "unimplemented" => return Err(Status::unimplemented("no")),
            "slow" => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                ServingStatus::Serving
            }
            _ => return Err(Status::not_found("unknown service")),
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }
}
