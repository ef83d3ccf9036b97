//! Builds the clients of the runtime and image services.

use super::{CriConnection, CriMetrics, ImageClient, RuntimeClient, RuntimeEndpoint};
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use anyhow::Context as _;
use std::time::Duration;

/// The runtime's endpoints, and the timeout of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Endpoint of the runtime service: `unix://` and a path.
    pub endpoint: String,
    /// Endpoint of the image service; by default the runtime's.
    pub image_endpoint: String,
    /// Timeout of ordinary calls, which neither stream nor pull.
    pub request_timeout: Duration,
}

/// Builds the clients of both services, on one connection if they share an endpoint. Does not connect yet. With
/// `prefer_streaming_lists`, sandboxes and containers are listed by streaming calls if the runtime supports them.
///
/// # Errors
/// An endpoint cannot be parsed.
pub fn connect(
    config: &RuntimeConfig,
    prefer_streaming_lists: bool,
    tracer: &Tracer,
    metrics: &Metrics,
) -> anyhow::Result<(RuntimeClient, ImageClient)> {
    let metrics = CriMetrics::register(metrics);
    let endpoint = RuntimeEndpoint::parse(&config.endpoint)
        .with_context(|| format!("containerRuntimeEndpoint {:?}", config.endpoint))?;
    let image_endpoint = RuntimeEndpoint::parse(&config.image_endpoint)
        .with_context(|| format!("imageServiceEndpoint {:?}", config.image_endpoint))?;
    let connect = |endpoint| {
        CriConnection::traced(endpoint, config.request_timeout, &metrics, tracer.clone())
    };
    let connection = connect(endpoint.clone());
    let image_connection =
        if image_endpoint == endpoint { connection.clone() } else { connect(image_endpoint) };
    Ok((
        RuntimeClient::new(connection).preferring_streams(prefer_streaming_lists),
        ImageClient::new(image_connection),
    ))
}
