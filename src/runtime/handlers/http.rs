//! httpGet: one request per connection, HTTP/1.1, no proxy, no certificate checks.

use super::deadline::{TimeoutError, tolerance, within};
use super::net::{self, NetError};
use super::request::GetRequest;
use super::{MAX_OUTPUT, ProbeOutcome, tls, truncated};
use crate::base::{Http1, error_chain};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Maximum number of requests of one probe, including redirects.
const MAX_REQUESTS: usize = 10;
/// Maximum size of the head of a response, in bytes.
const MAX_HEAD: usize = 256 * 1024;

/// A response; the body is truncated to [`MAX_OUTPUT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    location: Option<String>,
    body: Vec<u8>,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FetchError {
    /// The text names the URL.
    pub(super) error: NetError,
    /// The text without the URL and what the server sent.
    pub(super) cause: String,
    /// The server responded to the TLS handshake in plain text.
    pub(super) no_tls: bool,
}

impl FetchError {
    fn of_request(url: &str, cause: String, local: bool) -> Self {
        Self {
            error: NetError { text: format!("Get {url:?}: {cause}"), local },
            cause,
            no_tls: false,
        }
    }

    /// A redirect that is not followed; its location is what the server sent.
    fn of_redirect(location: &str, text: String, cause: &str) -> Self {
        Self { cause: cause.to_owned(), ..Self::of_request(location, text, false) }
    }
}

pub(super) async fn probe(request: GetRequest, timeout: Duration) -> ProbeOutcome {
    let url = request.url.to_string();
    let reading = AtomicBool::new(false);
    match within(timeout, get(request, tolerance(timeout), &reading)).await {
        Ok(Ok(response)) => classify(&response),
        Ok(Err(FetchError { error, .. })) if error.local => ProbeOutcome::unknown(error.text),
        Ok(Err(FetchError { error, .. })) => ProbeOutcome::failure(error.text),
        Err(TimeoutError::Starved(lag)) => {
            ProbeOutcome::unknown(TimeoutError::starved_text(lag, timeout))
        }
        Err(TimeoutError::TimedOut) => {
            let doing = if reading.load(Ordering::Relaxed) {
                "Client.Timeout or context cancellation while reading body"
            } else {
                "Client.Timeout exceeded while awaiting headers"
            };
            ProbeOutcome::failure(format!("Get {url:?}: context deadline exceeded ({doing})"))
        }
    }
}

fn classify(response: &HttpResponse) -> ProbeOutcome {
    let code = response.status.as_u16();
    match code {
        200..300 => ProbeOutcome::success(truncated(&response.body)),
        300..400 => ProbeOutcome::Warning {
            output: format!(
                "Probe terminated redirects, Response body: {}",
                truncated(&response.body)
            ),
        },
        _ => ProbeOutcome::failure(format!("HTTP probe failed with statuscode: {code}")),
    }
}

/// Sends a request and follows redirects as long as they stay on the first host. A lookup of a host name begins within
/// `max_wait` or is an error. `reading` is set while the body of a response is read.
pub(super) async fn get(
    mut request: GetRequest,
    max_wait: Duration,
    reading: &AtomicBool,
) -> Result<HttpResponse, FetchError> {
    let first_host = request.url.host.clone();
    let mut requests = 0;
    loop {
        requests += 1;
        reading.store(false, Ordering::Relaxed);
        let response = send(&request, max_wait, reading).await?;
        let Some(location) = response.redirects_to() else {
            return Ok(response);
        };
        let next = request
            .redirected(location)
            .map_err(|text| FetchError::of_redirect(location, text, "invalid redirect"))?;
        if !next.url.host.eq_ignore_ascii_case(&first_host) {
            return Ok(response);
        }
        if requests >= MAX_REQUESTS {
            let text = format!("stopped after {MAX_REQUESTS} redirects");
            let cause = text.clone();
            return Err(FetchError::of_redirect(&next.url.to_string(), text, &cause));
        }
        request = next;
    }
}

impl HttpResponse {
    fn redirects_to(&self) -> Option<&str> {
        let location = self.location.as_deref()?;
        let is_redirect = matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308);
        is_redirect.then_some(location)
    }
}

async fn send(
    request: &GetRequest,
    max_wait: Duration,
    reading: &AtomicBool,
) -> Result<HttpResponse, FetchError> {
    let url = &request.url;
    let error = |text, local| FetchError::of_request(&url.to_string(), text, local);
    let stream =
        net::dial(&url.host, url.port(), max_wait).await.map_err(|e| error(e.text, e.local))?;
    let response = if url.https {
        match tls::connect(&url.host, stream).await {
            Ok(stream) => exchange(stream, request, reading).await,
            Err(e) if tls::is_no_tls(&e) => {
                let text = "http: server gave HTTP response to HTTPS client".to_owned();
                return Err(FetchError { no_tls: true, ..error(text, false) });
            }
            Err(e) => {
                return Err(error(format!("tls: {}", net::io_text(&e)), net::is_local(&e)));
            }
        }
    } else {
        exchange(stream, request, reading).await
    };
    response.map_err(|e| {
        let cause = io_cause(&e);
        let text = match cause {
            _ if e.is_incomplete_message() => "EOF".to_owned(),
            Some(cause) => format!("read: {}", net::io_text(cause)),
            None => error_chain(&e),
        };
        error(text, cause.is_some_and(net::is_local))
    })
}

fn io_cause(error: &hyper::Error) -> Option<&io::Error> {
    error.source()?.downcast_ref()
}

async fn exchange<S>(
    stream: S,
    request: &GetRequest,
    reading: &AtomicBool,
) -> Result<HttpResponse, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let client = Http1 { title_case: true, max_head: Some(MAX_HEAD) };
    let read = async |response| {
        reading.store(true, Ordering::Relaxed);
        read(response).await
    };
    client.exchange(stream, wire(request), read).await
}

fn wire(request: &GetRequest) -> Request<Empty<Bytes>> {
    let mut wire = Request::new(Empty::new());
    // A target has only characters that a URI may have; if not, the root is requested.
    *wire.uri_mut() = request.url.target.parse().unwrap_or_default();
    let host = match &request.host {
        Some(host) => Some(host.clone()),
        None => request.url.authority().parse().ok(),
    };
    wire.headers_mut().extend(host.map(|host| (header::HOST, host)));
    wire.headers_mut().extend(request.headers.clone());
    wire
}

async fn read(response: http::Response<Incoming>) -> Result<HttpResponse, hyper::Error> {
    let location = response
        .headers()
        .get(header::LOCATION)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let (head, mut incoming) = response.into_parts();
    let mut body = Vec::new();
    while body.len() < MAX_OUTPUT {
        let Some(frame) = incoming.frame().await else {
            break;
        };
        if let Some(data) = frame?.data_ref() {
            let remaining = MAX_OUTPUT - body.len();
            body.extend_from_slice(data.get(..remaining).unwrap_or(data));
        }
    }
    Ok(HttpResponse {
        status: head.status,
        location: location.filter(|location| !location.is_empty()),
        body,
    })
}
