//! The metrics layer: counts requests and measures their duration until the response was sent.

use super::{RequestLayer, ResponseFuture, RoutedRequest, RoutedService};
use crate::server::http::response::until_sent;
use crate::server::router::metrics::HttpMetrics;

/// The outermost layer, so that rejected requests are counted too.
#[derive(Clone)]
pub(in crate::server) struct MetricsLayer(pub(in crate::server) Option<HttpMetrics>);

impl RequestLayer for MetricsLayer {
    fn call(&self, routed: RoutedRequest, inner: &mut impl RoutedService) -> ResponseFuture {
        let Some(metrics) = &self.0 else {
            return inner.call(routed);
        };
        let in_flight = metrics.begin(routed.port, routed.request.method(), routed.entry());
        let response = inner.call(routed);
        Box::pin(async move { Ok(until_sent(response.await?, in_flight)) })
    }
}
