//! Client of this node's kubelet, over its local socket.

use crate::base::Http1;
use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;

/// Request timeout; longer than the kubelet delays responses of watches.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 256 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Nothing listens on the socket.
    #[error("cannot reach a kubelet at {}: {}", .socket.display(), .advice)]
    Unreachable {
        socket: PathBuf,
        advice: &'static str,
        #[source]
        source: io::Error,
    },
    /// Status 404, with the kubelet's message.
    #[error("{0}")]
    NotFound(String),
    /// Another status, or an unreadable response.
    #[error("the request to the kubelet failed")]
    Broken(#[source] anyhow::Error),
}

/// A client of the kubelet with this socket.
#[derive(Clone, Debug)]
pub(super) struct Kubelet {
    socket: PathBuf,
}

impl Kubelet {
    pub(super) fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let connected = UnixStream::connect(&self.socket).await;
        let stream = connected.map_err(|source| ClientError::Unreachable {
            socket: self.socket.clone(),
            advice: advice(source.kind()),
            source,
        })?;
        let response = tokio::time::timeout(TIMEOUT, exchange(stream, path));
        let (status, body) = match response.await {
            Ok(response) => response.map_err(ClientError::Broken)?,
            Err(_) => {
                let error = anyhow::anyhow!("no response within {} s", TIMEOUT.as_secs());
                return Err(ClientError::Broken(error));
            }
        };
        if status == StatusCode::OK {
            let read = serde_json::from_slice(&body).context("unexpected form of the response");
            return read.map_err(ClientError::Broken);
        }
        let text = String::from_utf8_lossy(&body).trim().to_string();
        Err(match status {
            StatusCode::NOT_FOUND => ClientError::NotFound(text),
            status => ClientError::Broken(anyhow::anyhow!("{status}: {text}")),
        })
    }
}

fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => {
            "no such socket; is the kubelet running, with this --root-dir or --socket?"
        }
        io::ErrorKind::PermissionDenied => "permission denied; run this as root",
        io::ErrorKind::ConnectionRefused => "the kubelet has stopped",
        _ => "cannot use the socket",
    }
}

async fn exchange(stream: UnixStream, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let request =
        Request::get(path).header(hyper::header::HOST, "kubelet").body(Empty::<Bytes>::new())?;
    let read = async |response: Response<Incoming>| {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect();
        let body = body.await.map_err(anyhow::Error::from_boxed)?;
        Ok((status, body.to_bytes()))
    };
    Http1::default().exchange(stream, request, read).await
}
