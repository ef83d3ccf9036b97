//! Early attempts: a probe that has not succeeded yet is repeated before its period is over, because a server rarely listens
//! when its container starts, and a whole period is long to wait for. Pure.
//!
//! The gap from the end of one attempt to the next early one grows with the age of the container, so that what a container
//! waits for is about a tenth of what its start took, and so that one that never succeeds costs little.

use crate::base::clock::Instant;
use std::time::Duration;

/// The gap is this fraction of the time since the start.
const GAP_FRACTION: u32 = 10;
const MIN_GAP: Duration = Duration::from_millis(50);
const MAX_GAP: Duration = Duration::from_secs(1);
/// Gaps are used for this long after the start.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The pause after a command, as a multiple of its duration: a command costs the node much more than a connection.
const COMMAND_PAUSE: u32 = 10;

/// What decides when an instance is probed early.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyAttempts {
    /// The start of the instance, or the success of its startup probe; `None` if it is earlier than an [`Instant`] can say.
    since: Option<Instant>,
    last: Option<LastAttempt>,
    /// A sync of the pod has ended since the last attempt began.
    synced: bool,
}

#[derive(Clone, Copy, Debug)]
struct LastAttempt {
    began: Instant,
    /// The same as `began` until the attempt is reported.
    ended: Instant,
}

impl EarlyAttempts {
    /// The instance started, or its startup probe succeeded.
    pub(super) fn starts(&mut self, since: Option<Instant>) {
        self.since = since;
    }

    /// A sync of the pod has ended: what the container waited for may be there now.
    pub(super) fn synced(&mut self) {
        self.synced = true;
    }

    /// An attempt begins, early or not.
    pub(super) fn begins(&mut self, now: Instant) {
        self.synced = false;
        self.last = Some(LastAttempt { began: now, ended: now });
    }

    /// The last attempt has ended. Returns when it began.
    pub(super) fn ended(&mut self, now: Instant) -> Instant {
        let began = self.last.map_or(now, |last| last.began);
        let ended = now.max(began);
        self.last = Some(LastAttempt { began, ended });
        began
    }

    /// When the probe is repeated early, `now` or later; `None` if the next attempt is that of the period, at `tick`.
    pub(super) fn due(
        &self,
        period: Duration,
        runs_command: bool,
        tick: Instant,
        now: Instant,
    ) -> Option<Instant> {
        let LastAttempt { began, ended } = self.last?;
        let (pause, room) = if runs_command {
            let took = ended.saturating_duration_since(began);
            let pause = took.saturating_mul(COMMAND_PAUSE);
            // The tick is not moved, so the pause after this command has to end before it.
            (pause, took + pause)
        } else {
            (Duration::ZERO, Duration::ZERO)
        };
        let gap = if self.synced { MIN_GAP } else { self.gap(ended, period)? };
        let due = now.max(ended + gap.max(pause));
        (due + room < tick).then_some(due)
    }

    /// The gap after an attempt that ended then; `None` once the instance is too old.
    fn gap(&self, ended: Instant, period: Duration) -> Option<Duration> {
        let age = ended.saturating_duration_since(self.since?);
        let gap = (age / GAP_FRACTION).clamp(MIN_GAP, MAX_GAP).min(period);
        (age + gap <= MAX_AGE).then_some(gap)
    }
}
