//! Asking the kubelet that runs here, over its local socket.

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::{io, path::PathBuf, time::Duration};
use tokio::net::UnixStream;

/// Longer than a kubelet waits for news.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer, in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Nobody listens there.
    #[error("cannot reach a kubelet at {}: {}", .socket.display(), .advice)]
    Unreachable {
        socket: PathBuf,
        advice: &'static str,
        #[source]
        source: io::Error,
    },
    /// It does not know what was asked for.
    #[error("{0}")]
    NotFound(String),
    /// It answered, and not as it should.
    #[error("the kubelet gives no usable answer")]
    Broken(#[source] anyhow::Error),
}

/// A kubelet.
#[derive(Clone, Debug)]
pub(super) struct Kubelet {
    socket: PathBuf,
}

impl Kubelet {
    /// The one that listens there, if one does.
    pub(super) fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// What it answers to a GET of that path.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let connected = UnixStream::connect(&self.socket).await;
        let stream = connected.map_err(|source| ClientError::Unreachable {
            socket: self.socket.clone(),
            advice: advice(source.kind()),
            source,
        })?;
        let answer = tokio::time::timeout(TIMEOUT, exchange(stream, path));
        let (status, body) = match answer.await {
            Ok(answer) => answer.map_err(ClientError::Broken)?,
            Err(_) => {
                let error = anyhow::anyhow!("nothing came within {} s", TIMEOUT.as_secs());
                return Err(ClientError::Broken(error));
            }
        };
        if status == StatusCode::OK {
            let read = serde_json::from_slice(&body).context("its answer is of another form");
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
            "there is no socket; does it run, and with this --root-dir (or --socket)?"
        }
        io::ErrorKind::PermissionDenied => "only root may ask it",
        io::ErrorKind::ConnectionRefused => "it does not run any more",
        _ => "the socket cannot be used",
    }
}

async fn exchange(stream: UnixStream, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path)
        .header(hyper::header::HOST, "kubelet")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
    let body = body.await.map_err(|error| anyhow::anyhow!(error))?;
    connection.abort();
    Ok((status, body.to_bytes()))
}
