//! Spans of requests, described as upstream's `otelrestful` does, but for what the client alone chooses:
//! a path is that of the table, and neither query nor user agent is told.

use super::{
    held,
    response::Body,
    routes::{Entry, Port},
};
use crate::base::otel::{Kind, Parent, Span, SpanContext, Tracer};
use hyper::{Method, Request, Response};

/// A span of a request that is going to be answered. Who needs no credentials does not decide what is
/// recorded: what such a request says of its own trace is a link and no parent, as upstream has it.
pub(super) fn begin<B>(
    tracer: &Tracer,
    port: Port,
    entry: Option<&Entry>,
    request: &Request<B>,
) -> Option<Span> {
    // Somebody asks this port every few seconds whether all is well; upstream traces none of it.
    if !tracer.is_on() || port == Port::Health {
        return None;
    }
    let pattern = entry.map(|entry| entry.pattern);
    let theirs = SpanContext::of_headers(request.headers());
    let parent = match port {
        Port::Main | Port::Local => Parent::Remote(theirs),
        Port::ReadOnly | Port::Health => Parent::Linked(theirs),
    };
    let method = method_name(request.method());
    // Where no route is known, OpenTelemetry's conventions call a span by its method.
    let name = || pattern.unwrap_or(method).into();
    let mut span = tracer.start(Kind::Server, parent, name)?;
    span.note(|| {
        let scheme = if port == Port::Main { "https" } else { "http" };
        let route = pattern.map(|pattern| ("http.route", pattern.into()));
        let others = [
            ("http.request.method", method.into()),
            ("url.scheme", scheme.into()),
        ];
        others.into_iter().chain(route)
    });
    Some(span)
}

/// Answers within the span, which lasts until the answer has been sent.
pub(super) async fn until_sent(
    mut span: Span,
    answer: impl Future<Output = Response<Body>>,
) -> Response<Body> {
    let response = span.around(answer).await;
    let status = response.status();
    span.note(|| {
        let code = i64::from(status.as_u16());
        [("http.response.status_code", code.into())]
    });
    if status.is_server_error() {
        span.fail(String::new);
    }
    held::until_sent(response, span)
}

/// A method of the standard by its name, any other one as OpenTelemetry calls those.
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
