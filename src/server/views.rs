//! Functions that several handlers read pods with, and wait with.

use super::response::Body;
use crate::{model::PodStatus, pods::pod_sync::PodWithStatus};
use futures::future::BoxFuture;
use hyper::Response;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Limit of the time that a response waits for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns every known pod with its current status; see [`PodWithStatus`].
pub type PodsView = Arc<dyn Fn() -> Vec<PodWithStatus> + Send + Sync>;
/// Returns the runtime status of every running pod.
pub type RunningPodsView = Arc<dyn Fn() -> Vec<Arc<PodStatus>> + Send + Sync>;
/// Waits until the pods of the node are known, or a timeout.
pub type ViewsReady = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;
/// Waits until the statuses that the views show are on disk.
pub type FlushStatuses = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Waits, unless the server stops.
pub(super) async fn unless_stopping(stopping: &CancellationToken, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = stopping.cancelled() => {}
    }
}

/// Returns the response after the statuses in it are on disk, so that a client never sees a status that is lost if the
/// kubelet is killed right after. Waits for [`FLUSH_TIMEOUT`] at most.
pub(super) async fn flushed(flush: &FlushStatuses, response: Response<Body>) -> Response<Body> {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, flush()).await;
    response
}
