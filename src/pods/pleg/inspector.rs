//! Reads single sandboxes and containers, many at once, none waiting for a slow one.

use super::{Watch, termination_message};
use crate::{
    base::{
        backoff::Backoff,
        panics::{Panicked, Place, contain},
    },
    cri::{CriError, v1::ContainerFilter},
    model::{ContainerId, ContainerState, ContainerStatus, SandboxId, Seq},
    runtime::kuberuntime::translate,
    state::pod_cache::{ItemId, Owner, Read},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Reads in flight that still count as quick.
const IN_FLIGHT: usize = 64;
/// A read older than this gives its place to another one and goes on beside it.
const SLOW: Duration = Duration::from_secs(1);
/// A read older than this has failed.
const DEADLINE: Duration = Duration::from_secs(10);

/// Task `pleg.inspect`.
pub struct InspectTask {
    watch: Watch,
    places: Arc<Semaphore>,
    queue: VecDeque<ItemId>,
    /// Items being read; true when another read was requested meanwhile.
    reading: HashMap<ItemId, bool>,
    reads: JoinSet<(ItemId, InspectionOutcome)>,
    retries: Backoff<ItemId, Instant>,
}

enum InspectionOutcome {
    Done,
    Unknown,
    Failed(CriError),
    Late,
    /// A bug; like a failure, so that the item does not stay unread for ever.
    Panicked(Panicked),
}

impl InspectTask {
    pub(super) fn new(watch: Watch) -> Self {
        Self {
            watch,
            places: Arc::new(Semaphore::new(IN_FLIGHT)),
            queue: VecDeque::new(),
            reading: HashMap::new(),
            reads: JoinSet::new(),
            retries: Backoff::new(
                Duration::from_millis(250),
                Duration::from_secs(30),
                Duration::from_secs(120),
            ),
        }
    }

    /// Inspects until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                items = self.watch.cache.to_inspect() => items.into_iter().for_each(|i| self.enqueue(i)),
                Ok(place) = self.places.clone().acquire_owned(), if !self.queue.is_empty() => {
                    if let Some(item) = self.queue.pop_front() {
                        let watch = self.watch.clone();
                        self.reads.spawn(async move {
                            let read = inspect(watch, item.clone(), place);
                            let read = contain(Place::Inspection, read).await;
                            (item, read.unwrap_or_else(InspectionOutcome::Panicked))
                        });
                    }
                }
                Some(read) = self.reads.join_next() => match read {
                    Ok((item, outcome)) => self.finished(item, outcome),
                    Err(error) => tracing::error!(err = %error, "An inspection ended badly"),
                },
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    fn enqueue(&mut self, item: ItemId) {
        match self.reading.get_mut(&item) {
            Some(again) => *again = true,
            None => {
                self.reading.insert(item.clone(), false);
                self.queue.push_back(item);
            }
        }
    }

    fn finished(&mut self, item: ItemId, outcome: InspectionOutcome) {
        let again = self.reading.remove(&item).unwrap_or(false);
        let problem = match outcome {
            InspectionOutcome::Done | InspectionOutcome::Unknown => {
                self.retries.forget(&item);
                if again {
                    self.enqueue(item);
                }
                return;
            }
            InspectionOutcome::Failed(error) => error.to_string(),
            InspectionOutcome::Panicked(panicked) => panicked.to_string(),
            InspectionOutcome::Late => format!("no answer within {} s", DEADLINE.as_secs()),
        };
        let now = Instant::now();
        let first = self.retries.step(&item).is_none();
        let delay = self.retries.advance(item.clone(), now, now);
        if first {
            tracing::warn!(
                ?item,
                err = problem,
                "Cannot read from the runtime, will keep trying"
            );
        }
        let cache = self.watch.cache.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            cache.inspect(item);
        });
    }
}

async fn inspect(
    watch: Watch,
    item: ItemId,
    place: tokio::sync::OwnedSemaphorePermit,
) -> InspectionOutcome {
    let Some((owner, sandbox)) = watch.cache.locate(&item) else {
        return InspectionOutcome::Unknown;
    };
    let begun = Instant::now();
    let reading = async {
        let seq = watch.cache.next_seq();
        match &item {
            ItemId::Sandbox(id) => read_sandbox(&watch, &owner, id, seq).await,
            ItemId::Container(id) => {
                read_container(&watch, &owner, id, sandbox.unwrap_or_default(), seq).await
            }
        }
    };
    tokio::pin!(reading);
    let result = match tokio::time::timeout(SLOW, &mut reading).await {
        Ok(result) => Some(result),
        Err(_) => {
            drop(place);
            tokio::time::timeout(DEADLINE - SLOW, reading).await.ok()
        }
    };
    let outcome = match result {
        Some(Ok((seq, read))) => {
            watch.cache.apply(&owner, &item, seq, read);
            watch.metrics.inspected(begun.elapsed());
            return InspectionOutcome::Done;
        }
        Some(Err(error)) => InspectionOutcome::Failed(error),
        None => InspectionOutcome::Late,
    };
    note_failure(&watch, &item, &outcome).await;
    outcome
}

/// Records why the item could not be read. A list may still have the state of the container.
async fn note_failure(watch: &Watch, item: &ItemId, outcome: &InspectionOutcome) {
    let failure = match outcome {
        InspectionOutcome::Failed(error) => error.grpc_text(),
        _ => format!(
            "rpc error: code = DeadlineExceeded desc = no answer within {} s",
            DEADLINE.as_secs()
        ),
    };
    let seq = watch.cache.next_seq();
    let listed = match item {
        ItemId::Container(id) => listed(watch, id).await,
        ItemId::Sandbox(_) => None,
    };
    watch.cache.failed(item, seq, failure.into(), listed);
}

async fn listed(watch: &Watch, id: &ContainerId) -> Option<ContainerStatus> {
    let filter = ContainerFilter {
        id: id.to_string(),
        ..ContainerFilter::default()
    };
    let list = watch.runtime.list_containers(Some(filter));
    let list = tokio::time::timeout(SLOW, list).await.ok()?.ok()?;
    let found = list.iter().find(|found| found.id == id.as_str())?;
    let owned = translate::container_from_list(found, watch.cache.strings())?;
    Some(owned.object)
}

async fn read_sandbox(
    watch: &Watch,
    owner: &Owner,
    id: &SandboxId,
    seq: Seq,
) -> Result<(Seq, Read), CriError> {
    match watch.runtime.pod_sandbox_status(id.as_str(), false).await {
        Ok(reply) => {
            tracing::trace!(pod = %owner.name, sandbox = %id, "Read a sandbox");
            let status = translate::sandbox_status(
                &reply.sandbox,
                watch.cache.strings(),
                watch.cache.address_order(),
            );
            // Without a kubelet's labels it is not ours (any more).
            Ok((
                seq,
                status.map_or(Read::Gone, |owned| Read::Sandbox(owned.object)),
            ))
        }
        Err(error) if error.is_not_found() => Ok((seq, Read::Gone)),
        Err(error) => Err(error),
    }
}

async fn read_container(
    watch: &Watch,
    owner: &Owner,
    id: &ContainerId,
    sandbox: SandboxId,
    seq: Seq,
) -> Result<(Seq, Read), CriError> {
    let reply = match watch.runtime.container_status(id.as_str()).await {
        Ok(reply) => reply,
        Err(error) if error.is_not_found() => return Ok((seq, Read::Gone)),
        Err(error) => return Err(error),
    };
    tracing::trace!(pod = %owner.name, container = %id, "Read a container");
    let status = translate::container_status(&reply, sandbox, watch.cache.strings());
    let Some(mut status) = status.map(|owned| owned.object) else {
        return Ok((seq, Read::Gone));
    };
    if status.state == ContainerState::Exited
        && let Some(message) = termination_message::of(&reply).await
    {
        status.message = message.into();
    }
    Ok((seq, Read::Container(status)))
}
