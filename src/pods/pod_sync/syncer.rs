//! The trait that a pod worker calls (upstream's `podSyncer`). Tests implement it with a syncer that blocks on command.
//!
//! The life of a pod is a series of these calls, one at a time:
//!
//! 1. `sync_pod`, again and again: wait until the runtime status is settled, publish the status, set up the volumes,
//!    make the runtime match the pod, publish again. It returns the time of the next call. The series ends with a
//!    status of a terminal phase, or when the pod's deadline is over.
//! 2. `sync_terminating_pod`, until it succeeds: publish, stop the liveness and startup probes, run preStop hooks and
//!    stop the containers within the grace period, release claims of devices. An orphan has no spec and is stopped by
//!    `sync_terminating_runtime_pod`.
//! 3. `sync_terminated_pod`, until it succeeds: release devices, volumes, the cgroup and the user namespace, and record
//!    the last status if it is terminal.
//!
//! A failure is the result of its call. The worker logs it and calls again; nobody else receives it. Containers, logs
//! and records stay for users until no source has the pod any more: then `PodSync::remove_pod` removes them.

use crate::base::clock::Instant;
use crate::base::named_enum;
use crate::model::{GraceDeadline, Pod, PodStatus};
use crate::pods::status::generate::PodFailure;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

named_enum! {
    /// Why a worker is woken, weakest first: of several undelivered updates, the strongest is kept. What the worker
    /// does depends on the phase of the pod. Named as in metrics and traces.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum SyncPodType {
        /// Something about the pod may have changed, or its next sync is due.
        Sync = "sync",
        /// The pod was changed by its source.
        Update = "update",
        /// The pod is new.
        Create = "create",
        /// The pod is to be terminated.
        Kill = "kill",
    }
}

/// Why a pod is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminationReason {
    /// Its source no longer has it, or it was deleted.
    Deleted,
    /// Its status has a terminal phase: its containers ended for good, or the kubelet rejected or failed it.
    PodTerminal,
    /// It is evicted or preempted, because the node is short of a resource.
    Evicted {
        /// For the status, CamelCase.
        reason: String,
        /// For the status, for people.
        message: String,
        /// Whether the status gets the condition DisruptionTarget, so that a Job does not count the end as a failure.
        disruption: bool,
    },
    /// The node shuts down.
    NodeShutdown,
    /// No source has it; it is only known from the runtime.
    Orphaned,
}

impl TerminationReason {
    /// The reason and message of the pod's status, if the node fails the pod.
    pub fn pod_failure(&self) -> Option<PodFailure> {
        match self {
            Self::Evicted { reason, message, disruption } => Some(PodFailure {
                reason: reason.clone(),
                message: message.clone(),
                disruption: *disruption,
            }),
            Self::NodeShutdown => Some(PodFailure {
                reason: "Terminated".into(),
                message: "Pod was terminated in response to imminent node shutdown.".into(),
                disruption: true,
            }),
            Self::Deleted | Self::PodTerminal | Self::Orphaned => None,
        }
    }
}

impl fmt::Display for TerminationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted => f.write_str("removed from its source"),
            Self::PodTerminal => f.write_str("the pod reached a terminal phase"),
            Self::Evicted { reason, message, .. } => write!(f, "{reason}: {message}"),
            Self::NodeShutdown => f.write_str("the node is shutting down"),
            Self::Orphaned => f.write_str("orphaned"),
        }
    }
}

/// How long after a sync the pod is synced again if nothing changes. Each delay has up to a half of jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncDelay {
    /// Nothing is left to do: `syncFrequency`.
    #[default]
    Resync,
    /// Something failed: 10 to 15 s.
    Error,
    /// A stop or a clean-up failed this many times in a row: 2 to 3 s, doubled with each failure up to the delay of
    /// [`Self::Error`] (upstream's housekeeping retries every 2 s).
    Stop(u32),
    /// The pod needs something that this kubelet does not support: as [`Self::Error`], doubled with each sync up to the
    /// delay of [`Self::Resync`]. The number of such syncs in a row; see [`Self::after`].
    Unsupported(u32),
    /// The runtime's network is not ready: 1 to 1.5 s.
    NetworkNotReady,
}

impl SyncDelay {
    /// The delay after a sync that followed one with the delay `before`: counts what is unsupported in a row.
    pub fn after(self, before: Self) -> Self {
        match (self, before) {
            (Self::Unsupported(_), Self::Unsupported(count)) => {
                Self::Unsupported(count.saturating_add(1))
            }
            (delay, _) => delay,
        }
    }
}

/// When a pod is synced next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextSync {
    /// At this instant, without jitter; or after `delay`, whichever is earlier.
    pub at: Option<Instant>,
    /// The delay.
    pub delay: SyncDelay,
}

impl NextSync {
    /// At this instant, or after `syncFrequency`, whichever is earlier.
    pub(super) fn at(instant: Instant) -> Self {
        Self { at: Some(instant), ..Self::default() }
    }
}

impl From<SyncDelay> for NextSync {
    fn from(delay: SyncDelay) -> Self {
        Self { at: None, delay }
    }
}

/// The outcome of [`PodSyncer::sync_pod`] (the return values of upstream's `Kubelet.SyncPod`).
#[derive(Debug)]
pub struct SyncPodOutcome {
    /// Whether the pod has reached a terminal phase, or why the sync failed.
    pub result: anyhow::Result<bool>,
    /// When it is synced next.
    pub next: NextSync,
}

/// The syncs of one pod. A worker never runs two of them for one UID at once.
pub trait PodSyncer: Send + Sync + 'static {
    /// Makes the runtime match the pod. After `cancel` fires, it returns between two steps.
    fn sync_pod(&self, pod: Arc<Pod>, cancel: CancellationToken) -> BoxFuture<'_, SyncPodOutcome>;

    /// Stops all containers of the pod. The grace period may get shorter meanwhile.
    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>>;

    /// Stops an orphan, which is only known from the runtime.
    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>>;

    /// Releases the pod's volumes, cgroup and devices after its last container has ended.
    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>>;
}
