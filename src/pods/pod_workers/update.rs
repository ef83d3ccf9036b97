//! Updates of workers (upstream's `UpdatePodOptions` and `KillPodOptions`).

use crate::model::{Pod, PodStatus};
use crate::pods::pod_sync::syncer::{SyncPodType, TerminationReason};
use std::sync::Arc;

/// One call of `update_pod`.
#[derive(Clone, Debug)]
pub struct UpdatePodOptions {
    pub(super) kind: SyncPodType,
    /// The pod; `None` for an orphan, which can only be killed.
    pub(super) pod: Option<Arc<Pod>>,
    /// Of a pod: its settled runtime status; `None` if it is not known. Of an orphan: the latest one, settled or not,
    /// which names the pod; its stop reads the status again. Only used by a new worker.
    pub(super) runtime_status: Option<Arc<PodStatus>>,
    /// Only with [`SyncPodType::Kill`].
    pub(super) kill: Option<KillPodOptions>,
}

/// How and why a pod is stopped.
#[derive(Clone, Debug)]
pub(super) struct KillPodOptions {
    /// Used instead of the grace period of the spec, or of one second for an orphan; in seconds, zero means the
    /// minimum. A shorter one of the API server wins. Once the pod is terminating, only a shorter one has an effect.
    pub(super) grace_seconds: Option<i64>,
    pub(super) reason: TerminationReason,
}

impl UpdatePodOptions {
    /// An update that syncs the pod.
    pub fn sync(kind: SyncPodType, pod: Arc<Pod>) -> Self {
        Self { kind, pod: Some(pod), runtime_status: None, kill: None }
    }

    /// An update that kills the pod, with the grace period of its spec.
    pub fn kill(pod: Arc<Pod>, reason: TerminationReason) -> Self {
        Self {
            kind: SyncPodType::Kill,
            pod: Some(pod),
            runtime_status: None,
            kill: Some(KillPodOptions::new(reason)),
        }
    }

    /// An update that kills an orphan, a pod that is only known from the runtime, with a grace period of one second, as
    /// upstream does.
    pub fn orphan(runtime_status: Arc<PodStatus>) -> Self {
        Self {
            kind: SyncPodType::Kill,
            pod: None,
            runtime_status: Some(runtime_status),
            kill: Some(KillPodOptions::new(TerminationReason::Orphaned)),
        }
    }

    /// An update that kills an orphan because a desired pod replaces it, with the grace period that its containers were
    /// created with.
    pub fn replaced_orphan(runtime_status: Arc<PodStatus>) -> Self {
        let grace = runtime_status.grace_seconds();
        let orphan = Self::orphan(runtime_status);
        match grace {
            Some(seconds) => orphan.with_grace(seconds.into()),
            None => orphan,
        }
    }

    /// Sets the grace period of a kill, in seconds; no effect on other updates.
    #[must_use]
    pub fn with_grace(mut self, seconds: i64) -> Self {
        if let Some(kill) = &mut self.kill {
            kill.grace_seconds = Some(seconds);
        }
        self
    }

    /// Adds the settled runtime status, if it is known.
    #[must_use]
    pub fn with_runtime_status(mut self, status: impl Into<Option<Arc<PodStatus>>>) -> Self {
        self.runtime_status = status.into();
        self
    }

    pub(super) fn grace_seconds(&self) -> Option<i64> {
        self.kill.as_ref()?.grace_seconds
    }

    /// The shortest of its own grace period and that of the deletion at the API server.
    pub(super) fn shortest_grace(&self) -> Option<i64> {
        let pod = self.pod.as_ref();
        let by_api = pod.and_then(|pod| pod.metadata.deletion_grace_period_seconds);
        [self.grace_seconds(), by_api].into_iter().flatten().min()
    }
}

impl KillPodOptions {
    fn new(reason: TerminationReason) -> Self {
        Self { grace_seconds: None, reason }
    }
}
