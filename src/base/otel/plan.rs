//! Retries of failed exports, and the rate limit of their logging.

use crate::base::clock::Instant;
use std::time::Duration;

use tonic::Code;

/// The first delay; it doubles with each retry.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Number of retries before a batch is dropped: after about a minute, as upstream's exporter.
const TRIES: u32 = 6;
/// Minimum interval between two logged failures.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExportRetry {
    /// Retry the same batch after this delay.
    Again(Duration),
    /// Drop the batch.
    GiveUp,
}

/// Decides after a failure with this code; `again` is the number of retries so far.
pub(super) fn after_failure(code: Code, again: u32) -> ExportRetry {
    if !may_pass(code) || again >= TRIES {
        return ExportRetry::GiveUp;
    }
    ExportRetry::Again(FIRST_WAIT.saturating_mul(1 << again))
}

/// Whether a retry may succeed: the codes in the OTLP specification, and `Unknown`, which a lost connection results
/// in.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::Unknown
    )
}

/// What was logged about failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FailureLog {
    last: Option<Instant>,
    lost: u64,
}

impl FailureLog {
    /// Records a failure. Returns the number of spans lost since the last log if it is to be logged now.
    pub(super) fn failing(&mut self, lost: u64, now: Instant) -> Option<u64> {
        self.lost += lost;
        let due = |last: Instant| now.saturating_duration_since(last) >= FAILURE_LOG_INTERVAL;
        if !self.last.is_none_or(due) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.lost))
    }

    /// Records a success. Returns the number of lost spans if the recovery is to be logged: once, after a logged
    /// failure.
    pub(super) fn working(&mut self) -> Option<u64> {
        self.last.take().map(|_| std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn what_may_pass_is_tried_for_about_a_minute() {
        let waits: Vec<_> = (0..8).map(|again| after_failure(Code::Unavailable, again)).collect();
        let seconds = [1, 2, 4, 8, 16, 32];
        let expected = seconds.map(|s| ExportRetry::Again(Duration::from_secs(s)));
        assert_eq!(waits[..6], expected);
        assert_eq!(waits[6..], [ExportRetry::GiveUp; 2]);
    }

    #[test]
    fn what_will_not_pass_is_given_up() {
        for (code, passes) in [
            (Code::Cancelled, true),
            (Code::Unknown, true),
            (Code::InvalidArgument, false),
            (Code::DeadlineExceeded, true),
            (Code::NotFound, false),
            (Code::PermissionDenied, false),
            (Code::ResourceExhausted, false),
            (Code::FailedPrecondition, false),
            (Code::Aborted, true),
            (Code::OutOfRange, true),
            (Code::Unimplemented, false),
            (Code::Internal, false),
            (Code::Unavailable, true),
            (Code::DataLoss, true),
            (Code::Unauthenticated, false),
        ] {
            let again = after_failure(code, 0) != ExportRetry::GiveUp;
            assert_eq!(again, passes, "{code:?}");
        }
    }

    #[test]
    fn a_failure_is_told_at_once_then_once_a_minute_with_what_was_lost_and_the_end_once() {
        let (mut log, begin) = (FailureLog::default(), clock::instant());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(log.working(), None);
        for (now, lost, expected) in [
            (0, 3, Some(3)),
            (1, 5, None),
            (59, 1, None),
            (60, 1, Some(7)),
            (61, 0, None),
            (130, 0, Some(0)),
        ] {
            assert_eq!(log.failing(lost, at(now)), expected, "{now}");
        }
        assert_eq!(log.failing(2, at(131)), None);
        assert_eq!((log.working(), log.working()), (Some(2), None));
        assert_eq!(log.failing(1, at(132)), Some(1));
    }
}
