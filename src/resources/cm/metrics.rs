//! Durations of operations on cgroups.

use crate::base::{
    clock,
    metrics::{DEFAULT_BUCKETS, Labels, Metrics},
};
use prometheus_client::metrics::{family::Family, histogram::Histogram};

/// `kubelet_cgroup_manager_duration_seconds`.
#[derive(Clone)]
pub struct CgroupMetrics(Family<Labels, Histogram>);

impl CgroupMetrics {
    /// Registers the metric family.
    pub fn new(metrics: &Metrics) -> Self {
        Self(metrics.register(
            "kubelet_cgroup_manager_duration_seconds",
            "Duration in seconds for cgroup manager operations. Broken down by method.",
            Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
        ))
    }

    /// Runs `work` and records its duration.
    pub(super) fn timed<T>(&self, operation_type: &'static str, work: impl FnOnce() -> T) -> T {
        let started_at = clock::instant();
        let done = work();
        let took = clock::since(started_at).as_secs_f64();
        self.0.get_or_create(&[("operation_type", operation_type)]).observe(took);
        done
    }
}
