//! `activeDeadlineSeconds`: how long a pod may be active on the node.

use crate::base::clock::{self, Instant};
use crate::base::wait_until;
use crate::model::{Pod, PodExt};
use jiff::Timestamp;
use std::time::Duration;

/// The instant of a pod's `activeDeadlineSeconds`, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline of a pod. `started` returns since when the pod has been active, if that is known; it is called only
    /// for a pod with `activeDeadlineSeconds`.
    pub(super) fn of(pod: &Pod, started: impl FnOnce() -> Option<Timestamp>) -> Self {
        let left = left(pod, started, clock::timestamp());
        Self(left.and_then(|left| clock::instant().checked_add(left)))
    }

    /// The instant, if there is one.
    pub(super) fn at(self) -> Option<Instant> {
        self.0
    }

    /// Whether it has passed.
    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|at| at <= clock::instant())
    }

    /// Waits until the deadline has passed; forever without one.
    pub(super) async fn elapsed(self) {
        wait_until(self.0).await;
    }
}

/// What is left at `now` of the seconds that the pod may be active. Without a start time there is no
/// deadline yet.
fn left(
    pod: &Pod,
    started: impl FnOnce() -> Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    let seconds = pod.spec()?.active_deadline_seconds?;
    let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    // If the clock was set back, the pod gets the whole time again, but not more.
    let passed = Duration::try_from(now.duration_since(started()?)).unwrap_or_default();
    Some(allowed.saturating_sub(passed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn a_pod_may_be_active_for_its_seconds_from_its_start_on() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        for (seconds, started, now, expected) in [
            (None, Some(0), 5, None),
            (Some(10), None, 5, None),
            (Some(10), Some(0), 0, Some(10)),
            (Some(10), Some(0), 4, Some(6)),
            (Some(10), Some(0), 10, Some(0)),
            (Some(10), Some(0), 99, Some(0)),
            (Some(10), Some(20), 0, Some(10)),
            (Some(-1), Some(0), 0, Some(0)),
        ] {
            let pod = Pod {
                spec: Some(PodSpec { active_deadline_seconds: seconds, ..PodSpec::default() }),
                ..Pod::default()
            };
            let started_at = || {
                assert!(seconds.is_some(), "a pod without deadline needs no start");
                started.map(at)
            };
            let left = left(&pod, started_at, at(now));
            let case = (seconds, started, now);
            assert_eq!(left.map(|left| left.as_secs()), expected, "{case:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_waited_for_until_its_instant() {
        let never = Deadline(None);
        assert!(!never.is_over());
        let hour = Duration::from_secs(3600);
        let waited = tokio::time::timeout(hour, never.elapsed()).await;
        assert!(waited.is_err());
        let started_at = clock::instant();
        let deadline = Deadline(Some(started_at + hour));
        assert!(!deadline.is_over());
        deadline.elapsed().await;
        assert!(deadline.is_over());
        assert_eq!(clock::since(started_at), hour);
    }
}
