//! Metrics of device plugins, with upstream's names.

use super::state::MAX_RESOURCES;
use crate::base::metrics::{DEFAULT_BUCKETS, metric_set};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum length of a resource name: DNS subdomain, slash and name.
const MAX_NAME: usize = 253 + 1 + 63;

metric_set! {
    /// The metric families; clones share them.
    pub(super) struct DeviceMetrics {
        registrations: Counter["resource_name"] = "kubelet_device_plugin_registration_total",
            "Cumulative number of device plugin registrations. Broken down by resource name.";
        pub(super) allocations: Histogram(DEFAULT_BUCKETS)["resource_name"] =
            "kubelet_device_plugin_alloc_duration_seconds", "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
    } and {
        /// Resources in metric labels. Their number is limited, because a plugin may register any name.
        names: Arc<Mutex<HashSet<String>>>;
    }
}

impl DeviceMetrics {
    pub(super) fn registered(&self, resource: &str) {
        {
            let mut names = self.names.lock();
            let is_full = names.len() >= MAX_RESOURCES && !names.contains(resource);
            if is_full || resource.len() > MAX_NAME {
                return;
            }
            names.insert(resource.into());
        }
        self.registrations.with([resource]).inc();
    }
}
