//! The clients of the runtime's two services.

use super::{CriConnection, CriMetrics, ImageClient, RuntimeClient, RuntimeEndpoint};
use crate::base::{metrics::Metrics, otel::Tracer};
use anyhow::Context as _;
use std::time::Duration;

/// Where the runtime is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Socket of the runtime service, `unix://` and a path.
    pub endpoint: String,
    /// Socket of the image service; the runtime's unless given.
    pub image_endpoint: String,
    /// Deadline of calls that do not stream or pull.
    pub request_timeout: Duration,
}

/// The clients of both services, on one connection if they share an endpoint. Nothing is sent yet. `by_streams` lists
/// sandboxes and containers as streams where the runtime can.
///
/// # Errors
/// An endpoint cannot be parsed.
pub fn connect(
    config: &RuntimeConfig,
    by_streams: bool,
    tracer: &Tracer,
    metrics: &Metrics,
) -> anyhow::Result<(RuntimeClient, ImageClient)> {
    let metrics = CriMetrics::new(metrics);
    let endpoint = RuntimeEndpoint::parse(&config.endpoint)
        .with_context(|| format!("containerRuntimeEndpoint {:?}", config.endpoint))?;
    let image_endpoint = RuntimeEndpoint::parse(&config.image_endpoint)
        .with_context(|| format!("imageServiceEndpoint {:?}", config.image_endpoint))?;
    let connect = |endpoint| {
        CriConnection::traced(endpoint, config.request_timeout, &metrics, tracer.clone())
    };
    let connection = connect(endpoint.clone());
    let image_connection = if image_endpoint == endpoint {
        connection.clone()
    } else {
        connect(image_endpoint)
    };
    Ok((
        RuntimeClient::new(connection).preferring_streams(by_streams),
        ImageClient::new(image_connection),
    ))
}
