//! Pages for browsers, with the same data as the JSON of `/explain`. They work without JavaScript; with it, they are
//! reloaded when something changes.
//!
//! Most text on the pages comes from outside. It is always escaped, and a Content-Security-Policy lets a page use
//! only its own style and script, which are identified by their hashes.

mod overview;
mod pod;

use super::html::{Html, MAX_TEXT};
use crate::server::explain::{Explanation, Overview, PodRow};
use crate::server::http::response::{Body, HTML_TYPE, respond};
use base64::Engine as _;
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use std::sync::LazyLock;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Relative link to `/` from there and from a pod's page, because behind a proxy the path has a prefix.
const HERE: &str = "./";
const ABOVE: &str = "../../";

/// Minimum size of a chunk in bytes, except for the last one.
const CHUNK: usize = 16 * 1024;

/// The Content-Security-Policy: a page may only be displayed, run its script, and let the script request changes.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = |text: &str| {
        let hash = Sha256::digest(text);
        base64::engine::general_purpose::STANDARD.encode(hash)
    };
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    HeaderValue::from_str(&policy).ok()
});

/// The page of the node's pods. Rows are generated while they are sent; `explain` is called for waiting pods, with
/// namespace, name and UID.
pub(in crate::server) fn node(
    overview: Overview,
    explain: impl Fn(&str, &str, &str) -> Option<Explanation> + Send + 'static,
    version: &'static str,
    now: Timestamp,
) -> Response<Body> {
    let head = overview::head(&overview);
    let tail = overview::tail(&overview);
    let title = Html::new().text(&overview.node, MAX_TEXT).markup(": pods");
    let row = move |pod: PodRow| {
        let why =
            overview::needs_explanation(&pod).then(|| explain(&pod.namespace, &pod.name, &pod.uid));
        overview::row(&pod, why.flatten().as_ref(), now)
    };
    let frame = (HERE, &title, overview.version.as_str());
    let (before, after) = around(frame, version);
    let parts = [before, head].into_iter();
    let parts = parts.chain(overview.pods.into_iter().map(row));
    answer(StatusCode::OK, parts.chain([tail, after]))
}

/// The page of one pod; without an explanation, that of an unknown pod. `overview_version` is the version of the
/// data.
pub(in crate::server) fn pod(
    (namespace, name): (&str, &str),
    explanation: Option<&Explanation>,
    overview_version: &str,
    version: &'static str,
) -> Response<Body> {
    let (status, content) = match explanation {
        Some(explanation) => (StatusCode::OK, pod::content(explanation)),
        None => (StatusCode::NOT_FOUND, pod::unknown(namespace, name)),
    };
    let title = Html::new().text(namespace, MAX_TEXT).markup("/");
    let title = title.text(name, MAX_TEXT);
    let (before, after) = around((ABOVE, &title, overview_version), version);
    answer(status, [before, content, after].into_iter())
}

/// The HTML around the content of each page; has the version of the data.
fn around(
    (root, title, version): (&'static str, &Html, &str),
    kubelet: &'static str,
) -> (Html, Html) {
    let before = Html::new()
        .markup("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n")
        .markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>")
        .with(title)
        .markup("</title>\n<style>")
        .markup(STYLE)
        .markup("</style>\n<noscript><meta http-equiv=\"refresh\" content=\"15\"></noscript>\n</head>\n<body>\n")
        .markup("<header><nav aria-label=\"Node\"><a href=\"")
        .markup(root)
        .markup("\">Pods</a> <a href=\"")
        .markup(root)
        .markup("events\">Events</a> <a href=\"")
        .markup(root)
        .markup("metrics\">Metrics</a> <a href=\"")
        .markup(root)
        .markup("statusz\">Process</a></nav>\n<span id=\"live\" role=\"status\"></span> <a id=\"reload\" href=\"\">Reload</a>")
        .markup("</header>\n<main data-version=\"")
        .text(version, MAX_TEXT)
        .markup("\">\n");
    let after = Html::new()
        .markup("\n</main>\n<footer>Times are in UTC. Kubelet ")
        .text(kubelet, MAX_TEXT)
        .markup("</footer>\n<script>")
        .markup(SCRIPT)
        .markup("</script>\n</body>\n</html>\n");
    (before, after)
}

fn answer(
    status: StatusCode,
    parts: impl Iterator<Item = Html> + Send + 'static,
) -> Response<Body> {
    let mut response = respond(status, HTML_TYPE, body(parts));
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 2] =
        [(header::REFERRER_POLICY, "no-referrer"), (header::CACHE_CONTROL, "no-store")];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Some(policy) = POLICY.clone() {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// Generates pieces as the client reads them, so that only one chunk of text is in memory.
fn body(parts: impl Iterator<Item = Html> + Send + 'static) -> Body {
    let mut parts = parts.fuse();
    let chunks = std::iter::from_fn(move || {
        let mut chunk = String::new();
        for part in parts.by_ref() {
            chunk.push_str(part.as_str());
            if chunk.len() >= CHUNK {
                break;
            }
        }
        (!chunk.is_empty()).then(|| Ok(Frame::data(Bytes::from(chunk))))
    });
    StreamBody::new(stream::iter(chunks)).boxed_unsync()
}
