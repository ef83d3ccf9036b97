//! Pods that wait for admission, and for how long.

use crate::base::clock::Instant;
use crate::model::PodUid;
use std::collections::HashMap;
use std::time::Duration;

/// A pod that waits for longer is rejected, or admitted without what it waits for.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which admission is retried if nothing changes before.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(in crate::pods) struct PendingAdmissions {
    pods: HashMap<PodUid, PendingAdmission>,
    /// Number of waits so far.
    count: u64,
}

#[derive(Debug)]
struct PendingAdmission {
    /// Its place in the order of waits.
    number: u64,
    since: Instant,
    /// What it waits for, for users.
    why: String,
    /// The event was emitted.
    event_emitted: bool,
}

/// What to do about a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionWait {
    /// Keep waiting.
    Continue,
    /// Emit the event of this wait, then keep waiting.
    EmitEvent,
    /// End the wait.
    TimedOut,
}

impl PendingAdmissions {
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// What a pod waits for.
    pub(super) fn why(&self, uid: &PodUid) -> Option<&str> {
        self.pods.get(uid).map(|waiting| waiting.why.as_str())
    }

    /// Ends the wait of a pod; false if it did not wait.
    pub(super) fn remove(&mut self, uid: &PodUid) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// Starts or continues the wait of a pod that cannot be admitted at `now`. Its event is due after `event_delay`.
    pub(super) fn wait(
        &mut self,
        uid: PodUid,
        why: &str,
        now: Instant,
        event_delay: Duration,
    ) -> AdmissionWait {
        let waiting = self.pods.entry(uid).or_insert_with(|| {
            self.count += 1;
            PendingAdmission {
                number: self.count,
                since: now,
                why: String::new(),
                event_emitted: false,
            }
        });
        if waiting.why != why {
            why.clone_into(&mut waiting.why);
        }
        let waited = now.saturating_duration_since(waiting.since);
        if waited >= TIMEOUT {
            AdmissionWait::TimedOut
        } else if waited >= event_delay && !waiting.event_emitted {
            waiting.event_emitted = true;
            AdmissionWait::EmitEvent
        } else {
            AdmissionWait::Continue
        }
    }

    /// The waiting pods, longest wait first.
    pub(super) fn in_order(&self) -> Vec<PodUid> {
        let mut waiting: Vec<_> = self.pods.iter().collect();
        waiting.sort_by_key(|(_, waiting)| waiting.number);
        waiting.into_iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// The pods that wait for longer than this one; all if it does not wait. A pod waits for none that waits for it.
    pub(super) fn before(&self, uid: &PodUid) -> Vec<PodUid> {
        let mut waiting = self.in_order();
        if let Some(place) = waiting.iter().position(|waiting| waiting == uid) {
            waiting.truncate(place);
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn a_wait_is_announced_once_and_ends() {
        let (mut waiting, begin) = (PendingAdmissions::default(), clock::instant());
        let mut step = |uid: &str, seconds| {
            let now = begin + Duration::from_secs(seconds);
            waiting.wait(uid.into(), "a plugin", now, RETRY_INTERVAL)
        };
        let steps = [0, 4, 5, 6, 119, 120].map(|seconds| step("first", seconds));
        let expected = [
            AdmissionWait::Continue,
            AdmissionWait::Continue,
            AdmissionWait::EmitEvent,
            AdmissionWait::Continue,
            AdmissionWait::Continue,
        ];
        assert_eq!(steps[..5], expected);
        assert_eq!(steps[5], AdmissionWait::TimedOut);
        assert_eq!(step("second", 121), AdmissionWait::Continue);
        waiting.wait("second".into(), "another pod", begin, RETRY_INTERVAL);
        let whys = ["first", "second", "third"].map(|uid| waiting.why(&uid.into()));
        assert_eq!(whys, [Some("a plugin"), Some("another pod"), None]);
        assert_eq!(waiting.in_order(), ["first".into(), "second".into()]);
        assert_eq!(waiting.before(&"third".into()), waiting.in_order());
        assert_eq!(waiting.before(&"second".into()), ["first".into()]);
        assert_eq!(waiting.before(&"first".into()), []);
        assert!(waiting.remove(&"first".into()));
        assert!(!waiting.remove(&"first".into()));
        assert!(waiting.contains(&"second".into()) && !waiting.is_empty());
    }
}
