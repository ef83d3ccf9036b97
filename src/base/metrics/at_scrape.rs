//! Metric families whose samples are read from another store at every scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;

/// One sample: its labels, and its value.
pub type ScrapeSample = (Vec<(&'static str, String)>, f64);

/// A family of gauges or counters whose samples a function returns. The function is called with the registry locked:
/// it must be fast, and must not scrape.
#[derive(Clone)]
pub struct AtScrape {
    read: Arc<dyn Fn() -> Vec<ScrapeSample> + Send + Sync>,
    counter: bool,
}

impl AtScrape {
    /// Gauges with the values that `read` returns.
    pub fn gauge(read: impl Fn() -> Vec<ScrapeSample> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), counter: false }
    }

    /// Counters with the values that `read` returns.
    pub fn counter(read: impl Fn() -> Vec<ScrapeSample> + Send + Sync + 'static) -> Self {
        Self { counter: true, ..Self::gauge(read) }
    }

    /// A single number without labels.
    pub fn number(read: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self::gauge(move || vec![(Vec::new(), read())])
    }
}

impl fmt::Debug for AtScrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtScrape").finish_non_exhaustive()
    }
}

impl EncodeMetric for AtScrape {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in (self.read)() {
            let write = |mut sample: MetricEncoder<'_>| {
                if self.counter {
                    sample.encode_counter::<Vec<(String, String)>, _, f64>(&value, None)
                } else {
                    sample.encode_gauge(&value)
                }
            };
            if !labels.is_empty() {
                write(encoder.encode_family(&labels)?)?;
            } else if self.counter {
                encoder.encode_counter::<Vec<(String, String)>, _, f64>(&value, None)?;
            } else {
                encoder.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        if self.counter { MetricType::Counter } else { MetricType::Gauge }
    }
}
