//! The metrics of the event stream, with upstream's names.

use std::time::{Duration, SystemTime};

use crate::base::metrics::{DEFAULT_BUCKETS, metric_set};

metric_set! {
    /// Handles to the metrics. Clones share them.
    pub struct EventMetrics {
        pub(super) connections: Counter = "kubelet_evented_pleg_connection_success_count",
            "The number of times a streaming client was obtained to receive CRI Events.";
        pub(super) errors: Counter = "kubelet_evented_pleg_connection_error_count",
            "The number of errors encountered during the establishment of streaming connection with the CRI runtime.";
        latency: Histogram(DEFAULT_BUCKETS) = "kubelet_evented_pleg_connection_latency_seconds",
            "The latency of streaming connection with the CRI runtime, measured in seconds.";
    }
}

impl EventMetrics {
    /// Records the latency of an event that was created at `created_at` (nanoseconds since 1970, by the runtime's clock),
    /// unless it has no time or one in the future.
    pub(super) fn received(&self, created_at: i64, now: SystemTime) {
        let made = u64::try_from(created_at).ok().filter(|nanos| *nanos > 0);
        let made = made.map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos));
        if let Some(age) = made.and_then(|made| now.duration_since(made).ok()) {
            self.latency.observe(age.as_secs_f64());
        }
    }
}
