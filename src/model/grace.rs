//! Until when something may take to stop.

use std::time::Duration;
use tokio::time::Instant;

/// Until when a pod may take to stop. Only ever replaced by an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraceDeadline {
    /// When the grace period is over.
    pub deadline: Instant,
    /// How long it was when it began, in seconds; at least 1.
    pub grace_seconds: i64,
}

impl GraceDeadline {
    /// A grace period of `seconds` (at least 1) that begins at `now`.
    pub fn starting(now: Instant, seconds: i64) -> Self {
        let grace_seconds = seconds.max(1);
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(1));
        // A century is as good as for ever, and stays within what a clock can hold.
        let grace = grace.min(Duration::from_secs(100 * 365 * 24 * 3600));
        Self {
            deadline: now + grace,
            grace_seconds,
        }
    }
}

impl GraceDeadline {
    /// What is left at `now`.
    pub fn left(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now)
    }

    /// The earlier of the two.
    pub fn min(self, other: Self) -> Self {
        if other.deadline < self.deadline {
            other
        } else {
            self
        }
    }
}
