//! The metric of calls to drivers, with upstream's name.

use crate::{
    base::metrics::Metrics,
    cri::go_code,
    volumes::metrics::{BUCKETS, migrated},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
};
use std::time::Duration;
use tonic::Code;

/// The code of an error without one.
const NO_CODE: &str = "unknown-non-grpc";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CsiCall {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
    migrated: &'static str,
}

/// The metric family; clones share it.
#[derive(Clone)]
pub struct CsiMetrics {
    calls: Family<CsiCall, Histogram>,
}

impl CsiMetrics {
    /// Registers the family.
    pub fn new(metrics: &Metrics) -> Self {
        let buckets = || Histogram::new(BUCKETS);
        Self {
            calls: metrics.register(
                "csi_operations_seconds",
                "Container Storage Interface operation duration with gRPC error code status total",
                Family::new_with_constructor(buckets as fn() -> Histogram),
            ),
        }
    }

    /// Records a call to a driver. Without a code, the error was not one of gRPC.
    pub(super) fn called(
        &self,
        driver: &str,
        method_name: &'static str,
        code: Option<Code>,
        is_migrated: bool,
        took: Duration,
    ) {
        let labels = CsiCall {
            driver_name: driver.to_owned(),
            method_name,
            grpc_status_code: code.map_or(NO_CODE, go_code),
            migrated: migrated(is_migrated),
        };
        let histogram = self.calls.get_or_create_owned(&labels);
        histogram.observe(took.as_secs_f64());
    }
}
