//! A client of the runtime beside the kubelet's.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use kubelet::cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

pub type Client = RuntimeServiceClient<Channel>;

/// Connects to `unix://...`, again when the connection breaks.
pub async fn connect(endpoint: &str) -> Client {
    let socket = PathBuf::from(endpoint.strip_prefix("unix://").expect("a unix endpoint"));
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Client::new(
        Endpoint::from_static("http://cri")
            .connect_with_connector(connect)
            .await
            .expect("a connection to the runtime"),
    )
}
