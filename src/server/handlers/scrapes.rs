//! `/metrics` and `/metrics/slis`: the kubelet's own metrics.

use crate::base::metrics::CONTENT_TYPE;
use crate::base::{SingleFlight, spawn_blocking};
use crate::server::http::response::{Body, full, full_bytes, text};
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use std::sync::Arc;

pub(super) const METRICS_TYPE: HeaderValue = HeaderValue::from_static(CONTENT_TYPE);

/// Metrics as text in Prometheus' exposition format 0.0.4.
pub type ReadMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Runs before each scrape of `/metrics`, for metrics that are measured on request.
pub type ScrapeHook = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Serves metrics to Prometheus.
#[derive(Clone)]
pub struct Scrapes {
    metrics: ReadMetrics,
    sli_metrics: ReadMetrics,
    before: ScrapeHook,
    in_flight: Arc<SingleFlight<(), Result<Bytes, String>>>,
}

impl Scrapes {
    /// Serves `metrics`, which are read after `before` has ended, and the results of health checks.
    pub fn new(metrics: ReadMetrics, sli_metrics: ReadMetrics, before: ScrapeHook) -> Self {
        Self { metrics, sli_metrics, before, in_flight: Arc::default() }
    }

    /// `/metrics`.
    pub(in crate::server) async fn metrics(&self) -> Response<Body> {
        let (before, metrics) = (self.before.clone(), self.metrics.clone());
        let begin = move || async move {
            before().await;
            let written = spawn_blocking(move || metrics()).await;
            written.map(Bytes::from).map_err(|error| error.to_string())
        };
        // Not joined to a scrape in flight, because its values may be from before this request.
        match self.in_flight.next((), begin).await {
            Ok(body) => full_bytes(StatusCode::OK, METRICS_TYPE, body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("500 {error}\n")),
        }
    }

    /// `/metrics/slis`.
    pub(in crate::server) fn slis(&self) -> Response<Body> {
        full(StatusCode::OK, METRICS_TYPE, (self.sli_metrics)())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_failed_scrape_is_repeated_for_the_next_client() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let metrics = move || {
            assert!(counted.fetch_add(1, Ordering::SeqCst) > 0, "as scripted");
            "up 1\n".to_owned()
        };
        let scrapes = Scrapes::new(
            Arc::new(metrics),
            Arc::new(String::new),
            Arc::new(|| Box::pin(std::future::ready(()))),
        );
        let failed = scrapes.metrics().await.status();
        assert_eq!(failed, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(scrapes.metrics().await.status(), StatusCode::OK);
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }
}
