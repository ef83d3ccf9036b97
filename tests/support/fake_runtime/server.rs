//! The socket: connections that can all be dropped, and a runtime that can vanish and come back.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use kubelet::cri::v1;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tower::Service;
use v1::image_service_server::ImageServiceServer;
use v1::runtime_service_server::RuntimeServiceServer;

use super::Shared;
use super::images::Images;
use super::runtime_service::Runtime;

/// As large as real runtimes accept.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Both services behind one socket, chosen by the path.
#[derive(Clone)]
struct Both {
    shared: Arc<Shared>,
    runtime: RuntimeServiceServer<Runtime>,
    images: ImageServiceServer<Images>,
}

impl Both {
    fn new(shared: &Arc<Shared>) -> Self {
        let runtime = RuntimeServiceServer::new(Runtime(shared.clone()))
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT);
        let images = ImageServiceServer::new(Images(shared.clone()))
            .max_encoding_message_size(MESSAGE_LIMIT);
        Both { shared: shared.clone(), runtime, images }
    }
}

impl Service<http::Request<Incoming>> for Both {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        if let Some(parent) = request.headers().get("traceparent") {
            let parent = String::from_utf8_lossy(parent.as_bytes()).into_owned();
            let path = request.uri().path().to_owned();
            self.shared.traced.lock().push((path, parent));
        }
        if request.uri().path().starts_with("/runtime.v1.ImageService/") {
            Box::pin(self.images.call(request))
        } else {
            Box::pin(self.runtime.call(request))
        }
    }
}

/// The listening task; dropping it closes the socket and every connection.
pub struct Server {
    connections: Arc<Mutex<JoinSet<()>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub fn listen(shared: &Arc<Shared>, socket: &Path) -> std::io::Result<Server> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let (both, open) = (Both::new(shared), connections.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(both.clone());
                let mut open = open.lock();
                while open.try_join_next().is_some() {}
                open.spawn(async move {
                    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    // A caller that goes away is not this side's error.
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Server { connections, accepting })
    }

    pub fn drop_connections(&self) {
        self.connections.lock().abort_all();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        self.drop_connections();
    }
}
