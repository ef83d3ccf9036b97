//! The metric families of credential providers.

use crate::base::clock::{self, Instant};
use crate::base::metrics::{DEFAULT_BUCKETS, Metrics, metric_set};

metric_set! {
    /// Handles to the metrics.
    pub(super) struct PluginMetrics {
        configuration: Gauge["hash"] = "kubelet_credential_provider_config_info",
            "Information about the last applied credential provider configuration with hash as label";
        errors: Counter["plugin_name"] = "kubelet_credential_provider_plugin_errors_total",
            "Number of errors from credential provider plugin";
        durations: Histogram(DEFAULT_BUCKETS)["plugin_name"] =
            "kubelet_credential_provider_plugin_duration", "Duration of execution in seconds for credential provider plugin";
    }
}

impl PluginMetrics {
    /// `hash` is that of the configuration: `sha256:` and hexadecimal digits.
    pub(super) fn new(metrics: &Metrics, hash: &str) -> PluginMetrics {
        let new = PluginMetrics::register(metrics);
        new.configuration.with([hash]).set(1);
        new
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
        let took = clock::since(self.begin).as_secs_f64();
        self.metrics.durations.with([&self.name]).observe(took);
        if !succeeded {
            self.metrics.errors.with([&self.name]).inc();
        }
    }
}
