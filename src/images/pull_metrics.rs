//! Metrics of pull durations: by image size, and per pod until it has started.

use crate::base::clock::{self, Instant};
use crate::base::metrics::metric_set;
use crate::model::PodUid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Upper bounds in seconds; upstream's, as are the sizes below.
const BUCKETS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// Lower bounds of image sizes in bytes, with their labels.
const SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MB, "10MB-100MB"),
    (100 * MB, "100MB-500MB"),
    (500 * MB, "500MB-1GB"),
    (GB, "1GB-5GB"),
    (5 * GB, "5GB-10GB"),
    (10 * GB, "10GB-20GB"),
    (20 * GB, "20GB-30GB"),
    (30 * GB, "30GB-40GB"),
    (40 * GB, "40GB-60GB"),
    (60 * GB, "60GB-100GB"),
    (100 * GB, "GT100GB"),
];

/// Maximum number of pulls recorded per pod.
const MAX_PULLS_PER_POD: usize = 64;

/// Start and end of pulls.
type Pulls = Vec<(Instant, Instant)>;

metric_set! {
    /// Handles to the metrics, and the pulls of each pod. Clones share them.
    pub struct PullMetrics {
        duration: Histogram(BUCKETS)["image_size_in_bytes"] = "kubelet_image_pull_duration_seconds",
            "Duration in seconds to pull an image.";
        requests: Counter["pull_policy", "present_locally", "pull_required"] =
            "kubelet_image_manager_ensure_image_requests_total", "Number of ensure-image requests processed by the kubelet.";
    } and {
        pulls: Arc<Mutex<HashMap<PodUid, Pulls>>>;
    }
}

impl PullMetrics {
    /// Counts a request for an image. What was not found out is `None`.
    pub(super) fn requested(
        &self,
        pull_policy: &str,
        present: Option<bool>,
        pull_required: Option<bool>,
    ) {
        let text = |known: Option<bool>| match known {
            Some(true) => "true",
            Some(false) => "false",
            None => "unknown",
        };
        self.requests.with([pull_policy, text(present), text(pull_required)]).inc();
    }

    /// Records the pull of an image of `size` bytes for a pod, which requested it at `requested`.
    pub(super) fn pulled(&self, pod: &PodUid, size: u64, took: Duration, requested: Instant) {
        self.duration.with([label(size)]).observe(took.as_secs_f64());
        let mut pulls = self.pulls.lock();
        let pulls = pulls.entry(pod.clone()).or_default();
        if pulls.len() < MAX_PULLS_PER_POD {
            pulls.push((requested, clock::instant()));
        }
    }

    /// The time that image pulls of a pod took, where concurrent pulls count once. Forgets it.
    pub(super) fn take(&self, pod: &PodUid) -> Duration {
        let pulls = self.pulls.lock().remove(pod);
        union_duration(pulls.unwrap_or_default())
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        self.pulls.lock().remove(pod);
    }
}

fn label(size: u64) -> &'static str {
    let fits = SIZES.iter().rev().find(|(from, _)| size >= *from);
    fits.map_or("0-10MB", |(_, label)| label)
}

fn union_duration(mut pulls: Pulls) -> Duration {
    pulls.sort();
    let mut sum = Duration::ZERO;
    let mut until: Option<Instant> = None;
    for (from, to) in pulls {
        let from = until.map_or(from, |until| until.max(from));
        sum += to.saturating_duration_since(from);
        until = Some(until.map_or(to, |until| until.max(to)));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_upstreams_labels() {
        for (size, expected) in [
            (0, "0-10MB"),
            (10 * MB - 1, "0-10MB"),
            (10 * MB, "10MB-100MB"),
            (GB, "1GB-5GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(label(size), expected, "{size}");
        }
    }

    #[test]
    fn pulls_at_the_same_time_count_once() {
        let begin = clock::instant();
        let at = |seconds| begin + Duration::from_secs(seconds);
        for (pulls, seconds) in [
            (vec![], 0),
            (vec![(1, 3)], 2),
            (vec![(5, 6), (1, 3)], 3),
            (vec![(1, 10), (2, 3), (4, 12)], 11),
        ] {
            let pulls = pulls.into_iter().map(|(from, to)| (at(from), at(to))).collect();
            assert_eq!(union_duration(pulls), Duration::from_secs(seconds));
        }
    }
}
