//! Updates of workers (upstream's `UpdatePodOptions` and `KillPodOptions`).

use crate::{
    model::{Pod, PodStatus},
    pods::pod_sync::syncer::{SyncPodType, TerminationReason},
};
use std::sync::Arc;

/// One call of `update_pod`.
#[derive(Clone, Debug)]
pub struct UpdatePodOptions {
    pub(super) kind: SyncPodType,
    /// The pod; `None` for an orphan, which can only be killed.
    pub(super) pod: Option<Arc<Pod>>,
    /// Its complete runtime status, if known. Only used by a new worker.
    pub(super) running_pod: Option<Arc<PodStatus>>,
    /// Only with [`SyncPodType::Kill`].
    pub(super) kill: Option<KillPodOptions>,
}

/// How and why a pod is stopped.
#[derive(Clone, Debug)]
pub(super) struct KillPodOptions {
    /// Overrides a longer grace period of the pod, in seconds; zero means the minimum.
    pub(super) grace_seconds: Option<i64>,
    pub(super) reason: TerminationReason,
}

impl UpdatePodOptions {
    /// An update that syncs the pod.
    pub fn sync(kind: SyncPodType, pod: Arc<Pod>) -> Self {
        Self {
            kind,
            pod: Some(pod),
            running_pod: None,
            kill: None,
        }
    }

    /// An update that kills the pod, with the grace period of its spec.
    pub fn kill(pod: Arc<Pod>, reason: TerminationReason) -> Self {
        Self {
            kind: SyncPodType::Kill,
            pod: Some(pod),
            running_pod: None,
            kill: Some(KillPodOptions::new(reason)),
        }
    }

    /// An update that kills an orphan: a pod that is only known from the runtime.
    pub fn orphan(running: Arc<PodStatus>) -> Self {
        Self {
            kind: SyncPodType::Kill,
            pod: None,
            running_pod: Some(running),
            kill: Some(KillPodOptions::new(TerminationReason::Orphaned)),
        }
    }

    /// An update that kills an orphan because a desired pod replaces it, with the grace period that its containers were
    /// created with.
    pub fn replaced_orphan(running: Arc<PodStatus>) -> Self {
        let grace = running.grace_seconds();
        let orphan = Self::orphan(running);
        match grace {
            Some(seconds) => orphan.with_grace(seconds.into()),
            None => orphan,
        }
    }

    /// Limits the grace period of a kill; no effect on other updates.
    #[must_use]
    pub fn with_grace(mut self, seconds: i64) -> Self {
        if let Some(kill) = &mut self.kill {
            kill.grace_seconds = Some(seconds);
        }
        self
    }

    /// Adds the complete runtime status, if it is known.
    #[must_use]
    pub fn with_running(mut self, running: impl Into<Option<Arc<PodStatus>>>) -> Self {
        self.running_pod = running.into();
        self
    }

    pub(super) fn grace_seconds(&self) -> Option<i64> {
        self.kill.as_ref()?.grace_seconds
    }
}

impl KillPodOptions {
    fn new(reason: TerminationReason) -> Self {
        Self {
            grace_seconds: None,
            reason,
        }
    }
}
