//! Reads the status of single sandboxes and containers, concurrently, so that slow reads do not delay others.

use super::{PlegContext, termination_message};
use crate::base::backoff::Backoff;
use crate::base::clock::{self, Instant};
use crate::base::panics::{PanicScope, Panicked, catch_panic};
use crate::base::{EarlyReleasePermit, EarlyReleaseSemaphore};
use crate::cri::CriError;
use crate::cri::v1::{ContainerFilter, PodSandboxFilter};
use crate::model::{ContainerId, ContainerState, SandboxId, Seq};
use crate::runtime::kuberuntime::translate;
use crate::state::pod_cache::{InspectedItem, ItemId, PodRef};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Limit of concurrent reads that hold a permit.
const MAX_CONCURRENT: usize = 64;
/// A read that takes longer releases its permit and continues.
const PERMIT_HOLD: Duration = Duration::from_secs(1);
/// A read that takes longer has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the list that is read after a failed read.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Task `pleg.inspect`.
pub struct InspectTask {
    context: PlegContext,
    permits: EarlyReleaseSemaphore,
    queue: VecDeque<ItemId>,
    /// Items that are queued or being read; true if another read was requested meanwhile.
    reading: HashMap<ItemId, bool>,
    reads: JoinSet<(ItemId, InspectionOutcome)>,
    retries: Backoff<ItemId, Instant>,
    /// The items that wait for the delay of their next retry.
    delayed: HashSet<ItemId>,
    delays: JoinSet<ItemId>,
}

enum InspectionOutcome {
    Done,
    /// The item is not in the cache any more.
    Unknown,
    Failed(CriError),
    TimedOut,
    /// A bug. Retried like a failure, or the item would stay stale.
    Panicked(Panicked),
}

impl InspectTask {
    pub(super) fn new(context: PlegContext) -> Self {
        Self {
            context,
            permits: EarlyReleaseSemaphore::new(MAX_CONCURRENT, PERMIT_HOLD),
            queue: VecDeque::new(),
            reading: HashMap::new(),
            reads: JoinSet::new(),
            retries: Backoff::new(
                Duration::from_millis(250),
                Duration::from_secs(30),
                Duration::from_secs(120),
            ),
            delayed: HashSet::new(),
            delays: JoinSet::new(),
        }
    }

    /// Inspects until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                items = self.context.cache.to_inspect() => items.into_iter().for_each(|i| self.enqueue(i)),
                permit = self.permits.acquire(), if !self.queue.is_empty() => {
                    if let Some(item) = self.queue.pop_front() {
                        let context = self.context.clone();
                        self.reads.spawn(async move {
                            let read = inspect(context, item.clone(), permit);
                            let read = catch_panic(PanicScope::Inspection, read).await;
                            (item, read.unwrap_or_else(InspectionOutcome::Panicked))
                        });
                    }
                }
                Some(read) = self.reads.join_next() => match read {
                    Ok((item, outcome)) => self.on_read_ended(item, outcome),
                    Err(error) => tracing::error!(err = %error, "Inspection task failed"),
                },
                Some(Ok(item)) = self.delays.join_next() => {
                    self.delayed.remove(&item);
                    self.enqueue(item);
                }
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

    fn on_read_ended(&mut self, item: ItemId, outcome: InspectionOutcome) {
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
            InspectionOutcome::TimedOut => format!("timed out after {} s", READ_TIMEOUT.as_secs()),
        };
        let now = clock::instant();
        let first = self.retries.entry(&item).is_none();
        let delay = self.retries.advance(item.clone(), now, now);
        if first {
            tracing::warn!(
                podSandboxID = item.sandbox_id(),
                containerID = item.container_id(),
                err = problem,
                "Failed to get status from the runtime, retrying"
            );
        }
        if again {
            self.enqueue(item);
        } else if self.delayed.insert(item.clone()) {
            self.delays.spawn(async move {
                tokio::time::sleep(delay).await;
                item
            });
        }
    }
}

async fn inspect(
    context: PlegContext,
    item: ItemId,
    permit: EarlyReleasePermit,
) -> InspectionOutcome {
    let Some((pod_ref, sandbox)) = context.cache.locate(&item) else {
        return InspectionOutcome::Unknown;
    };
    let started_at = clock::instant();
    let reading = async {
        let seq = context.cache.next_seq();
        match &item {
            ItemId::Sandbox(id) => read_sandbox(&context, &pod_ref, id, seq).await,
            ItemId::Container(id) => {
                read_container(&context, &pod_ref, id, sandbox.unwrap_or_default(), seq).await
            }
        }
    };
    let reading = tokio::time::timeout(READ_TIMEOUT, reading);
    let result = permit.run(reading).await.ok();
    let outcome = match result {
        Some(Ok((seq, read))) => {
            context.cache.apply(&pod_ref, &item, seq, read);
            context.metrics.item_read(clock::since(started_at));
            return InspectionOutcome::Done;
        }
        Some(Err(error)) => InspectionOutcome::Failed(error),
        None => InspectionOutcome::TimedOut,
    };
    record_failure(&context, &item, &outcome).await;
    outcome
}

/// Records why the item could not be read, with its state from a list: a list may succeed although the status of a single
/// item cannot be read.
async fn record_failure(context: &PlegContext, item: &ItemId, outcome: &InspectionOutcome) {
    let failure = match outcome {
        InspectionOutcome::Failed(error) => error.grpc_text(),
        _ => format!(
            "rpc error: code = DeadlineExceeded desc = timed out after {} s",
            READ_TIMEOUT.as_secs()
        ),
    };
    let seq = context.cache.next_seq();
    let listed = async {
        match item {
            ItemId::Container(id) => container_in_list(context, id).await,
            ItemId::Sandbox(id) => sandbox_in_list(context, id).await,
        }
    };
    let listed = tokio::time::timeout(LIST_TIMEOUT, listed).await;
    context.cache.record_failed_read(item, seq, failure.into(), listed.ok().flatten());
}

/// The container as a list has it; `None` if it is not in there, or the list failed.
async fn container_in_list(context: &PlegContext, id: &ContainerId) -> Option<InspectedItem> {
    let filter = ContainerFilter { id: id.to_string(), ..ContainerFilter::default() };
    let list = context.runtime.list_containers(Some(filter)).await.ok()?;
    let found = list.iter().find(|found| found.id == id.as_str())?;
    let entry = translate::container_from_list(found, context.cache.strings())?;
    Some(InspectedItem::Container(entry.status))
}

/// The sandbox as a list has it; `None` if it is not in there, or the list failed.
async fn sandbox_in_list(context: &PlegContext, id: &SandboxId) -> Option<InspectedItem> {
    let filter = PodSandboxFilter { id: id.to_string(), ..PodSandboxFilter::default() };
    let list = context.runtime.list_pod_sandboxes(Some(filter)).await.ok()?;
    let found = list.iter().find(|found| found.id == id.as_str())?;
    let entry = translate::sandbox_from_list(found, context.cache.strings())?;
    Some(InspectedItem::Sandbox(entry.status))
}

async fn read_sandbox(
    context: &PlegContext,
    pod_ref: &PodRef,
    id: &SandboxId,
    seq: Seq,
) -> Result<(Seq, InspectedItem), CriError> {
    match context.runtime.pod_sandbox_status(id.as_str(), false).await {
        Ok(reply) => {
            tracing::trace!(pod = %pod_ref.log_name(), podSandboxID = %id, "Read a sandbox");
            let status = translate::sandbox_status(
                &reply.sandbox,
                context.cache.strings(),
                context.cache.address_order(),
            );
            // Without a kubelet's labels it belongs to another client of the runtime.
            Ok((
                seq,
                status.map_or(InspectedItem::Gone, |entry| InspectedItem::Sandbox(entry.status)),
            ))
        }
        Err(error) if error.is_not_found() => Ok((seq, InspectedItem::Gone)),
        Err(error) => Err(error),
    }
}

async fn read_container(
    context: &PlegContext,
    pod_ref: &PodRef,
    id: &ContainerId,
    sandbox: SandboxId,
    seq: Seq,
) -> Result<(Seq, InspectedItem), CriError> {
    let reply = match context.runtime.container_status(id.as_str()).await {
        Ok(reply) => reply,
        Err(error) if error.is_not_found() => return Ok((seq, InspectedItem::Gone)),
        Err(error) => return Err(error),
    };
    tracing::trace!(pod = %pod_ref.log_name(), containerID = %id, "Read a container");
    let status = translate::container_status(&reply, sandbox, context.cache.strings());
    let Some(mut status) = status.map(|entry| entry.status) else {
        return Ok((seq, InspectedItem::Gone));
    };
    if status.state == ContainerState::Exited
        && let Some(message) = termination_message::of(&reply).await
    {
        status.message = message.into();
    }
    Ok((seq, InspectedItem::Container(status)))
}
