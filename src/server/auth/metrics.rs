//! The metrics of the token cache, with upstream's names.

use crate::base::metrics::{DEFAULT_BUCKETS, Labels, Metrics};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use tokio::time::Instant;

/// Handles to the metrics; clones share them.
#[derive(Clone)]
pub(super) struct TokenMetrics {
    requests: Family<Labels, Counter>,
    duration: Family<Labels, Histogram, fn() -> Histogram>,
    fetches: Family<Labels, Counter>,
    active: Family<Labels, Gauge>,
}

impl TokenMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(DEFAULT_BUCKETS);
        Self {
            requests: metrics.register_default(
                "authentication_token_cache_request_total",
                "Number of tokens that were looked up, by whether the cache had them",
            ),
            duration: metrics.register(
                "authentication_token_cache_request_duration_seconds",
                "Duration in seconds to look up a token, by whether the cache had it",
                Family::new_with_constructor(histogram),
            ),
            fetches: metrics.register_default(
                "authentication_token_cache_fetch_total",
                "Number of tokens that were reviewed because the cache did not have them, by outcome",
            ),
            active: metrics.register_default(
                "authentication_token_cache_active_fetch_count",
                "Number of reviews in flight, and of requests that wait for one",
            ),
        }
    }

    pub(super) fn lookup(&self, hit: bool, started_at: Instant) {
        let status = [("status", if hit { "hit" } else { "miss" })];
        self.requests.get_or_create_owned(&status).inc();
        let seconds = started_at.elapsed().as_secs_f64();
        self.duration.get_or_create_owned(&status).observe(seconds);
    }

    /// Counts a request that waits for a review, until the returned value is dropped.
    pub(super) fn blocked(&self) -> ActiveFetch {
        self.active("blocked")
    }

    /// Counts a review in flight, until the returned value is dropped.
    pub(super) fn in_flight(&self) -> ActiveFetch {
        self.active("in_flight")
    }

    fn active(&self, status: &'static str) -> ActiveFetch {
        let gauge = self.active.get_or_create_owned(&[("status", status)]);
        gauge.inc();
        ActiveFetch(gauge)
    }

    /// Records the end of a review. One with the result that the token is invalid counts as successful.
    pub(super) fn fetched(&self, ok: bool) {
        let status = [("status", if ok { "ok" } else { "error" })];
        self.fetches.get_or_create_owned(&status).inc();
    }
}

/// Incremented until dropped.
pub(super) struct ActiveFetch(Gauge);

impl Drop for ActiveFetch {
    fn drop(&mut self) {
        self.0.dec();
    }
}
