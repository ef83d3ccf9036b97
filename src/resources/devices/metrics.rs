//! Metrics of device plugins, with upstream's names.

use super::state::MAX_RESOURCES;
use crate::base::metrics::{DEFAULT_BUCKETS, Metrics};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// Maximum length of a resource name: DNS subdomain, slash and name.
const MAX_NAME: usize = 253 + 1 + 63;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceName {
    resource_name: String,
}

/// The metric families; clones share them.
#[derive(Clone)]
pub(super) struct DeviceMetrics {
    registrations: Family<ResourceName, Counter>,
    /// Resources in metric labels. Their number is limited, because a plugin may register any name.
    names: Arc<Mutex<HashSet<String>>>,
    allocations: Family<ResourceName, Histogram>,
}

impl DeviceMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            registrations: metrics.register(
                "kubelet_device_plugin_registration_total",
                "Cumulative number of device plugin registrations. Broken down by resource name.",
                Family::default(),
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
        let label = ResourceName {
            resource_name: resource.into(),
        };
        self.registrations.get_or_create_owned(&label).inc();
    }

    pub(super) fn allocated(&self, resource: &str, took: Duration) {
        let label = ResourceName {
            resource_name: resource.into(),
        };
        let histogram = self.allocations.get_or_create(&label);
        histogram.observe(took.as_secs_f64());
    }
}
