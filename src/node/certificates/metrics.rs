//! Metrics of certificates, with upstream's names.

use super::plan::Purpose;
use crate::base::clock;
use crate::base::metrics::{AtScrape, Counter, Histogram, Metrics};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Histogram buckets, seconds: from a minute to four years.
const LIFETIME_BUCKETS: [f64; 10] =
    [60.0, 3600.0, 14400.0, 86400.0, 604.8e3, 2.592e6, 7.776e6, 15.552e6, 31.104e6, 124.416e6];

/// The metric families for one kind of certificate; clones share them.
#[derive(Clone, Debug)]
pub struct CertificateMetrics {
    end: Arc<Mutex<Option<SystemTime>>>,
    errors: Counter,
    lives: Option<Histogram>,
}

impl CertificateMetrics {
    /// Registers the metric families.
    pub fn new(purpose: Purpose, metrics: &Metrics) -> Self {
        let end: Arc<Mutex<Option<SystemTime>>> = Arc::default();
        let read = end.clone();
        let (ttl, ttl_help, errors, errors_help) = match purpose {
            Purpose::Client => (
                "kubelet_certificate_manager_client_ttl_seconds",
                "Gauge of the TTL (time-to-live) of the Kubelet's client certificate in seconds until expiry (negative if already expired); +Inf if it is invalid or unused.",
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "Counter of certificate renewal errors.",
            ),
            Purpose::Serving => (
                "kubelet_certificate_manager_server_ttl_seconds",
                "Gauge of the TTL (time-to-live) of the Kubelet's serving certificate in seconds until expiry (negative if already expired); +Inf if it is invalid or unused.",
                "kubelet_server_expiration_renew_errors",
                "Counter of certificate renewal errors.",
            ),
        };
        metrics.register(
            ttl,
            ttl_help,
            AtScrape::number(move || seconds_to(*read.lock(), clock::system_time())),
        );
        let lives = (purpose == Purpose::Serving).then(|| {
            metrics.register(
                "kubelet_certificate_manager_server_rotation_seconds",
                "Histogram of the number of seconds the previous certificate lived before being rotated.",
                Histogram::new(LIFETIME_BUCKETS),
            )
        });
        let errors = metrics.register(errors, errors_help, Counter::default());
        Self { end, errors, lives }
    }

    pub(super) fn failed(&self) {
        self.errors.inc();
    }

    /// Sets the expiry of the current certificate.
    pub(super) fn set_end(&self, end: Option<SystemTime>) {
        *self.end.lock() = end;
    }

    /// Records the age at which a certificate was replaced.
    pub(super) fn record_lifetime(&self, life: Duration) {
        if let Some(lives) = &self.lives {
            lives.observe(life.as_secs_f64());
        }
    }
}

fn seconds_to(end: Option<SystemTime>, now: SystemTime) -> f64 {
    match end.map(|end| end.duration_since(now)) {
        None => f64::INFINITY,
        Some(Ok(left)) => left.as_secs_f64(),
        Some(Err(over)) => -over.duration().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_live_is_infinite_without_a_certificate_and_negative_after_its_end() {
        let now = clock::system_time();
        let second = Duration::from_secs(1);
        assert_eq!(seconds_to(None, now), f64::INFINITY);
        assert_eq!(seconds_to(Some(now + second), now), 1.0);
        assert_eq!(seconds_to(Some(now - second), now), -1.0);
    }
}
