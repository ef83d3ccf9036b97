//! Exits that containerd reports before its CRI plugin knows them. On an idle node that takes it 10 to
//! 40 ms more, on one with a busy disk seconds: the plugin writes the container's status to disk first. A
//! hint sent at once would make its reader see a running container, so each is held back until the CRI
//! shows the exit too.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::cri::error::CriError;
use crate::cri::runtime::RuntimeClient;
use crate::cri::v1::ContainerState;

/// How many calls are under way at once.
const MAX_CONCURRENT: usize = 16;
/// More than this are not awaited.
const MAX: usize = 10_000;
const FIRST_POLL: Duration = Duration::from_millis(12);
const MAX_POLL: Duration = Duration::from_secs(1);
/// Timeout of waiting for the CRI to show an exit; then the hint is sent anyway, and relists find the end.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);
/// What is not a container is a sandbox; its state follows within this time.
const SANDBOX_SETTLES: Duration = Duration::from_millis(50);

pub(super) struct Exits {
    runtime: RuntimeClient,
    known: HashSet<String>,
    watched: FuturesUnordered<BoxFuture<'static, String>>,
    calls: Arc<Semaphore>,
}

impl Exits {
    pub(super) fn new(runtime: RuntimeClient) -> Exits {
        Exits {
            runtime,
            known: HashSet::new(),
            watched: FuturesUnordered::new(),
            calls: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }

    /// The main process of this container or sandbox ended. Given back when too many are awaited.
    pub(super) fn ended(&mut self, id: String) -> Option<String> {
        if self.known.len() >= MAX {
            return Some(id);
        }
        if self.known.insert(id.clone()) {
            let poll = poll_until_ended(self.runtime.clone(), self.calls.clone(), id);
            self.watched.push(Box::pin(poll));
        }
        None
    }

    /// The next one whose end can be seen; never, when none is awaited. Safe to cancel.
    pub(super) async fn shown(&mut self) -> String {
        match self.watched.next().await {
            Some(id) => {
                self.known.remove(&id);
                id
            }
            None => std::future::pending().await,
        }
    }
}

async fn poll_until_ended(runtime: RuntimeClient, calls: Arc<Semaphore>, id: String) -> String {
    let begin = Instant::now();
    let mut wait = FIRST_POLL;
    while begin.elapsed() < GIVEN_UP_AFTER {
        sleep(wait).await;
        let permit = calls.acquire().await;
        let status = runtime.container_status(&id).await;
        drop(permit);
        match status.map(|status| status.state()) {
            Ok(ContainerState::ContainerRunning | ContainerState::ContainerCreated) => {}
            Ok(_) => break,
            Err(CriError::NotFound { .. }) => {
                sleep(SANDBOX_SETTLES).await;
                break;
            }
            // Not now: the next attempt may succeed.
            Err(_) => {}
        }
        wait = (wait * 3 / 2).min(MAX_POLL);
    }
    id
}
