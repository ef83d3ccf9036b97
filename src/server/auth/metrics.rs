//! The metrics of authentication, with upstream's names.

use crate::base::clock::{self, Instant};
use crate::base::metrics::{DEFAULT_BUCKETS, Gauge, metric_set};

metric_set! {
    /// Handles to the metrics; clones share them.
    pub(super) struct AuthMetrics {
        requests: Counter["status"] = "authentication_token_cache_request_total",
            "Number of tokens that were looked up, by whether the cache had them";
        duration: Histogram(DEFAULT_BUCKETS)["status"] =
            "authentication_token_cache_request_duration_seconds", "Duration in seconds to look up a token, by whether the cache had it";
        /// Reviews that ended; one with the result that the token is invalid is "ok".
        pub(super) fetches: Counter["status"] = "authentication_token_cache_fetch_total",
            "Number of tokens that were reviewed because the cache did not have them, by outcome";
        active: Gauge["status"] = "authentication_token_cache_active_fetch_count",
            "Number of reviews in flight, and of requests that wait for one";
        /// The rest of the lifetime of certificates.
        pub(super) certificate_expiration: Histogram(EXPIRATION_BUCKETS) =
            "apiserver_client_certificate_expiration_seconds", "Distribution of the remaining lifetime on the certificate used to authenticate a request.";
    }
}

/// Upper bounds in seconds, from half an hour to a year; upstream's.
const EXPIRATION_BUCKETS: [f64; 14] = [
    0.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0, 172.8e3, 345.6e3, 604.8e3,
    2.592e6, 7.776e6, 15.552e6, 31.104e6,
];

impl AuthMetrics {
    pub(super) fn lookup(&self, hit: bool, started_at: Instant) {
        let status = [if hit { "hit" } else { "miss" }];
        self.requests.with(status).inc();
        self.duration.with(status).observe(clock::since(started_at).as_secs_f64());
    }

    /// Counts a request that waits for a review, until the returned value is dropped.
    pub(super) fn blocked(&self) -> ActiveFetch {
        self.active("blocked")
    }

    /// Counts a review in flight, until the returned value is dropped.
    pub(super) fn in_flight(&self) -> ActiveFetch {
        self.active("in_flight")
    }

    fn active(&self, status: &str) -> ActiveFetch {
        let gauge = self.active.with([status]);
        gauge.inc();
        ActiveFetch(gauge)
    }
}

/// Incremented until dropped.
pub(super) struct ActiveFetch(Gauge);

impl Drop for ActiveFetch {
    fn drop(&mut self) {
        self.0.dec();
    }
}
