//! What one turn of `sync_pod` did, for the worker and for the status.

use crate::model::{ContainerId, reasons};
use std::time::Duration;
use tokio::time::Instant;

/// Why a container waits, as its status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// Container name.
    pub container: String,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// When trying again makes sense; `None` leaves it to the worker.
    pub retry_in: Option<Duration>,
}

/// The outcome of one turn.
#[derive(Debug, Default)]
pub struct SyncReport {
    /// Anything was asked of the runtime that changes it.
    pub acted: bool,
    /// Containers that were considered and started, or need no start: their old failures are over.
    pub started: Vec<String>,
    /// Containers that could not be started, and why.
    pub failures: Vec<StartFailure>,
    /// What ended the turn early, if anything did.
    pub error: Option<anyhow::Error>,
    /// The turn ended early because the pod is to be looked at anew.
    pub cancelled: bool,
    /// When to look again at the latest. A point in time, for the turn may go on for long after it was
    /// found.
    pub again: Option<Instant>,
}

impl SyncReport {
    pub(super) fn fail(&mut self, failure: StartFailure) {
        if let Some(retry) = failure.retry_in {
            self.look_again(retry);
        }
        self.failures.push(failure);
    }

    pub(super) fn look_again(&mut self, delay: Duration) {
        let at = Instant::now() + delay;
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }

    /// Whether everything that was to be done was done.
    pub fn is_clean(&self) -> bool {
        self.error.is_none() && self.failures.is_empty()
    }

    /// Failures other than a running back-off: those make the worker try again soon.
    pub fn needs_retry(&self) -> bool {
        self.error.is_some() || self.failures.iter().any(|f| f.retry_in.is_none())
    }
}

impl StartFailure {
    pub(super) fn new(container: &str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            container: container.into(),
            reason,
            message: message.into(),
            retry_in: None,
        }
    }

    pub(super) fn crash_loop(container: &str, message: String, left: Duration) -> Self {
        Self {
            retry_in: Some(left),
            ..Self::new(container, reasons::CRASH_LOOP_BACK_OFF, message)
        }
    }
}

/// Shows a container id as users know it from the runtime's own tools.
pub fn short_id(id: &ContainerId) -> &str {
    id.as_str().get(..13).unwrap_or(id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_earliest_instant_to_look_again_wins_however_long_the_turn_goes_on() {
        let begun = Instant::now();
        let mut report = SyncReport::default();
        report.fail(StartFailure::crash_loop(
            "a",
            "m".into(),
            Duration::from_secs(20),
        ));
        report.fail(StartFailure::crash_loop(
            "b",
            "m".into(),
            Duration::from_secs(10),
        ));
        assert_eq!(report.again, Some(begun + Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(300)).await;
        report.look_again(Duration::from_secs(1));
        assert_eq!(report.again, Some(begun + Duration::from_secs(10)));
        assert!(!report.needs_retry());
        report.fail(StartFailure::new("c", reasons::CREATE_CONTAINER_ERROR, "m"));
        assert!(report.needs_retry());
    }
}
