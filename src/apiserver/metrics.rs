//! Metrics of requests to the API server, with upstream's names.

use crate::base::metrics::{Labels, Metrics};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};
use std::{sync::Arc, time::Duration};

/// The `code` label of a request without a response.
const NO_ANSWER: &str = "<error>";

/// The `verb` label of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedMethod {
    TokenReview,
    AccessReview,
    Other(&'static str),
}

impl CountedMethod {
    pub(super) fn of(method: &http::Method) -> Self {
        let names = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        let name = names.into_iter().find(|name| *name == method.as_str());
        Self::Other(name.unwrap_or("OTHER"))
    }

    fn label(self) -> &'static str {
        match self {
            Self::TokenReview | Self::AccessReview => "POST",
            Self::Other(name) => name,
        }
    }
}

/// Histogram buckets, seconds.
const REQUEST_BUCKETS: [f64; 12] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Upper bounds in bytes.
const SIZE_BUCKETS: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
const REVIEW_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: &'static str,
    host: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    verb: &'static str,
    host: Arc<str>,
}

type VerbHistogram = Family<VerbLabels, Histogram, fn() -> Histogram>;

impl VerbLabels {
    fn of(host: &Arc<str>, method: CountedMethod) -> Self {
        Self { verb: method.label(), host: host.clone() }
    }
}

/// The metric families; clones share them.
#[derive(Clone)]
pub(super) struct ApiRequestMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: VerbHistogram,
    limited: VerbHistogram,
    sent: VerbHistogram,
    received: VerbHistogram,
    tokens: ReviewMetrics,
    accesses: ReviewMetrics,
}

#[derive(Clone)]
struct ReviewMetrics {
    requests: Family<Labels<1, String>, Counter>,
    duration: Family<Labels<1, String>, Histogram, fn() -> Histogram>,
}

impl ApiRequestMetrics {
    /// Registers the metric families.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let review = || -> fn() -> Histogram { || Histogram::new(REVIEW_BUCKETS) };
        let request: fn() -> Histogram = || Histogram::new(REQUEST_BUCKETS);
        let size: fn() -> Histogram = || Histogram::new(SIZE_BUCKETS);
        Self {
            requests: metrics.register_default(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
            ),
            duration: metrics.register(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                Family::new_with_constructor(request),
            ),
            limited: metrics.register(
                "rest_client_rate_limiter_duration_seconds",
                "Client side rate limiter latency in seconds. Broken down by verb, and host.",
                Family::new_with_constructor(request),
            ),
            sent: metrics.register(
                "rest_client_request_size_bytes",
                "Request size in bytes. Broken down by verb and host.",
                Family::new_with_constructor(size),
            ),
            received: metrics.register(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
                Family::new_with_constructor(size),
            ),
            tokens: ReviewMetrics {
                requests: metrics.register_default(
                    "apiserver_delegated_authn_request_total",
                    "Number of HTTP requests partitioned by status code.",
                ),
                duration: metrics.register(
                    "apiserver_delegated_authn_request_duration_seconds",
                    "Request latency in seconds. Broken down by status code.",
                    Family::new_with_constructor(review()),
                ),
            },
            accesses: ReviewMetrics {
                requests: metrics.register_default(
                    "apiserver_delegated_authz_request_total",
                    "Number of HTTP requests partitioned by status code.",
                ),
                duration: metrics.register(
                    "apiserver_delegated_authz_request_duration_seconds",
                    "Request latency in seconds. Broken down by status code.",
                    Family::new_with_constructor(review()),
                ),
            },
        }
    }

    /// Records how long a request waited for the rate limit.
    pub(super) fn observe_rate_limit(
        &self,
        host: &Arc<str>,
        method: CountedMethod,
        waited: Duration,
    ) {
        let labels = VerbLabels::of(host, method);
        let limited = self.limited.get_or_create_owned(&labels);
        limited.observe(waited.as_secs_f64());
    }

    /// Records the sizes of a request's body and, where it was read, of the response's.
    pub(super) fn observe_sizes(
        &self,
        host: &Arc<str>,
        method: CountedMethod,
        sent: u64,
        received: Option<usize>,
    ) {
        let labels = VerbLabels::of(host, method);
        #[expect(clippy::cast_precision_loss, reason = "a body has at most some MiB")]
        let size = |bytes: u64| bytes as f64;
        self.sent.get_or_create_owned(&labels).observe(size(sent));
        if let Some(bytes) = received.and_then(|bytes| u64::try_from(bytes).ok()) {
            let received = self.received.get_or_create_owned(&labels);
            received.observe(size(bytes));
        }
    }

    /// Records a request with its status; without one, no response was received.
    pub(super) fn observe(
        &self,
        host: &Arc<str>,
        method: CountedMethod,
        status: Option<u16>,
        took: Duration,
    ) {
        let (host, seconds) = (host.clone(), took.as_secs_f64());
        let code = status.map_or(NO_ANSWER.to_owned(), |status| status.to_string());
        let latency = VerbLabels::of(&host, method);
        self.duration.get_or_create_owned(&latency).observe(seconds);
        let request = RequestLabels { code: code.clone(), method: method.label(), host };
        self.requests.get_or_create_owned(&request).inc();
        let of_review = match method {
            CountedMethod::TokenReview => &self.tokens,
            CountedMethod::AccessReview => &self.accesses,
            CountedMethod::Other(_) => return,
        };
        let code = [("code", code)];
        of_review.requests.get_or_create_owned(&code).inc();
        of_review.duration.get_or_create_owned(&code).observe(seconds);
    }
}
