//! The metric families of credential providers.

use crate::base::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use tokio::time::Instant;

/// Upper bounds of the duration buckets in seconds: the default ones of Prometheus.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConfigHash {
    hash: String,
}

/// Handles to the metrics.
#[derive(Clone)]
pub(super) struct PluginMetrics {
    errors: Family<PluginLabels, Counter>,
    durations: Family<PluginLabels, Histogram>,
}

impl PluginMetrics {
    /// `hash` is that of the configuration: `sha256:` and hexadecimal digits.
    pub(super) fn new(metrics: &Metrics, hash: String) -> PluginMetrics {
        let configuration: Family<ConfigHash, Gauge> = metrics.register(
            "kubelet_credential_provider_config_info",
            "Information about the last applied credential provider configuration with hash as label",
            Family::default(),
        );
        configuration
            .get_or_create_owned(&ConfigHash { hash })
            .set(1);
        PluginMetrics {
            errors: metrics.register(
                "kubelet_credential_provider_plugin_errors_total",
                "Number of errors from credential provider plugin",
                Family::default(),
            ),
            durations: metrics.register(
                "kubelet_credential_provider_plugin_duration",
                "Duration of execution in seconds for credential provider plugin",
                Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            ),
        }
    }

    /// Starts the measurement of one execution.
    pub(super) fn run(&self, name: &str) -> ProviderRun<'_> {
        ProviderRun {
            metrics: self,
            name: name.to_owned(),
            begin: Instant::now(),
        }
    }
}

/// The measurement of one execution of a plugin.
pub(super) struct ProviderRun<'a> {
    metrics: &'a PluginMetrics,
    name: String,
    begin: Instant,
}

impl ProviderRun<'_> {
    pub(super) fn ended(self, well: bool) {
        let plugin = PluginLabels {
            plugin_name: self.name,
        };
        let durations = self.metrics.durations.get_or_create_owned(&plugin);
        durations.observe(self.begin.elapsed().as_secs_f64());
        if !well {
            self.metrics.errors.get_or_create_owned(&plugin).inc();
        }
    }
}
