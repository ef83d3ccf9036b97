//! Metrics of pod resizes.

use super::{Allocations, ComputeAmounts, PodResourceInfo};
use crate::base::metrics::{AtScrape, Metrics, ScrapeSample, metric_set};
use std::time::Duration;

const MILLISECONDS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 30000.0, 60000.0, 120000.0,
    300_000.0, 600_000.0,
];

metric_set! {
    /// The metric families.
    pub struct ResizeMetrics {
        requested: Counter["resource", "requirement", "operation"] =
            "kubelet_container_requested_resizes_total", "Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.";
        /// Infeasible resizes.
        pub infeasible: Counter["reason_detail"] = "kubelet_pod_infeasible_resizes_total",
            "Number of infeasible resizes for pods.";
        /// Deferred resizes that were accepted.
        pub deferred_accepted: Counter["retry_trigger"] = "kubelet_pod_deferred_accepted_resizes_total",
            "Cumulative number of resizes that were accepted after being deferred.";
        durations: Histogram(MILLISECONDS)["success"] = "kubelet_pod_resize_duration_milliseconds",
            "Duration in milliseconds to actuate a pod resize";
    }
}

impl ResizeMetrics {
    /// Registers the metric families.
    pub fn new(metrics: &Metrics, allocations: &Allocations) -> Self {
        let all = allocations.clone();
        metrics.register(
            "kubelet_pod_pending_resizes",
            "Number of pending resizes for pods.",
            AtScrape::gauge(move || {
                let counts = all.count();
                let sample = |reason: &str, count: usize| -> ScrapeSample {
                    (vec![("reason", reason.to_owned())], count as f64)
                };
                vec![
                    // Not as in conditions.
                    sample("deferred", counts.deferred),
                    sample("infeasible", counts.infeasible),
                ]
            }),
        );
        let all = allocations.clone();
        metrics.register(
            "kubelet_pod_in_progress_resizes",
            "Number of in-progress resizes for pods.",
            AtScrape::number(move || all.count().in_progress as f64),
        );
        Self::register(metrics)
    }

    /// Counts a resize that a pod requests.
    pub fn record_requested(&self, before: &PodResourceInfo, now: &PodResourceInfo) {
        for (name, amounts) in &now.containers {
            let Some(before) = before.containers.get(name) else {
                continue;
            };
            let before = ComputeAmounts::of(before, None);
            let now = ComputeAmounts::of(amounts, None);
            for (resource, requirement, before, now) in [
                ("memory", "requests", before.memory_request, now.memory_request),
                ("memory", "limits", before.memory_limit, now.memory_limit),
                ("cpu", "requests", before.cpu_request, now.cpu_request),
                ("cpu", "limits", before.cpu_limit, now.cpu_limit),
            ] {
                if let Some(operation) = operation(before, now) {
                    self.requested.with([resource, requirement, operation]).inc();
                }
            }
        }
    }

    /// Records a completed resize of a pod and its duration.
    pub fn record_resized(&self, success: bool, took: Duration) {
        let success = if success { "true" } else { "false" };
        self.durations.with([success]).observe(took.as_secs_f64() * 1000.0);
    }
}

fn operation(before: i64, now: i64) -> Option<&'static str> {
    match (before, now) {
        (before, now) if before == now => None,
        (0, _) => Some("add"),
        (_, 0) => Some("remove"),
        (before, now) if now < before => Some("decrease"),
        _ => Some("increase"),
    }
}
