//! Metrics of requests to the API server, with upstream's names.

use crate::base::metrics::metric_set;
use std::time::Duration;

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

    pub(super) fn label(self) -> &'static str {
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
    64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
    16777216.0,
];
const REVIEW_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

metric_set! {
    /// The metric families; clones share them.
    pub(super) struct ApiRequestMetrics {
        requests: Counter["code", "method", "host"] = "rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.";
        duration: Histogram(REQUEST_BUCKETS)["verb", "host"] =
            "rest_client_request_duration_seconds", "Request latency in seconds. Broken down by verb, and host.";
        /// How long requests waited for the rate limit.
        pub(super) limited: Histogram(REQUEST_BUCKETS)["verb", "host"] =
            "rest_client_rate_limiter_duration_seconds", "Client side rate limiter latency in seconds. Broken down by verb, and host.";
        sent: Histogram(SIZE_BUCKETS)["verb", "host"] = "rest_client_request_size_bytes",
            "Request size in bytes. Broken down by verb and host.";
        received: Histogram(SIZE_BUCKETS)["verb", "host"] = "rest_client_response_size_bytes",
            "Response size in bytes. Broken down by verb and host.";
        token_requests: Counter["code"] = "apiserver_delegated_authn_request_total",
            "Number of HTTP requests partitioned by status code.";
        token_duration: Histogram(REVIEW_BUCKETS)["code"] =
            "apiserver_delegated_authn_request_duration_seconds", "Request latency in seconds. Broken down by status code.";
        access_requests: Counter["code"] = "apiserver_delegated_authz_request_total",
            "Number of HTTP requests partitioned by status code.";
        access_duration: Histogram(REVIEW_BUCKETS)["code"] =
            "apiserver_delegated_authz_request_duration_seconds", "Request latency in seconds. Broken down by status code.";
    }
}

impl ApiRequestMetrics {
    /// Records the sizes of a request's body and, where it was read, of the response's.
    pub(super) fn observe_sizes(
        &self,
        host: &str,
        method: CountedMethod,
        sent: u64,
        received: Option<usize>,
    ) {
        let labels = [method.label(), host];
        #[expect(clippy::cast_precision_loss, reason = "a body has at most some MiB")]
        let size = |bytes: u64| bytes as f64;
        self.sent.with(labels).observe(size(sent));
        if let Some(bytes) = received.and_then(|bytes| u64::try_from(bytes).ok()) {
            self.received.with(labels).observe(size(bytes));
        }
    }

    /// Records a request with its status; without one, no response was received.
    pub(super) fn observe(
        &self,
        host: &str,
        method: CountedMethod,
        status: Option<u16>,
        took: Duration,
    ) {
        let seconds = took.as_secs_f64();
        let code = status.map_or(NO_ANSWER.to_owned(), |status| status.to_string());
        self.duration.with([method.label(), host]).observe(seconds);
        self.requests.with([&code, method.label(), host]).inc();
        let (requests, duration) = match method {
            CountedMethod::TokenReview => (&self.token_requests, &self.token_duration),
            CountedMethod::AccessReview => (&self.access_requests, &self.access_duration),
            CountedMethod::Other(_) => return,
        };
        requests.with([&code]).inc();
        duration.with([&code]).observe(seconds);
    }
}
