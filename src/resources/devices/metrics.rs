//! The metric families of device plugins, named as upstream names them.

use crate::base::metrics::{DEFAULT_BUCKETS, Metrics};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceName {
    resource_name: String,
}

/// Handles to the families. Clones share them.
#[derive(Clone)]
pub(super) struct DeviceMetrics {
    registrations: Family<ResourceName, Counter>,
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
            allocations: metrics.register(
                "kubelet_device_plugin_alloc_duration_seconds",
                "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
                Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
            ),
        }
    }

    pub(super) fn registered(&self, resource: &str) {
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
