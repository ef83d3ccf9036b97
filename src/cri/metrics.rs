//! The metrics of CRI calls, with upstream's names.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::rpc::Rpc;
use crate::base::metrics::{Labels, Metrics};

/// Handles to the metrics. Clones share them.
#[derive(Clone)]
pub struct CriMetrics {
    operations: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    duration: Family<Labels, Histogram>,
}

impl CriMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> CriMetrics {
        CriMetrics {
            operations: metrics.register_default(
                "kubelet_runtime_operations_total",
                "Cumulative number of runtime operations by operation type",
            ),
            errors: metrics.register_default(
                "kubelet_runtime_operations_errors_total",
                "Cumulative number of runtime operation errors by operation type",
            ),
            duration: metrics.register(
                "kubelet_runtime_operations_duration_seconds",
                "Duration in seconds of runtime operations by operation type",
                Family::new_with_constructor(|| {
                    Histogram::new(exponential_buckets(0.005, 2.5, 14))
                }),
            ),
        }
    }

    pub(super) fn observe(&self, rpc: Rpc, took: Duration, failed: bool) {
        let operation = [("operation_type", rpc.operation())];
        self.operations.get_or_create(&operation).inc();
        if failed {
            self.errors.get_or_create(&operation).inc();
        }
        self.duration.get_or_create(&operation).observe(took.as_secs_f64());
    }
}
