//! Exits that containerd reports before its CRI plugin knows them: on real nodes it takes that 10 to 40 ms
//! more. A hint sent at once would make its reader see a running container, so each is held back
//! until the CRI shows the exit too.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

use crate::cri::error::CriError;
use crate::cri::runtime::RuntimeClient;
use crate::cri::v1::ContainerState;

/// How many containers are watched at once; the others queue.
const MAX_CONCURRENT: usize = 16;
/// More than this are not awaited.
const MAX: usize = 10_000;
const FIRST_LOOK: Duration = Duration::from_millis(12);
/// How often one container is looked at (about one second in all), before it is hinted at anyway.
const LOOKS: u32 = 9;
/// What is no container is a sandbox; its state follows within this time.
const SANDBOX_SETTLES: Duration = Duration::from_millis(50);

pub(super) struct Exits {
    runtime: RuntimeClient,
    known: HashSet<String>,
    waiting: VecDeque<String>,
    watched: FuturesUnordered<BoxFuture<'static, String>>,
}

impl Exits {
    pub(super) fn new(runtime: RuntimeClient) -> Exits {
        Exits {
            runtime,
            known: HashSet::new(),
            waiting: VecDeque::new(),
            watched: FuturesUnordered::new(),
        }
    }

    /// The main process of this container or sandbox ended. Given back when too many are awaited.
    pub(super) fn ended(&mut self, id: String) -> Option<String> {
        if self.known.len() >= MAX {
            return Some(id);
        }
        if self.known.insert(id.clone()) {
            self.waiting.push_back(id);
        }
        self.fill();
        None
    }

    /// The next one whose end can be seen; never, when none is awaited. Safe to cancel.
    pub(super) async fn shown(&mut self) -> String {
        match self.watched.next().await {
            Some(id) => {
                self.known.remove(&id);
                self.fill();
                id
            }
            None => std::future::pending().await,
        }
    }

    fn fill(&mut self) {
        while self.watched.len() < MAX_CONCURRENT
            && let Some(id) = self.waiting.pop_front()
        {
            self.watched
                .push(Box::pin(look_until_ended(self.runtime.clone(), id)));
        }
    }
}

async fn look_until_ended(runtime: RuntimeClient, id: String) -> String {
    let mut wait = FIRST_LOOK;
    for _ in 0..LOOKS {
        sleep(wait).await;
        match runtime.container_status(&id).await {
            Ok(status) if status.state() == ContainerState::ContainerRunning => {}
            Ok(_) => break,
            Err(CriError::NotFound { .. }) => {
                sleep(SANDBOX_SETTLES).await;
                break;
            }
            Err(_) => break,
        }
        wait = wait * 3 / 2;
    }
    id
}
