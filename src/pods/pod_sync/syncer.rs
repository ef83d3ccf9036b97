//! What a pod worker drives: the one seam at which tests put a syncer that blocks on command.

use crate::model::{GraceDeadline, Pod, PodStatus};
use futures::future::BoxFuture;
use std::{fmt, sync::Arc};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Why a worker looks at its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// The pod is new.
    Create,
    /// The pod was changed by its source.
    Update,
    /// Something about the pod may have changed, or it is time to look again.
    Sync,
}

impl UpdateKind {
    /// As metrics and traces have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Sync => "sync",
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
    },
    /// The kubelet does not know the pod.
    Orphaned,
}

impl fmt::Display for TerminationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted => f.write_str("no source wants it any more"),
            Self::Finished => f.write_str("it has reached its end"),
            Self::Evicted { reason, message } => write!(f, "{reason}: {message}"),
            Self::Orphaned => f.write_str("only the runtime knows it"),
        }
    }
}

/// How soon to look again when the turn itself named no instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryDelay {
    /// Nothing to do: the long resync.
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

/// The outcome of one turn of setting up a pod.
#[derive(Debug)]
pub struct SyncTurn {
    /// Whether the pod has reached a terminal phase, or why the turn failed.
    pub result: anyhow::Result<bool>,
    /// The exact instant to look again, if there is one.
    pub again: Option<Instant>,
    /// How soon to look again otherwise.
    pub delay: RetryDelay,
}

/// The transaction scripts of one pod. The worker never runs two of them for one UID at once.
pub trait PodSyncer: Send + Sync + 'static {
    /// One turn of setting the pod up. When `cancel` fires, it returns at the next point between two
    /// steps.
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        kind: UpdateKind,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, SyncTurn>;

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
