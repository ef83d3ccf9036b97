//! Updates of workers.

use crate::{
    model::{Pod, PodStatus},
    pods::pod_sync::syncer::{TerminationReason, UpdateKind},
};
use std::sync::Arc;

/// One call of `update_pod`.
#[derive(Clone, Debug)]
pub struct UpdateOptions {
    pub(super) kind: UpdateKind,
    /// The pod; `None` when only the runtime knows it, and then it can only be killed.
    pub(super) pod: Option<Arc<Pod>>,
    /// Its runtime status, if all of it is known. Only used by a new worker.
    pub(super) running: Option<Arc<PodStatus>>,
    /// Only with [`UpdateKind::Kill`].
    pub(super) kill: Option<KillOptions>,
}

/// How and why a pod is stopped.
#[derive(Clone, Debug)]
pub(super) struct KillOptions {
    /// At most this many seconds, whatever the pod says; zero means as fast as possible.
    pub(super) grace_seconds: Option<i64>,
    pub(super) reason: TerminationReason,
}

impl UpdateOptions {
    /// Makes the pod run as specified.
    pub fn sync(kind: UpdateKind, pod: Arc<Pod>) -> Self {
        Self {
            kind,
            pod: Some(pod),
            running: None,
            kill: None,
        }
    }

    /// Stops the pod with its own grace.
    pub fn kill(pod: Arc<Pod>, reason: TerminationReason) -> Self {
        Self {
            kind: UpdateKind::Kill,
            pod: Some(pod),
            running: None,
            kill: Some(KillOptions::new(reason)),
        }
    }

    /// Stops a pod of which only the runtime knows.
    pub fn orphan(running: Arc<PodStatus>) -> Self {
        Self {
            kind: UpdateKind::Kill,
            pod: None,
            running: Some(running),
            kill: Some(KillOptions::new(TerminationReason::Orphaned)),
        }
    }

    /// Stops a pod of which only the runtime knows and that another pod replaces, with the grace that its
    /// containers were created with.
    pub fn superseded(running: Arc<PodStatus>) -> Self {
        let grace = running.grace_seconds();
        let orphan = Self::orphan(running);
        match grace {
            Some(seconds) => orphan.with_grace(seconds.into()),
            None => orphan,
        }
    }

    /// Stops it within so many seconds; has no effect on anything but a kill.
    #[must_use]
    pub fn with_grace(mut self, seconds: i64) -> Self {
        if let Some(kill) = &mut self.kill {
            kill.grace_seconds = Some(seconds);
        }
        self
    }

    /// Adds the runtime status, if all of it is known.
    #[must_use]
    pub fn with_running(mut self, running: impl Into<Option<Arc<PodStatus>>>) -> Self {
        self.running = running.into();
        self
    }

    pub(super) fn grace_seconds(&self) -> Option<i64> {
        self.kill.as_ref()?.grace_seconds
    }
}

impl KillOptions {
    fn new(reason: TerminationReason) -> Self {
        Self {
            grace_seconds: None,
            reason,
        }
    }
}
