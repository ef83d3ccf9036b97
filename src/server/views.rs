//! What several handlers read, and what they wait for.

use super::response::Body;
use crate::{model::PodStatus, pods::pod_sync::PodWithStatus};
use futures::future::BoxFuture;
use hyper::Response;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How long a response waits for the disk at most.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Every known pod with its current status, unless that is the one in its manifest.
pub type PodsView = Arc<dyn Fn() -> Vec<PodWithStatus> + Send + Sync>;
/// The runtime status of every pod that runs.
pub type RunningPodsView = Arc<dyn Fn() -> Vec<Arc<PodStatus>> + Send + Sync>;
/// Ends when the pods of the node are known, or when that takes too long.
pub type ViewsReady = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;
/// Ends when the state that the views show is on disk.
pub type Recorded = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Waits, unless the server stops.
pub(super) async fn unless_stopping(stopping: &CancellationToken, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = stopping.cancelled() => {}
    }
}

/// The response, once what it says is on disk: what a client has been sent must hold also when the kubelet is
/// killed right after.
pub(super) async fn flushed(recorded: &Recorded, response: Response<Body>) -> Response<Body> {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, recorded()).await;
    response
}
