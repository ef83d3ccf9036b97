//! What a pod worker calls. Tests replace it with a syncer that blocks on command.

use crate::{
    model::{GraceDeadline, Pod, PodStatus},
    pods::status::generate::FailedBecause,
};
use futures::future::BoxFuture;
use std::{fmt, sync::Arc};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// What a worker is woken for, weakest first: of several updates that were not delivered, the strongest
/// stays. What it does then follows from the state of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpdateKind {
    /// Something about the pod may have changed, or its next sync is due.
    Sync,
    /// The pod was changed by its source.
    Update,
    /// The pod is new.
    Create,
    /// The pod is to end.
    Kill,
}

impl UpdateKind {
    /// As in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Sync => "sync",
            Self::Kill => "kill",
        }
    }
}

/// Why a pod is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminationReason {
    /// Its source no longer has it, or it was deleted.
    Deleted,
    /// It reached a terminal phase by itself.
    Finished,
    /// The node needs its resources back.
    Evicted {
        /// For the status, CamelCase.
        reason: String,
        /// For the status, for people.
        message: String,
        /// What replaces the pod does not count its end as a failure.
        disruption: bool,
    },
    /// The machine goes down.
    NodeShutdown,
    /// Only the runtime knows it.
    Orphaned,
}

impl TerminationReason {
    /// What the pod's status says of it, if the node makes the pod fail.
    pub fn failed_because(&self) -> Option<FailedBecause> {
        match self {
            Self::Evicted {
                reason,
                message,
                disruption,
            } => Some(FailedBecause {
                reason: reason.clone(),
                message: message.clone(),
                disruption: *disruption,
            }),
            Self::NodeShutdown => Some(FailedBecause {
                reason: "Terminated".into(),
                message: "Pod was terminated in response to imminent node shutdown.".into(),
                disruption: true,
            }),
            Self::Deleted | Self::Finished | Self::Orphaned => None,
        }
    }
}

impl fmt::Display for TerminationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted => f.write_str("removed from its source"),
            Self::Finished => f.write_str("it is terminal"),
            Self::Evicted {
                reason, message, ..
            } => write!(f, "{reason}: {message}"),
            Self::NodeShutdown => f.write_str("the node is shutting down"),
            Self::Orphaned => f.write_str("orphaned"),
        }
    }
}

/// When to sync a pod again. The delays are at most stretched by a half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryDelay {
    /// Nothing is left to do: `syncFrequency`.
    #[default]
    Resync,
    /// Something failed: 10 to 15 s.
    Error,
    /// A stop or a clean-up has failed so many times in a row: 2 to 3 s after the first time, as long
    /// as after [`Self::Error`] from the fourth time on (upstream's housekeeping tries every 2 s).
    Stop(u32),
    /// The runtime's network is not ready: 1 to 1.5 s.
    NetworkNotReady,
}

/// When a pod is synced next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextSync {
    /// At this exact instant,
    pub at: Option<Instant>,
    /// or after this delay, whichever is earlier.
    pub delay: RetryDelay,
}

impl From<RetryDelay> for NextSync {
    fn from(delay: RetryDelay) -> Self {
        Self { at: None, delay }
    }
}

/// The result of [`PodSyncer::sync_pod`].
#[derive(Debug)]
pub struct PodSyncResult {
    /// Whether the pod has reached a terminal phase, or why the sync failed.
    pub result: anyhow::Result<bool>,
    /// When it is synced next.
    pub next: NextSync,
}

/// The syncs of one pod. A worker never runs two of them for one UID at once.
pub trait PodSyncer: Send + Sync + 'static {
    /// Makes the runtime match the pod. When `cancel` fires, it returns at the next point between two
    /// steps.
    fn sync_pod(&self, pod: Arc<Pod>, cancel: CancellationToken) -> BoxFuture<'_, PodSyncResult>;

    /// Stops everything of the pod. The grace may shrink meanwhile.
    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>>;

    /// Stops a pod of which only the runtime knows.
    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>>;

    /// Gives back what the pod held after its last container has ended.
    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>>;
}
