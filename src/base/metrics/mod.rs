//! The metric registry and its text exposition.
//!
//! * **Owns** the list of metric families of this process; there is no global state. The families are owned by the
//!   modules that write them: each registers its own and keeps the handle.
//! * **Woken by** scrapes only.
//! * **Publishes** text in Prometheus' exposition format 0.0.4.
//! * **Must never** know the meaning of a family, or hold a lock while its owner writes a sample.
//! * Upstream: `k8s.io/component-base/metrics` and `pkg/kubelet/metrics`.

mod at_scrape;
mod metric_set;
mod text;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};

pub use at_scrape::{AtScrape, ScrapeSample};
pub use metric_set::MetricVec;
pub(crate) use metric_set::metric_set;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::{
    Histogram, exponential_buckets, exponential_buckets_range,
};

/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;

/// Prometheus' default histogram buckets, in seconds; also upstream's.
pub const DEFAULT_BUCKETS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

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
    /// Maps the name in the registry (counters have no `_total` there) to the exposed name.
    names: HashMap<String, &'static str>,
}

impl Metrics {
    /// An empty registry.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Registers a family under its exposed name (with `_total` for counters) and returns the metric for its owner to
    /// write. If two families have the same name, only the first is exposed, and an error is logged.
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
        inner.registry.register(key, help.trim_end_matches('.'), metric.clone());
        metric
    }

    /// The text exposition of all families.
    pub fn text(&self) -> String {
        let inner = self.inner.lock();
        let mut open_metrics = String::new();
        // Formatting to a string fails only if the encoding of a label fails; the lines written before are valid.
        if let Err(error) = encode_registry(&mut open_metrics, &inner.registry) {
            tracing::error!(%error, "metrics could not be encoded completely");
        }
        text::from_open_metrics(&open_metrics, &inner.names)
    }
}
