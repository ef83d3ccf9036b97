//! Metrics of device plugins, with upstream's names.

use super::state::MAX_RESOURCES;
use crate::base::metrics::{DEFAULT_BUCKETS, Labels, Metrics};
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// Maximum length of a resource name: DNS subdomain, slash and name.
const MAX_NAME: usize = 253 + 1 + 63;

/// The metric families; clones share them.
#[derive(Clone)]
pub(super) struct DeviceMetrics {
    registrations: Family<Labels<1, String>, Counter>,
    /// Resources in metric labels. Their number is limited, because a plugin may register any name.
    names: Arc<Mutex<HashSet<String>>>,
    allocations: Family<Labels<1, String>, Histogram>,
}

impl DeviceMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            registrations: metrics.register_default(
                "kubelet_device_plugin_registration_total",
                "Cumulative number of device plugin registrations. Broken down by resource name.",
            ),
            names: Arc::default(),
            allocations: metrics.register(
                "kubelet_device_plugin_alloc_duration_seconds",
                "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
                Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
            ),
        }
    }

    pub(super) fn registered(&self, resource: &str) {
        {
            let mut names = self.names.lock();
            let is_full = names.len() >= MAX_RESOURCES && !names.contains(resource);
            if is_full || resource.len() > MAX_NAME {
                return;
            }
            names.insert(resource.into());
        }
        let label = [("resource_name", resource.into())];
        self.registrations.get_or_create_owned(&label).inc();
    }

    pub(super) fn allocated(&self, resource: &str, took: Duration) {
        let label = [("resource_name", resource.into())];
        let histogram = self.allocations.get_or_create(&label);
        histogram.observe(took.as_secs_f64());
    }
}
