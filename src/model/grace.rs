//! The deadline of a stop of a pod or of one container.

use crate::base::clock::Instant;
use std::time::Duration;

/// The deadline of a stop of a pod or of one container. It can only be replaced by an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraceDeadline {
    /// The end of the grace period.
    pub deadline: Instant,
    /// The whole grace period in seconds; 0 only for a single container.
    pub grace_seconds: i64,
}

/// A grace period in seconds as it takes effect: a negative one is one second, as in the conversion of the API.
pub fn positive_grace(seconds: i64) -> i64 {
    if seconds < 0 { 1 } else { seconds }
}

impl GraceDeadline {
    /// A grace period of `seconds` (at least 1) that starts at `now`.
    pub fn starting(now: Instant, seconds: i64) -> Self {
        let grace_seconds = seconds.max(1);
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(1));
        // Limited to a century, so that the addition does not overflow.
        let grace = grace.min(Duration::from_secs(100 * 365 * 24 * 3600));
        Self { deadline: now + grace, grace_seconds }
    }
}

impl GraceDeadline {
    /// The time left at `now`.
    pub fn left(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now)
    }

    /// The earlier of the two.
    pub fn min(self, other: Self) -> Self {
        if other.deadline < self.deadline { other } else { self }
    }
}
