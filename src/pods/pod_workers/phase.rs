//! The phases of a pod's life, each with what is true only then.

use crate::{
    model::{GraceDeadline, Pod, PodStatus},
    pods::pod_sync::syncer::{TerminationReason, UpdateKind},
};
use std::sync::Arc;
use tokio::time::Instant;

/// What a worker is about.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A pod with a spec.
    Pod(Arc<Pod>),
    /// A pod of which only the runtime knows.
    Runtime(Arc<PodStatus>),
}

/// Why and how a pod ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEnd {
    /// Why it ends; the first reason stays.
    pub reason: TerminationReason,
    /// The same UID was added again and has to start again after this end.
    pub restart: bool,
}

/// Grace of a pod that is ending; it only shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    seconds: i64,
    /// Set when stopping begins.
    deadline: Option<GraceDeadline>,
}

/// Where in its life a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// A static pod in line behind another one of its name.
    Waiting {
        /// The kind of its first sync.
        kind: UpdateKind,
        /// Whether the runtime may have something of it.
        may_run: bool,
    },
    /// It may start; its first sync has not begun.
    Starting {
        /// Whether the runtime may have something of it.
        may_run: bool,
    },
    /// It is kept running.
    Syncing,
    /// It is being stopped.
    Terminating {
        /// How it ends.
        end: PodEnd,
        /// How much time it has.
        grace: Grace,
    },
    /// Nothing of it runs any more; what it held is being given back.
    Terminated {
        /// How it ended.
        end: PodEnd,
    },
    /// Nothing is left to do.
    Finished {
        /// How it ended.
        end: PodEnd,
    },
}

impl PodEnd {
    pub(super) fn new(reason: TerminationReason) -> Self {
        Self {
            reason,
            restart: false,
        }
    }
}

impl Grace {
    /// At least a second.
    pub(crate) fn new(seconds: i64) -> Self {
        Self {
            seconds: seconds.max(1),
            deadline: None,
        }
    }

    /// Never longer than before and never less than a second. Returns the new deadline when one that
    /// is running has moved.
    pub(super) fn shorten(&mut self, seconds: i64, now: Instant) -> Option<GraceDeadline> {
        let seconds = seconds.max(1);
        self.seconds = self.seconds.min(seconds);
        let running = self.deadline?;
        let earlier = running.min(GraceDeadline::starting(now, seconds));
        self.deadline = Some(earlier);
        (earlier != running).then_some(earlier)
    }

    /// The deadline, which starts to run with the first call.
    pub(crate) fn begin(&mut self, now: Instant) -> GraceDeadline {
        let starting = GraceDeadline::starting(now, self.seconds);
        *self.deadline.get_or_insert(starting)
    }

    /// Until when the pod may take to stop, once that has begun.
    pub fn deadline(&self) -> Option<GraceDeadline> {
        self.deadline
    }

    /// The whole grace.
    pub fn seconds(&self) -> i64 {
        self.seconds
    }
}
