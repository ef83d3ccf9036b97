//! Metrics of DRA, with upstream's names.

use super::state::ClaimInfoCache;
use crate::base::metrics::{
    AtScrape, Metrics, ScrapeSample, exponential_buckets_range, metric_set,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Value of the label `driver_name` for the total of all drivers.
const ANY_DRIVER: &str = "<any>";

metric_set! {
    /// The metric families; clones share them.
    pub(super) struct DraMetrics {
        operations: Histogram(exponential_buckets_range(0.1, 40.0, 15))["operation_name", "is_error"] =
            "dra_operations_duration_seconds", "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.";
        pub(super) calls: Histogram(exponential_buckets_range(0.1, 40.0, 15))["driver_name", "method_name", "grpc_status_code"] =
            "dra_grpc_operations_duration_seconds", "Duration in seconds of the DRA gRPC operations";
    } and {
        in_use: Arc<Mutex<Vec<ScrapeSample>>>;
    }
}

impl DraMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let in_use: Arc<Mutex<Vec<ScrapeSample>>> = Arc::default();
        let read = in_use.clone();
        metrics.register(
            "dra_resource_claims_in_use",
            "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use the count for the <any> driver_name.",
            AtScrape::gauge(move || read.lock().clone()),
        );
        let new = Self { in_use, ..Self::register(metrics) };
        new.claims(&ClaimInfoCache::default());
        new
    }

    /// Records a prepare or unprepare operation of a pod's claims, with its duration.
    pub(super) fn operated(&self, operation_name: &'static str, failed: bool, took: Duration) {
        let is_error = if failed { "true" } else { "false" };
        self.operations.with([operation_name, is_error]).observe(took.as_secs_f64());
    }

    /// Sets the numbers of claims in use.
    pub(super) fn claims(&self, claims: &ClaimInfoCache) {
        let (by_driver, all) = claims.in_use();
        let numbers = by_driver.into_iter().chain([(ANY_DRIVER, all)]);
        let sample = |(driver, number): (&str, i64)| {
            (vec![("driver_name", driver.to_owned())], number as f64)
        };
        *self.in_use.lock() = numbers.map(sample).collect();
    }
}
