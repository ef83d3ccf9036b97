//! The metric families of credential providers.

use crate::base::{
    clock::{self, Instant},
    metrics::{DEFAULT_BUCKETS, Labels, Metrics},
};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};

/// Handles to the metrics.
#[derive(Clone)]
pub(super) struct PluginMetrics {
    errors: Family<Labels<1, String>, Counter>,
    durations: Family<Labels<1, String>, Histogram>,
}

impl PluginMetrics {
    /// `hash` is that of the configuration: `sha256:` and hexadecimal digits.
    pub(super) fn new(metrics: &Metrics, hash: String) -> PluginMetrics {
        let configuration: Family<Labels<1, String>, Gauge> = metrics.register_default(
            "kubelet_credential_provider_config_info",
            "Information about the last applied credential provider configuration with hash as label",
        );
        configuration.get_or_create_owned(&[("hash", hash)]).set(1);
        PluginMetrics {
            errors: metrics.register_default(
                "kubelet_credential_provider_plugin_errors_total",
                "Number of errors from credential provider plugin",
            ),
            durations: metrics.register(
                "kubelet_credential_provider_plugin_duration",
                "Duration of execution in seconds for credential provider plugin",
                Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
            ),
        }
    }

    /// Starts the measurement of one execution.
    pub(super) fn run(&self, name: &str) -> ProviderRun<'_> {
        ProviderRun { metrics: self, name: name.to_owned(), begin: clock::instant() }
    }
}

/// The measurement of one execution of a plugin.
pub(super) struct ProviderRun<'a> {
    metrics: &'a PluginMetrics,
    name: String,
    begin: Instant,
}

impl ProviderRun<'_> {
    pub(super) fn ended(self, succeeded: bool) {
        let plugin = [("plugin_name", self.name)];
        let durations = self.metrics.durations.get_or_create_owned(&plugin);
        durations.observe(clock::since(self.begin).as_secs_f64());
        if !succeeded {
            self.metrics.errors.get_or_create_owned(&plugin).inc();
        }
    }
}
