//! Helpers to build responses and to read request bodies.

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use std::error::Error;
use std::time::Duration;

pub(in crate::server) type BodyError = Box<dyn Error + Send + Sync>;

/// The body of a response. An error aborts the connection, so that the client does not mistake a partial response for
/// a complete one.
pub(in crate::server) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A request whose body has not been read.
pub(in crate::server) type Request = hyper::Request<UnsyncBoxBody<Bytes, BodyError>>;

/// Extension that marks a response without an end, such as a stream. Its handler has its own limit, so the connection
/// is no longer counted.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct LongRunning {
    /// Timeout for a client that does not read; zero means none.
    pub(in crate::server) write_timeout: Duration,
}

/// Timeout for reading a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/json");
pub(in crate::server) const TEXT_TYPE: HeaderValue =
    HeaderValue::from_static("text/plain; charset=utf-8");
pub(in crate::server) const HTML_TYPE: HeaderValue =
    HeaderValue::from_static("text/html; charset=utf-8");

pub(in crate::server) fn text(status: StatusCode, body: String) -> Response<Body> {
    full(status, TEXT_TYPE, body)
}

pub(in crate::server) fn full(
    status: StatusCode,
    content_type: HeaderValue,
    body: String,
) -> Response<Body> {
    full_bytes(status, content_type, Bytes::from(body))
}

pub(in crate::server) fn full_bytes(
    status: StatusCode,
    content_type: HeaderValue,
    body: Bytes,
) -> Response<Body> {
    let body = Full::new(body).map_err(|never| match never {});
    respond(status, content_type, body.boxed_unsync())
}

pub(in crate::server) fn json_object(object: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(object) {
        Ok(body) => full(StatusCode::OK, JSON_TYPE, body + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub(in crate::server) fn json_stream(body: Body) -> Response<Body> {
    respond(StatusCode::OK, JSON_TYPE, body)
}

pub(in crate::server) fn respond(
    status: StatusCode,
    content_type: HeaderValue,
    body: Body,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A 400 response with the reason.
pub(in crate::server) fn bad_request(why: &str) -> Response<Body> {
    text(StatusCode::BAD_REQUEST, format!("400 bad request: {why}\n"))
}

/// A 404 response with the reason.
pub(in crate::server) fn not_found(why: &str) -> Response<Body> {
    text(StatusCode::NOT_FOUND, format!("404 {why}\n"))
}

/// Reads the whole body of a request.
///
/// # Errors
/// The response for a body that is too large, too slow or broken.
pub(in crate::server) async fn read_body(
    request: Request,
    limit: usize,
) -> Result<Bytes, Box<Response<Body>>> {
    let refused = match tokio::time::timeout(BODY_TIMEOUT, collect(request, limit)).await {
        Ok(Ok(Some(body))) => return Ok(body),
        Ok(Ok(None)) => text(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("413 request body too large: the limit is {limit} bytes\n"),
        ),
        Ok(Err(error)) => bad_request(&format!("the body cannot be read: {error}")),
        Err(_) => {
            text(StatusCode::REQUEST_TIMEOUT, "408 timed out reading the request body\n".into())
        }
    };
    Err(Box::new(with_connection_close(refused)))
}

/// `None` if it is larger than `limit`.
async fn collect(request: Request, limit: usize) -> Result<Option<Bytes>, BodyError> {
    let (mut body, mut read) = (request.into_body(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if read.len().saturating_add(data.len()) > limit {
            return Ok(None);
        }
        read.extend_from_slice(&data);
    }
    Ok(Some(read.freeze()))
}

/// Adds `Connection: close`, because the rest of the request is not read.
pub(in crate::server) fn with_connection_close(mut response: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Keeps `value` alive until the response was sent or the client has disconnected.
pub(in crate::server) fn until_sent<T: Send + 'static>(
    response: Response<Body>,
    value: T,
) -> Response<Body> {
    response.map(|body| {
        // The body owns the closure, and the closure the value. The size hint stays, from which hyper derives
        // Content-Length or chunked encoding.
        let with_value = move |error| {
            let _held = &value;
            error
        };
        body.map_err(with_value).boxed_unsync()
    })
}
