//! The metrics of authentication, with upstream's names.

use crate::base::{
    clock::{self, Instant},
    metrics::{DEFAULT_BUCKETS, Labels, Metrics},
};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use std::time::Duration;

/// Handles to the metrics; clones share them.
#[derive(Clone)]
pub(super) struct AuthMetrics {
    requests: Family<Labels, Counter>,
    duration: Family<Labels, Histogram, fn() -> Histogram>,
    fetches: Family<Labels, Counter>,
    active: Family<Labels, Gauge>,
    certificate_expiration: Histogram,
}

/// Upper bounds in seconds, from half an hour to a year; upstream's.
const EXPIRATION_BUCKETS: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

impl AuthMetrics {
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
            certificate_expiration: metrics.register(
                "apiserver_client_certificate_expiration_seconds",
                "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
                Histogram::new(EXPIRATION_BUCKETS),
            ),
        }
    }

    /// Records a request that was authenticated by a certificate, with the rest of its lifetime.
    pub(super) fn certificate(&self, remaining: Duration) {
        self.certificate_expiration.observe(remaining.as_secs_f64());
    }

    pub(super) fn lookup(&self, hit: bool, started_at: Instant) {
        let status = [("status", if hit { "hit" } else { "miss" })];
        self.requests.get_or_create_owned(&status).inc();
        let seconds = clock::since(started_at).as_secs_f64();
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
