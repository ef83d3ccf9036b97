//! Forwards the client's upgrade request to the runtime's streaming server.

use super::target::{Address, StreamingTarget};
use crate::base::Http1;
use crate::server::http::websocket;
use crate::server::http::websocket::is_websocket;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Request, Response, StatusCode};
use std::io;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::either::Either;

/// Timeout for connecting to the server, which is on this node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the server's response to the upgrade.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the response's head, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Maximum size of an error text that is forwarded, in bytes.
const MAX_TEXT: usize = 16 * 1024;

/// Headers that negotiate the protocol. Others are not forwarded, especially credentials; nor are subprotocols that
/// contain a token.
const PASSED: [&str; 4] = ["upgrade", "origin", "user-agent", "x-stream-protocol-version"];
const WEBSOCKET: &str = "sec-websocket-";

/// A connection to the runtime after the protocol switch.
pub(super) struct Switched {
    /// Headers of the response that are forwarded to the client.
    pub(super) headers: HeaderMap,
    /// The connection after the response.
    pub(super) stream: Upgraded,
}

/// Why the upgrade failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot connect to the runtime's streaming server: {0}")]
    Connect(io::Error),
    #[error("the runtime's streaming server does not respond")]
    Late,
    /// The response is not HTTP, or the connection was closed.
    #[error("the runtime's streaming server does not speak HTTP: {0}")]
    Garbage(#[from] hyper::Error),
    /// A 4xx or 5xx response, with its text.
    #[error("the runtime's streaming server refuses: {1}")]
    Refused(StatusCode, String),
    /// Any other status.
    #[error("invalid upgrade response: status code {}", .0.as_u16())]
    NotSwitched(StatusCode),
}

/// Whether it is a WebSocket that tunnels SPDY, as API servers support for port-forward.
pub(super) fn is_tunnel(headers: &HeaderMap) -> bool {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mut offered = offered.filter_map(|value| value.to_str().ok());
    is_websocket(headers) && offered.any(|list| list.contains("SPDY/3.1+portforward.k8s.io"))
}

/// Whether it is the WebSocket protocol version that can close individual streams, which `kubectl exec` uses.
pub(super) fn closes_streams(headers: &HeaderMap) -> bool {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mut offered = offered.filter_map(|value| value.to_str().ok());
    let closes = |list: &str| list.split(',').any(|one| one.trim() == "v5.channel.k8s.io");
    is_websocket(headers) && offered.any(closes)
}

/// Connects and sends the upgrade request.
pub(super) async fn switch<B>(
    target: StreamingTarget,
    request: &Request<B>,
) -> Result<Switched, Failure> {
    let outgoing = outgoing_request(&target, request);
    let stream = match timeout(CONNECT_TIMEOUT, connect(&target.address)).await {
        Ok(stream) => stream.map_err(Failure::Connect)?,
        Err(_) => return Err(Failure::Late),
    };
    match timeout(RESPONSE_TIMEOUT, send(stream, outgoing)).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::Late),
    }
}

type RuntimeStream = Either<TcpStream, UnixStream>;

async fn connect(address: &Address) -> io::Result<RuntimeStream> {
    Ok(match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Either::Left(stream)
        }
        Address::Unix(path) => Either::Right(UnixStream::connect(path).await?),
    })
}

/// The request to the runtime, with the required headers.
fn outgoing_request<B>(target: &StreamingTarget, request: &Request<B>) -> Request<Empty<Bytes>> {
    let mut outgoing = Request::new(Empty::new());
    *outgoing.method_mut() = request.method().clone();
    // Path and host were validated before.
    *outgoing.uri_mut() = target.path.parse().unwrap_or_default();
    let headers = outgoing.headers_mut();
    if let Ok(host) = HeaderValue::from_str(&target.host) {
        headers.insert(header::HOST, host);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let passed = |name: &HeaderName| {
        let name = name.as_str();
        let websocket = name.starts_with(WEBSOCKET) && name != header::SEC_WEBSOCKET_PROTOCOL;
        PASSED.contains(&name) || websocket
    };
    for (name, value) in request.headers().iter().filter(|(name, _)| passed(name)) {
        headers.append(name, value.clone());
    }
    if let Some(protocols) = websocket::without_tokens(request.headers()) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    outgoing
}

async fn send(stream: RuntimeStream, request: Request<Empty<Bytes>>) -> Result<Switched, Failure> {
    let client = Http1 { max_head: Some(MAX_HEAD), ..Http1::default() };
    client.exchange(stream, request, switched).await
}

/// The stream, if the connection has switched protocols.
async fn switched(mut response: Response<Incoming>) -> Result<Switched, Failure> {
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let headers = std::mem::take(response.headers_mut());
            let stream = hyper::upgrade::on(response).await?;
            Ok(Switched { headers, stream })
        }
        status if status.is_client_error() || status.is_server_error() => {
            Err(Failure::Refused(status, text_of(response).await))
        }
        status => Err(Failure::NotSwitched(status)),
    }
}

/// The error text of a response, within the limits of time and size.
async fn text_of(answer: Response<Incoming>) -> String {
    let body = Limited::new(answer.into_body(), MAX_TEXT).collect();
    let body = timeout(Duration::from_secs(5), body).await;
    let bytes = body.ok().and_then(Result::ok).map(|body| body.to_bytes());
    let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
    match text.trim_end() {
        "" => "no reason given".into(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_times_out_after_half_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _nobody_accepts = tokio::net::UnixListener::bind(&socket).unwrap();
        let target = StreamingTarget {
            address: Address::Unix(socket),
            host: "localhost".into(),
            path: "/".into(),
        };
        let begun = clock::instant();
        let failed = switch(target, &Request::new(())).await.err().unwrap();
        assert!(matches!(failed, Failure::Late), "{failed:?}");
        assert_eq!(clock::since(begun).as_secs(), 30);
    }

    #[test]
    fn protocols_are_passed_on_as_they_are_and_credentials_are_not() {
        let mut request = Request::post("/exec/ns/pod/c?command=x").body(()).unwrap();
        *request.headers_mut() = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("sec-websocket-key", "k=="),
            (
                "sec-websocket-protocol",
                "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io",
            ),
            ("authorization", "Bearer secret"),
            ("cookie", "session=secret"),
            ("x-remote-user", "root"),
            ("impersonate-user", "root"),
            ("host", "node:10250"),
            ("transfer-encoding", "chunked"),
        ]);
        request
            .headers_mut()
            .append("x-stream-protocol-version", HeaderValue::from_static("v3.channel.k8s.io"));
        let target = StreamingTarget {
            address: Address::Unix("/x".into()),
            host: "127.0.0.1:5".into(),
            path: "/exec/token".into(),
        };
        let outgoing = outgoing_request(&target, &request);
        assert_eq!(outgoing.method(), "POST");
        assert_eq!(outgoing.uri(), "/exec/token");
        let mut lines: Vec<String> = outgoing
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "connection: Upgrade",
                "host: 127.0.0.1:5",
                "sec-websocket-key: k==",
                "sec-websocket-protocol: v5.channel.k8s.io, v4.channel.k8s.io",
                "upgrade: SPDY/3.1",
                "x-stream-protocol-version: v3.channel.k8s.io",
                "x-stream-protocol-version: v4.channel.k8s.io",
            ]
        );
        let versions = outgoing.headers().get_all("x-stream-protocol-version");
        let in_order: Vec<_> = versions.iter().collect();
        assert_eq!(in_order, ["v4.channel.k8s.io", "v3.channel.k8s.io"]);
    }
}
