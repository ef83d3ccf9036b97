//! A GET over plain TCP.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::{TcpStream, UnixStream};

/// Longer than any honest answer takes, also where the machine has much else to do.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Status code and body of `GET http://127.0.0.1:port/path`.
pub async fn get(port: u16, path: &str) -> anyhow::Result<(u16, String)> {
    get_with(port, path, ("host", "127.0.0.1")).await
}

/// The same, with a header.
pub async fn get_with(
    port: u16,
    path: &str,
    header: (&str, &str),
) -> anyhow::Result<(u16, String)> {
    tokio::time::timeout(TIMEOUT, get_patiently(port, path, header))
        .await
        .context("no answer in time")?
}

async fn get_patiently(
    port: u16,
    path: &str,
    (name, value): (&str, &str),
) -> anyhow::Result<(u16, String)> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.context("connect")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut request = http::Request::get(path).header(name, value);
    if name != "host" {
        request = request.header("host", "127.0.0.1");
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok((code, String::from_utf8(body.to_vec())?))
}

/// Status code and body of a request to a kubelet's local socket.
pub async fn local(
    socket: &Path,
    method: &str,
    target: &str,
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let requested = async {
        let stream = UnixStream::connect(socket).await.context("connect")?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = http::Request::builder().method(method).uri(target);
        let request = request.header("host", "localhost");
        let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
        let response = sender.send_request(request).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        Ok((code, String::from_utf8(body.to_vec())?))
    };
    tokio::time::timeout(TIMEOUT, requested).await.context("no answer in time")?
}

/// The pods that a kubelet serves on its read-only port.
pub async fn pods(port: u16) -> anyhow::Result<Vec<Pod>> {
    let (code, body) = get(port, "/pods").await?;
    if code != 200 {
        bail!("/pods answered {code}: {body}");
    }
    let list: List<Pod> = serde_json::from_str(&body).context("/pods is no PodList")?;
    Ok(list.items)
}
