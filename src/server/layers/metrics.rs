//! The metrics layer: counts requests and measures their duration until the response was sent.

use super::{ResponseFuture, RoutedRequest, RoutedService};
use crate::server::{
    metrics::HttpMetrics,
    response::{Body, until_sent},
};
use hyper::Response;
use std::{
    convert::Infallible,
    task::{Context, Poll},
};
use tower::Service;

/// The outermost layer, so that rejected requests are counted too.
#[derive(Clone)]
pub(in crate::server) struct MetricsService<S> {
    metrics: Option<HttpMetrics>,
    inner: S,
}

impl<S> MetricsService<S> {
    pub(in crate::server) fn new(metrics: Option<HttpMetrics>, inner: S) -> Self {
        Self { metrics, inner }
    }
}

impl<S: RoutedService> Service<RoutedRequest> for MetricsService<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, routed: RoutedRequest) -> ResponseFuture {
        let Some(metrics) = &self.metrics else {
            return self.inner.call(routed);
        };
        let in_flight = metrics.begin(routed.port, routed.request.method(), routed.entry());
        let response = self.inner.call(routed);
        Box::pin(async move { Ok(until_sent(response.await?, in_flight)) })
    }
}
