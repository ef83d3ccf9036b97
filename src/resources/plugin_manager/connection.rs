//! gRPC connections to plugins, and calls with a timeout.

use crate::base::{ObservedStream, StreamObserver, error_chain};
use crate::cri::go_code;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Timeout for a plugin to accept a connection, and to return its options.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a connection to a gRPC server on a Unix socket.
///
/// # Errors
/// The connection is refused, or it times out.
pub async fn dial(socket: &Path) -> Result<Channel, String> {
    dial_watched(socket).await.map(|(channel, _)| channel)
}

/// Like [`dial`]; the token is cancelled when the connection is lost.
///
/// # Errors
/// As [`dial`].
pub async fn dial_watched(socket: &Path) -> Result<(Channel, CancellationToken), String> {
    let lost = CancellationToken::new();
    let (path, of_stream) = (socket.to_owned(), lost.clone());
    let connector = tower::service_fn(move |_| {
        let (path, lost) = (path.clone(), of_stream.clone());
        async move {
            let stream = UnixStream::connect(path).await?;
            let stream = ObservedStream::new(stream, lost.drop_guard());
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    // The authority is not used on a Unix socket; plugins expect "localhost".
    let endpoint = Endpoint::from_static("http://localhost");
    let connecting = endpoint.connect_with_connector(connector);
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(channel)) => Ok((channel, lost)),
        Ok(Err(error)) => Err(error_chain(&error)),
        Err(_) => Err("context deadline exceeded".into()),
    }
}

/// The token is cancelled when the stream is dropped.
impl StreamObserver for DropGuard {}

/// Returns the response of a call, or its error in the Go kubelet's form.
///
/// # Errors
/// The call fails, or takes longer than `limit`.
pub async fn call_with_timeout<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, String> {
    let response = timeout(limit, call).await;
    let late = |_| Err(Status::deadline_exceeded("context deadline exceeded"));
    let response = response.unwrap_or_else(late);
    response.map(tonic::Response::into_inner).map_err(|status| go_status_text(&status))
}

/// Formats an error as the Go kubelet does.
pub fn go_status_text(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", go_code(status.code()), status.message())
}
