//! The input and the result of a sync.

use crate::base::clock::{self, Instant};
use crate::cri::v1::PodSandboxConfig;
use crate::images::PullSecrets;
use crate::model::{ContainerId, Pod, PodStatus, SandboxId, reasons};
use crate::volumes::VolumePaths;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Delay before the next sync if a sandbox or container may exist although its creation returned an error.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The input of one sync.
pub struct SyncRequest<'a> {
    /// The desired pod.
    pub pod: &'a Arc<Pod>,
    /// The settled runtime status.
    pub status: Arc<PodStatus>,
    /// The pod's image pull secrets.
    pub secrets: &'a PullSecrets,
    /// Where the pod's volumes are on the host.
    pub volumes: &'a VolumePaths,
    /// Fires when the pod is to be stopped, its deadline has passed, or the kubelet shuts down.
    pub cancel: &'a CancellationToken,
}

/// A sandbox that containers can be created in.
#[derive(Clone, Debug)]
pub(super) struct ReadySandbox {
    pub(super) id: SandboxId,
    pub(super) config: PodSandboxConfig,
    pub(super) ips: Vec<String>,
    /// The pod's log directory is new, so no restart count has to be read from log files.
    pub(super) fresh_logs: bool,
}

/// Why the start of a container did not complete. The container may run: the postStart hook comes after StartContainer.
#[derive(Debug)]
pub(in crate::runtime::kuberuntime) enum StartContainerError {
    /// The sync was cancelled.
    Cancelled,
    /// The start failed.
    Failed(StartFailure),
}

impl From<StartFailure> for StartContainerError {
    fn from(failure: StartFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Why a container waits, as its status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// Container name.
    pub container: String,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// Delay before a retry; `None` leaves it to the worker.
    pub retry_in: Option<Duration>,
}

/// The result of one sync (upstream's `PodSyncResult`).
#[derive(Debug, Default)]
pub struct PodSyncResult {
    /// The runtime was changed, or may have been.
    pub changed_runtime: bool,
    /// Containers that were started; clears their earlier start failures.
    pub started: Vec<String>,
    /// Containers whose start did not complete, and why.
    pub failures: Vec<StartFailure>,
    /// The error that ended the sync early, if any.
    pub error: Option<anyhow::Error>,
    /// Why the resources of running containers could not be changed to the allocated ones.
    pub resize_error: Option<String>,
    /// The sync was cancelled.
    pub cancelled: bool,
    /// When the next sync is due at the latest. An instant rather than a delay, because this sync may run for
    /// long after this is set.
    pub next_sync_at: Option<Instant>,
}

impl PodSyncResult {
    pub(super) fn add_failure(&mut self, failure: StartFailure) {
        if let Some(retry) = failure.retry_in {
            self.retry_after(retry);
        }
        self.failures.push(failure);
    }

    /// Makes the next sync due after this at the latest.
    pub fn retry_after(&mut self, delay: Duration) {
        let at = clock::instant() + delay;
        self.next_sync_at = Some(self.next_sync_at.map_or(at, |known| known.min(at)));
    }

    /// Whether nothing failed.
    pub fn is_clean(&self) -> bool {
        self.error.is_none() && self.failures.is_empty() && self.resize_error.is_none()
    }

    /// Whether the worker has to retry soon: something failed that has no retry delay of its own.
    pub fn needs_retry(&self) -> bool {
        self.error.is_some()
            || self.resize_error.is_some()
            || self.failures.iter().any(|f| f.retry_in.is_none())
    }
}

impl StartFailure {
    pub(super) fn new(container: &str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { container: container.into(), reason, message: message.into(), retry_in: None }
    }

    pub(super) fn crash_loop(container: &str, message: String, left: Duration) -> Self {
        Self { retry_in: Some(left), ..Self::new(container, reasons::CRASH_LOOP_BACK_OFF, message) }
    }
}

/// The first 13 characters of a container ID, as `crictl ps` prints it.
pub fn short_id(id: &ContainerId) -> &str {
    id.as_str().get(..13).unwrap_or(id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_earliest_next_sync_wins_however_long_the_current_one_takes() {
        let started_at = clock::instant();
        let mut result = PodSyncResult::default();
        result.add_failure(StartFailure::crash_loop("a", "m".into(), Duration::from_secs(20)));
        result.add_failure(StartFailure::crash_loop("b", "m".into(), Duration::from_secs(10)));
        assert_eq!(result.next_sync_at, Some(started_at + Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(300)).await;
        result.retry_after(Duration::from_secs(1));
        assert_eq!(result.next_sync_at, Some(started_at + Duration::from_secs(10)));
        assert!(!result.needs_retry());
        result.add_failure(StartFailure::new("c", reasons::CREATE_CONTAINER_ERROR, "m"));
        assert!(result.needs_retry());
    }
}
