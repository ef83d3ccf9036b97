//! The pods that handlers show, once every source has delivered, with statuses that will not be lost.

use super::http::response::Body;
use crate::base::clock::{self, Instant};
use crate::pods::pod_sync::{PodLister, PodWithStatus};
use crate::state::pod_state_store::PodStateStore;
use hyper::Response;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time;
use tokio_util::sync::CancellationToken;

/// Maximum time, after the server area was built, that requests for pods wait until every source has sent a list.
const STARTUP_WAIT: Duration = Duration::from_secs(3);
/// Maximum time that a response waits for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Reads the pods of this node for clients; cheap to clone.
#[derive(Clone)]
pub struct KnownPods {
    lister: PodLister,
    all_sources_seen: watch::Receiver<bool>,
    /// Until when requests wait for slow sources.
    deadline: Instant,
    state_store: PodStateStore,
}

impl KnownPods {
    /// Reads from `lister`, whose statuses `state_store` saves. `all_sources_seen` says whether every source has sent a
    /// list.
    pub fn new(
        lister: PodLister,
        all_sources_seen: watch::Receiver<bool>,
        state_store: PodStateStore,
    ) -> Self {
        let deadline = clock::instant() + STARTUP_WAIT;
        Self { lister, all_sources_seen, deadline, state_store }
    }

    /// All known pods with their current status.
    pub(super) fn list(&self) -> Vec<PodWithStatus> {
        self.lister.list()
    }

    /// Waits until every source has sent a list, complete or not, because an earlier response would show too few pods.
    /// Waits at most until [`STARTUP_WAIT`] after the start, because a source may be slow.
    pub(super) async fn wait_for_sources(&self) {
        let mut all_sources_seen = self.all_sources_seen.clone();
        let known = all_sources_seen.wait_for(|all_sources_seen| *all_sources_seen);
        let _ = time::timeout_at(self.deadline, known).await;
    }

    /// All known pods, once every source has sent a list.
    pub(super) async fn list_when_ready(&self) -> Vec<PodWithStatus> {
        self.wait_for_sources().await;
        self.list()
    }

    /// Returns the response once the statuses in it are written, so that a client does not see a status that is lost if
    /// the kubelet is killed right afterwards (a power failure may still lose it). If the disk takes longer than
    /// [`FLUSH_TIMEOUT`], returns it without that guarantee.
    pub(super) async fn after_flush(&self, response: Response<Body>) -> Response<Body> {
        let _ = time::timeout(FLUSH_TIMEOUT, self.state_store.flush()).await;
        response
    }
}

/// Runs `wait`, but returns at once when the server stops.
pub(super) async fn until_shutdown(shutdown: &CancellationToken, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = shutdown.cancelled() => {}
    }
}
