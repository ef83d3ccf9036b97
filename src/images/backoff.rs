//! The back-off of failed pulls. Pure.

use std::collections::HashMap;
use std::time::Duration;

use crate::base::backoff::Backoff;
use crate::base::clock::Instant;
use crate::model::PodUid;

const INITIAL_DELAY: Duration = Duration::from_secs(10);
const MAX_DELAY: Duration = Duration::from_secs(300);
/// The back-off of a pull is reset after this time without an attempt.
const RESET_AFTER: Duration = Duration::from_secs(600);

type BackoffKey = (PodUid, String);

/// The back-offs of failed pulls, by pod and image.
#[derive(Debug)]
pub(super) struct PullBackoff {
    entries: Backoff<BackoffKey, Instant>,
    errors: HashMap<BackoffKey, String>,
}

impl PullBackoff {
    pub(super) fn new() -> PullBackoff {
        PullBackoff {
            entries: Backoff::new(INITIAL_DELAY, MAX_DELAY, RESET_AFTER),
            errors: HashMap::new(),
        }
    }

    /// When a pull in its back-off may be retried, and its last error.
    pub(super) fn in_back_off(
        &self,
        pod: &PodUid,
        image: &str,
        now: Instant,
    ) -> Option<(Instant, &str)> {
        let key = (pod.clone(), image.to_owned());
        let last_update = self.entries.entry(&key)?.last_update;
        let left = self.entries.remaining(&key, last_update, now)?;
        // The error is present while the delay runs: both maps drop a key only after `RESET_AFTER` without an
        // attempt.
        Some((now + left, self.errors.get(&key).map_or("", String::as_str)))
    }

    /// Records a failed pull; returns when it may be retried.
    pub(super) fn failed(
        &mut self,
        pod: &PodUid,
        image: &str,
        error: String,
        now: Instant,
    ) -> Instant {
        self.forget_old(now);
        let key = (pod.clone(), image.to_owned());
        self.errors.insert(key.clone(), error);
        now + self.entries.advance(key, now, now)
    }

    /// Records a successful pull, which resets the back-off.
    pub(super) fn succeeded(&mut self, pod: &PodUid, image: &str) {
        let key = (pod.clone(), image.to_owned());
        self.entries.forget(&key);
        self.errors.remove(&key);
    }

    /// Number of pulls with a back-off.
    pub(super) fn len(&self) -> usize {
        self.entries.count()
    }

    pub(super) fn forget_pod(&mut self, pod: &PodUid) {
        self.entries.retain(|(uid, _), _| uid != pod);
        self.errors.retain(|(uid, _), _| uid != pod);
    }

    fn forget_old(&mut self, now: Instant) {
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.last_update) <= RESET_AFTER);
        let entries = &self.entries;
        self.errors.retain(|key, _| entries.entry(key).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn waits_double_from_ten_seconds_to_five_minutes_and_name_the_exact_instant() {
        let (pod, mut now) = (PodUid::from("p"), clock::instant());
        let mut backoff = PullBackoff::new();
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            let at = backoff.failed(&pod, "x", format!("error {seconds}"), now);
            assert_eq!(at, now + S(seconds));
            let held =
                backoff.in_back_off(&pod, "x", at - S(1)).map(|(at, text)| (at, text.to_owned()));
            assert_eq!(held, Some((at, format!("error {seconds}"))));
            assert_eq!(backoff.in_back_off(&pod, "x", at), None);
            now = at;
        }
        assert_eq!(backoff.failed(&pod, "x", String::new(), now + S(601)), now + S(611));
    }

    #[test]
    fn each_pod_and_image_waits_for_itself() {
        let (one, two, now) = (PodUid::from("1"), PodUid::from("2"), clock::instant());
        let mut backoff = PullBackoff::new();
        backoff.failed(&one, "x", "e".into(), now);
        assert!(backoff.in_back_off(&one, "x", now).is_some());
        assert!(backoff.in_back_off(&one, "y", now).is_none());
        assert!(backoff.in_back_off(&two, "x", now).is_none());
    }

    #[test]
    fn success_and_the_end_of_a_pod_are_forgotten_and_so_is_what_is_old() {
        let (one, two, now) = (PodUid::from("1"), PodUid::from("2"), clock::instant());
        let mut backoff = PullBackoff::new();
        backoff.failed(&one, "x", "e".into(), now);
        backoff.failed(&two, "x", "e".into(), now);
        backoff.succeeded(&one, "x");
        assert!(backoff.in_back_off(&one, "x", now).is_none());
        assert_eq!(backoff.failed(&one, "x", "e".into(), now), now + S(10));
        backoff.forget_pod(&two);
        assert!(backoff.in_back_off(&two, "x", now).is_none());
        backoff.failed(&two, "y", "e".into(), now + S(700));
        assert_eq!(backoff.errors.len(), 1);
    }
}
