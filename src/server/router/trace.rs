//! Spans of requests, with the attributes of upstream's `otelrestful` except those that the client controls: the path
//! is the route's pattern, and query and user agent are omitted.

use super::{Port, RouteEntry};
use crate::base::otel::{Parent, Span, SpanContext, TraceSpanKind, Tracer};
use crate::server::http::response::{Body, Request, until_sent};
use hyper::{Method, Response};

/// The span of a request. Clients of the read-only port are not authenticated and must not decide what is sampled: as
/// upstream, the trace context of their requests becomes a link, not the parent.
pub(super) fn begin(
    tracer: &Tracer,
    port: Port,
    entry: Option<&RouteEntry>,
    request: &Request,
) -> Option<Span> {
    // Health checks are frequent, and upstream does not trace them.
    if !tracer.is_on() || port == Port::Health {
        return None;
    }
    let pattern = entry.map(|entry| entry.pattern);
    let remote = SpanContext::of_headers(request.headers());
    let parent = match port {
        Port::Main | Port::Local => Parent::Remote(remote),
        Port::ReadOnly | Port::Health => Parent::Linked(remote),
    };
    let method = method_name(request.method());
    // By OpenTelemetry's conventions, a span without a route is named by its method.
    let name = || pattern.unwrap_or(method).into();
    let mut span = tracer.start(TraceSpanKind::Server, parent, name)?;
    span.set_attributes(|| {
        let scheme = if port == Port::Main { "https" } else { "http" };
        let route = pattern.map(|pattern| ("http.route", pattern.into()));
        let others = [("http.request.method", method.into()), ("url.scheme", scheme.into())];
        others.into_iter().chain(route)
    });
    Some(span)
}

/// Waits for the response within the span, which lasts until the response was sent.
pub(super) async fn within(
    mut span: Span,
    response: impl Future<Output = Response<Body>>,
) -> Response<Body> {
    let response = span.in_scope(response).await;
    let status = response.status();
    span.set_attributes(|| {
        let code = i64::from(status.as_u16());
        [("http.response.status_code", code.into())]
    });
    if status.is_server_error() {
        span.set_error(String::new);
    }
    until_sent(response, span)
}

/// The name of a standard method; `_OTHER` otherwise.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "_OTHER",
    }
}
