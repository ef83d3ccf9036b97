//! `/metrics` and `/metrics/slis`: the kubelet's own metrics.

use super::{
    coalesced::Coalesced,
    response::{Body, full, full_bytes, text},
};
use crate::base::metrics::CONTENT_TYPE;
use hyper::{Response, StatusCode, header::HeaderValue};
use std::sync::Arc;

pub(super) const METRICS: HeaderValue = HeaderValue::from_static(CONTENT_TYPE);

/// Metrics as text in Prometheus' exposition format 0.0.4.
pub type MetricsView = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves metrics to Prometheus.
#[derive(Clone)]
pub struct Scrapes {
    metrics: MetricsView,
    sli_metrics: MetricsView,
    in_flight: Arc<Coalesced>,
}

impl Scrapes {
    /// Of the kubelet's metrics and of the results of its health checks.
    pub fn new(metrics: MetricsView, sli_metrics: MetricsView) -> Self {
        Self {
            metrics,
            sli_metrics,
            in_flight: Arc::default(),
        }
    }

    /// `/metrics`.
    pub(super) async fn metrics(&self) -> Response<Body> {
        let metrics = self.metrics.clone();
        match self.in_flight.get(move || metrics()).await {
            Ok(body) => full_bytes(StatusCode::OK, METRICS, body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("500 {error}\n")),
        }
    }

    /// `/metrics/slis`.
    pub(super) fn slis(&self) -> Response<Body> {
        full(StatusCode::OK, METRICS, (self.sli_metrics)())
    }
}
