//! `/stats/summary`, `/stats/` and the metrics of resource usage.

use super::scrapes::METRICS_TYPE;
use crate::base::metrics::Metrics;
use crate::node::stats::api::{PodStats, Summary};
use crate::node::stats::{ContainerInfo, ContainerInfoSelector, Stats};
use crate::server::http::list;
use crate::server::http::response::{Body, full, json_stream, respond, text};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};
use std::sync::Arc;

/// Text that is generated while it is sent.
pub type TextChunks = Box<dyn Iterator<Item = String> + Send>;

/// The sources of these routes. Each may take seconds if a disk or the runtime hangs, but is bounded.
#[derive(Clone)]
pub struct StatsReaders {
    /// For `/stats/summary`; the argument selects CPU and memory only. Returns `None` if the cgroups could not be
    /// read in time.
    pub summary: Arc<dyn Fn(bool) -> BoxFuture<'static, Option<Summary>> + Send + Sync>,
    /// For `/metrics/cadvisor`.
    pub cadvisor: Arc<dyn Fn() -> BoxFuture<'static, Option<TextChunks>> + Send + Sync>,
    /// For `/metrics/resource`.
    pub resource: Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>,
    /// For `/stats/` and below it; empty if the target does not exist, `None` if the cgroups could not be read in
    /// time.
    pub infos: Arc<
        dyn Fn(ContainerInfoSelector) -> BoxFuture<'static, Option<Vec<ContainerInfo>>>
            + Send
            + Sync,
    >,
    /// For `/metrics/probes`.
    pub probes: Arc<dyn Fn() -> String + Send + Sync>,
}

impl StatsReaders {
    /// Reads from `stats`; `probes` are the metrics of probes.
    pub fn of(stats: &Stats, probes: Metrics) -> Self {
        let (summary, cadvisor, resource) = (stats.clone(), stats.clone(), stats.clone());
        let infos = stats.clone();
        Self {
            summary: Arc::new(move |only_cpu_and_memory| {
                let stats = summary.clone();
                Box::pin(async move { stats.summary(only_cpu_and_memory).await })
            }),
            cadvisor: Arc::new(move || {
                let stats = cadvisor.clone();
                Box::pin(async move {
                    let chunks = stats.cadvisor().await?;
                    Some(Box::new(chunks) as TextChunks)
                })
            }),
            resource: Arc::new(move || {
                let stats = resource.clone();
                Box::pin(async move { stats.resource().await })
            }),
            infos: Arc::new(move |of| {
                let stats = infos.clone();
                Box::pin(async move { stats.infos(of).await })
            }),
            probes: Arc::new(move || probes.text()),
        }
    }
}

pub(in crate::server) async fn summary(
    readers: &StatsReaders,
    only_cpu_and_memory: bool,
) -> Response<Body> {
    let Some(Summary { node, pods }) = (readers.summary)(only_cpu_and_memory).await else {
        return unreadable();
    };
    match serde_json::to_string(&node) {
        Ok(node) => {
            let head = format!("{{\"node\":{node},\"pods\":[");
            json_stream(list::array::<PodStats>(head, pods.into_iter()))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub(in crate::server) async fn cadvisor(readers: &StatsReaders) -> Response<Body> {
    let Some(chunks) = (readers.cadvisor)().await else {
        return unreadable();
    };
    let frames = chunks.map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    respond(StatusCode::OK, METRICS_TYPE, body)
}

pub(in crate::server) async fn resource(readers: &StatsReaders) -> Response<Body> {
    full(StatusCode::OK, METRICS_TYPE, (readers.resource)().await)
}

pub(in crate::server) fn probes(readers: &StatsReaders) -> Response<Body> {
    full(StatusCode::OK, METRICS_TYPE, (readers.probes)())
}

pub(in crate::server) fn unreadable() -> Response<Body> {
    let body = "Internal Error: the cgroups could not be read in time\n".to_owned();
    text(StatusCode::INTERNAL_SERVER_ERROR, body)
}
