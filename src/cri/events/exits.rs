//! Delays containerd's exit events until the CRI reports the exit, too.
//!
//! containerd sends the event before its CRI plugin has updated the container, because the plugin writes the status to
//! disk first. That takes 10 to 40 ms on an idle node, and seconds with a busy disk. A reader of an earlier event would
//! find the container running.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::base::clock;
use crate::cri::error::CriError;
use crate::cri::runtime::RuntimeClient;
use crate::cri::v1::ContainerState;

/// Limit of concurrent calls.
const MAX_CONCURRENT: usize = 16;
/// Limit of delayed events; further ones are passed on immediately.
const MAX_PENDING: usize = 10_000;
const FIRST_POLL: Duration = Duration::from_millis(12);
const MAX_POLL: Duration = Duration::from_secs(1);
/// After this, the event is passed on although the CRI does not report the exit. A relist will find it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Delay of the event of a sandbox: by then, the CRI plugin has updated the sandbox's state. An id is a sandbox if the CRI
/// has no container of it.
const SANDBOX_DELAY: Duration = Duration::from_millis(50);

pub(super) struct PendingExits {
    runtime: RuntimeClient,
    ids: HashSet<String>,
    polls: FuturesUnordered<BoxFuture<'static, String>>,
    calls: Arc<Semaphore>,
}

impl PendingExits {
    pub(super) fn new(runtime: RuntimeClient) -> PendingExits {
        PendingExits {
            runtime,
            ids: HashSet::new(),
            polls: FuturesUnordered::new(),
            calls: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }

    /// Adds a container or sandbox whose main process exited. Returns the id if it cannot be added, because too many are
    /// pending.
    pub(super) fn add(&mut self, id: String) -> Option<String> {
        if self.ids.len() >= MAX_PENDING {
            return Some(id);
        }
        if self.ids.insert(id.clone()) {
            let poll = poll_until_ended(self.runtime.clone(), self.calls.clone(), id);
            self.polls.push(Box::pin(poll));
        }
        None
    }

    /// Waits for the next exit that the CRI reports. Safe to cancel.
    pub(super) async fn confirmed(&mut self) -> String {
        match self.polls.next().await {
            Some(id) => {
                self.ids.remove(&id);
                id
            }
            None => std::future::pending().await,
        }
    }
}

async fn poll_until_ended(runtime: RuntimeClient, calls: Arc<Semaphore>, id: String) -> String {
    let started_at = clock::instant();
    let mut wait = FIRST_POLL;
    while clock::since(started_at) < TIMEOUT {
        sleep(wait).await;
        let permit = calls.acquire().await;
        let status = runtime.container_status(&id).await;
        drop(permit);
        match status.map(|status| status.state()) {
            Ok(ContainerState::ContainerRunning | ContainerState::ContainerCreated) => {}
            Ok(_) => break,
            Err(CriError::NotFound { .. }) => {
                sleep(SANDBOX_DELAY).await;
                break;
            }
            // The next poll may succeed.
            Err(_) => {}
        }
        wait = (wait * 3 / 2).min(MAX_POLL);
    }
    id
}
