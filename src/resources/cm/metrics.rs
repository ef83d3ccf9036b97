//! Durations of operations on cgroups.

use crate::base::clock;
use crate::base::metrics::{DEFAULT_BUCKETS, metric_set};

metric_set! {
    /// The metric family; clones share it.
    pub struct CgroupMetrics {
        duration: Histogram(DEFAULT_BUCKETS)["operation_type"] =
            "kubelet_cgroup_manager_duration_seconds", "Duration in seconds for cgroup manager operations. Broken down by method.";
    }
}

impl CgroupMetrics {
    /// Runs `work` and records its duration.
    pub(super) fn timed<T>(&self, operation: &str, work: impl FnOnce() -> T) -> T {
        let started_at = clock::instant();
        let done = work();
        let took = clock::since(started_at).as_secs_f64();
        self.duration.with([operation]).observe(took);
        done
    }
}
