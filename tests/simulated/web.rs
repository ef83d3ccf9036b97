//! A server that answers every GET with what the test says.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

struct Shared {
    answer: Mutex<(u16, String)>,
    requested: AtomicU64,
}

/// The server; it ends with the test.
pub(crate) struct WebServer {
    shared: Arc<Shared>,
    pub(crate) url: String,
}

impl WebServer {
    pub(crate) async fn start(code: u16, body: &str) -> WebServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/pods", listener.local_addr().expect("its address"));
        let shared = Arc::new(Shared {
            answer: Mutex::new((code, body.to_owned())),
            requested: AtomicU64::new(0),
        });
        tokio::spawn(serve(listener, shared.clone()));
        WebServer { shared, url }
    }

    pub(crate) fn port(&self) -> u16 {
        let address = self.url.trim_start_matches("http://");
        let port = address.trim_end_matches("/pods").rsplit(':').next();
        port.and_then(|port| port.parse().ok()).expect("a port")
    }

    pub(crate) fn answer(&self, code: u16, body: &str) {
        *self.shared.answer.lock() = (code, body.to_owned());
    }

    /// The number of requests.
    pub(crate) fn requested(&self) -> u64 {
        self.shared.requested.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        let service = service_fn(move |_| {
            shared.requested.fetch_add(1, Ordering::SeqCst);
            let (code, body) = shared.answer.lock().clone();
            async move {
                let response = http::Response::builder().status(code);
                let response = response.body(Full::<Bytes>::from(body));
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
    }
}
