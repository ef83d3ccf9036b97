//! The metric of calls to drivers, with upstream's name.

use crate::base::metrics::metric_set;
use crate::cri::go_code;
use crate::volumes::metrics::{BUCKETS, migrated};
use std::time::Duration;
use tonic::Code;

/// The code of an error without one.
const NO_CODE: &str = "unknown-non-grpc";

metric_set! {
    /// The metric family; clones share it.
    pub struct CsiMetrics {
        calls: Histogram(BUCKETS)["driver_name", "method_name", "grpc_status_code", "migrated"] =
            "csi_operations_seconds", "Container Storage Interface operation duration with gRPC error code status total";
    }
}

impl CsiMetrics {
    /// Records a call to a driver. Without a code, the error was not one of gRPC.
    pub(super) fn called(
        &self,
        driver: &str,
        method_name: &str,
        code: Option<Code>,
        is_migrated: bool,
        took: Duration,
    ) {
        let code = code.map_or(NO_CODE, go_code);
        let call = self.calls.with([driver, method_name, code, migrated(is_migrated)]);
        call.observe(took.as_secs_f64());
    }
}
