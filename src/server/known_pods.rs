//! Closures that handlers share: they list pods, or wait for sources and for the disk.

use super::http::response::Body;
use crate::pods::pod_sync::PodWithStatus;
use futures::future::BoxFuture;
use hyper::Response;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Maximum time that a response waits for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns all known pods with their current status; see [`PodWithStatus`]. `area.rs` makes it from
/// [`PodLister`](crate::pods::pod_sync::PodLister).
pub type ListPods = Arc<dyn Fn() -> Vec<PodWithStatus> + Send + Sync>;
/// Waits for the first list of each source, complete or not, until a few seconds after the start at the latest.
pub type WaitForPods = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;
/// Waits until all pod statuses generated so far are written to the pod state store. They survive a killed kubelet, not
/// a power failure.
pub type FlushStatuses = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs `wait`, but returns at once when the server stops.
pub(super) async fn until_shutdown(shutdown: &CancellationToken, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = shutdown.cancelled() => {}
    }
}

/// Returns the response once the statuses in it are written, so that a client does not see a status that is lost if the
/// kubelet is killed right afterwards. If the disk takes longer than [`FLUSH_TIMEOUT`], returns it without that
/// guarantee.
pub(super) async fn after_status_flush(
    flush: &FlushStatuses,
    response: Response<Body>,
) -> Response<Body> {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, flush()).await;
    response
}
