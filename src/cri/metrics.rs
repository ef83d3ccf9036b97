//! The metrics of CRI calls, with upstream's names.

use std::time::Duration;

use super::rpc::Rpc;
use crate::base::metrics::{exponential_buckets, metric_set};

metric_set! {
    /// Handles to the metrics. Clones share them.
    pub struct CriMetrics {
        operations: Counter["operation_type"] = "kubelet_runtime_operations_total",
            "Cumulative number of runtime operations by operation type";
        errors: Counter["operation_type"] = "kubelet_runtime_operations_errors_total",
            "Cumulative number of runtime operation errors by operation type";
        duration: Histogram(exponential_buckets(0.005, 2.5, 14))["operation_type"] =
            "kubelet_runtime_operations_duration_seconds", "Duration in seconds of runtime operations by operation type";
    }
}

impl CriMetrics {
    pub(super) fn observe(&self, rpc: Rpc, took: Duration, failed: bool) {
        let operation = [rpc.operation()];
        self.operations.with(operation).inc();
        if failed {
            self.errors.with(operation).inc();
        }
        self.duration.with(operation).observe(took.as_secs_f64());
    }
}
