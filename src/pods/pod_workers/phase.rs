//! The phases of a pod worker, each with the data that only exists in it.

use crate::base::clock::Instant;
use crate::model::{GraceDeadline, Pod, PodStatus};
use crate::pods::pod_sync::syncer::{SyncPodType, TerminationReason};
use std::sync::Arc;

/// The pod of a worker.
#[derive(Clone, Debug)]
pub(super) enum WorkerTarget {
    /// A pod with a spec.
    Pod(Arc<Pod>),
    /// An orphan, known only from the runtime (upstream's `RunningPod`).
    Runtime(Arc<PodStatus>),
}

/// Why a pod ends, and whether it starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// Why it ends; the first reason is kept.
    pub reason: TerminationReason,
    /// A pod of the same UID was added again, and starts after this one has ended.
    pub restart_requested: bool,
}

/// The grace period of a terminating pod; it only gets shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    seconds: i64,
    /// Set when stopping begins.
    deadline: Option<GraceDeadline>,
}

/// The phase of a pod worker (upstream's `PodWorkerState`). `Syncing`, `Terminating` and `Terminated` are upstream's
/// `SyncPod`, `TerminatingPod` and `TerminatedPod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// A static pod that waits for the end of another one of its full name.
    WaitingToStart {
        /// The kind of its first sync.
        kind: SyncPodType,
        /// Whether containers of it may be running already.
        may_be_running: bool,
    },
    /// It may start; its first sync has not begun.
    Starting {
        /// Whether containers of it may be running already.
        may_be_running: bool,
    },
    /// It is kept running.
    Syncing,
    /// Its containers are being stopped.
    Terminating {
        /// Why it ends.
        termination: Termination,
        /// The grace period.
        grace: Grace,
    },
    /// No container of it runs any more; its volumes, cgroup and devices are being released.
    Terminated {
        /// Why it ended.
        termination: Termination,
    },
    /// Everything is released; the worker's task has ended.
    Finished {
        /// Why it ended.
        termination: Termination,
    },
}

impl WorkerPhase {
    /// Whether containers of the pod may be running.
    pub(super) fn could_have_running_containers(&self) -> bool {
        !matches!(self, Self::Terminated { .. } | Self::Finished { .. })
    }

    /// Whether the pod has not started yet, and no container of it may be running already.
    pub(super) fn never_ran(&self) -> bool {
        matches!(
            self,
            Self::WaitingToStart { may_be_running: false, .. }
                | Self::Starting { may_be_running: false }
        )
    }
}

impl Termination {
    pub(super) fn new(reason: TerminationReason) -> Self {
        Self { reason, restart_requested: false }
    }
}

impl Grace {
    /// A grace period of at least a second, which does not run yet.
    pub(crate) fn new(seconds: i64) -> Self {
        Self { seconds: seconds.max(1), deadline: None }
    }

    /// Shortens the grace period, to a second at the least. Returns the new deadline if a running one moved.
    pub(super) fn shorten(&mut self, seconds: i64, now: Instant) -> Option<GraceDeadline> {
        let seconds = seconds.max(1);
        self.seconds = self.seconds.min(seconds);
        let running = self.deadline?;
        let earlier = running.min(GraceDeadline::starting(now, seconds));
        self.deadline = Some(earlier);
        (earlier != running).then_some(earlier)
    }

    /// The deadline, which is set by the first call.
    pub(crate) fn begin(&mut self, now: Instant) -> GraceDeadline {
        let starting = GraceDeadline::starting(now, self.seconds);
        *self.deadline.get_or_insert(starting)
    }

    /// The deadline, once stopping has begun.
    pub fn deadline(&self) -> Option<GraceDeadline> {
        self.deadline
    }

    /// The grace period in seconds.
    pub fn seconds(&self) -> i64 {
        self.seconds
    }
}
