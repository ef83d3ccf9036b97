//! The metric registry and its text exposition.
//!
//! * **Owns** the list of metric families of this process; there is no global state. The families
//!   themselves belong to the modules that write them: each declares its own and keeps the handle.
//! * **Woken by** a scrape, and by nothing else.
//! * **Publishes** text in Prometheus' exposition format 0.0.4.
//! * **Must never** know what a family means, or hold a lock while its owner writes a sample.
//! * **Answers to** upstream's `k8s.io/component-base/metrics` and `pkg/kubelet/metrics`.

mod at_scrape;
mod text;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};

pub use at_scrape::{AtScrape, ScrapeSample};

/// Upper bounds of histograms of which nothing else is known, seconds; those of upstream.
pub const DEFAULT_BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The `Content-Type` of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metric families of one kubelet. Clones share one registry.
#[derive(Clone, Default)]
pub struct Metrics {
    inner: Arc<Mutex<MetricsInner>>,
}

#[derive(Default)]
struct MetricsInner {
    registry: Registry,
    /// Name inside the registry (counters lose `_total` there) to the name users see.
    names: HashMap<String, &'static str>,
}

impl Metrics {
    /// A registry without families.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Adds a family under the exact name users will see (a counter's `_total` included) and hands
    /// the metric back for its owner to write. Of two families with one name only the first is
    /// shown; the second is reported in the log.
    pub fn register<M: Metric + Clone>(
        &self,
        name: &'static str,
        help: &'static str,
        metric: M,
    ) -> M {
        let key = match metric.metric_type() {
            MetricType::Counter => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let mut inner = self.inner.lock();
        if inner.names.contains_key(key) {
            tracing::error!(
                metric = name,
                "metric family registered twice; the second is not shown"
            );
            return metric;
        }
        inner.names.insert(key.to_owned(), name);
        inner
            .registry
            .register(key, help.trim_end_matches('.'), metric.clone());
        metric
    }

    /// Everything written so far, in Prometheus' text format 0.0.4.
    pub fn text(&self) -> String {
        let inner = self.inner.lock();
        let mut open_metrics = String::new();
        // Formatting into a string cannot fail unless a label's own encoder does; what was
        // written up to there is still valid lines.
        if let Err(error) = encode_registry(&mut open_metrics, &inner.registry) {
            tracing::error!(%error, "metrics could not be encoded completely");
        }
        text::from_open_metrics(&open_metrics, &inner.names)
    }

    /// Names of registered families that show no sample but zero, sorted. Tests use it to find
    /// families without writers.
    pub fn unwritten(&self) -> Vec<&'static str> {
        let exposition = self.text();
        let inner = self.inner.lock();
        let mut names: Vec<&'static str> = inner
            .names
            .values()
            .copied()
            .filter(|name| !text::has_non_zero_sample(&exposition, name))
            .collect();
        names.sort_unstable();
        names
    }
}
