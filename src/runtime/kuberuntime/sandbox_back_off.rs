//! The back-off of replacements of a sandbox that keeps failing (upstream has none). Only a replacement that was
//! created advances it: a failed stop or creation has the retry delay of a failed sync.

use super::actions::SandboxChange;
use crate::base::backoff::Backoff;
use crate::base::clock::Instant;
use crate::model::PodUid;
use parking_lot::Mutex;
use std::time::Duration;

/// First delay; the first replacement is immediate.
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(60);
/// After a sandbox has lasted this long, the next replacement is immediate again.
const RESET_AFTER: Duration = Duration::from_secs(600);

/// The back-off of all pods of the node.
#[derive(Debug)]
pub(super) struct SandboxBackOff {
    entries: Mutex<Backoff<PodUid, Instant>>,
}

impl Default for SandboxBackOff {
    fn default() -> Self {
        Self { entries: Mutex::new(Backoff::new(BASE, CAP, RESET_AFTER)) }
    }
}

impl SandboxBackOff {
    /// The rest, at `now`, of the delay after the last replacement.
    pub(super) fn remaining(
        &self,
        uid: &PodUid,
        change: SandboxChange,
        now: Instant,
    ) -> Option<Duration> {
        if !is_replacement(change) {
            return None;
        }
        let entries = self.entries.lock();
        let last_update = entries.entry(uid)?.last_update;
        entries.remaining(uid, last_update, now)
    }

    /// Advances the back-off after a replacement was created.
    pub(super) fn record_replacement(&self, uid: PodUid, change: SandboxChange, now: Instant) {
        if is_replacement(change) {
            self.entries.lock().advance(uid, now, now);
        }
    }

    /// Number of pods with a back-off.
    pub(super) fn len(&self) -> usize {
        self.entries.lock().count()
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.entries.lock().forget(uid);
    }
}

/// Whether the change is a replacement; the first sandbox of a pod is none.
fn is_replacement(change: SandboxChange) -> bool {
    change != SandboxChange::NoSandbox
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use SandboxChange::{LostIp, NoSandbox, NotReady};

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_first_replacement_is_immediate_and_each_further_one_waits_longer() {
        let (back_off, uid, start) =
            (SandboxBackOff::default(), PodUid::from("u"), clock::instant());
        assert_eq!(back_off.remaining(&uid, NotReady, start), None);
        let mut now = start;
        let mut gaps = Vec::new();
        for _ in 0..8 {
            back_off.record_replacement(uid.clone(), NotReady, now);
            let left = back_off.remaining(&uid, LostIp, now).unwrap();
            now += left;
            assert_eq!(back_off.remaining(&uid, LostIp, now), None);
            gaps.push(left.as_secs());
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_try_that_ends_before_the_replacement_takes_no_step() {
        let (back_off, uid, now) = (SandboxBackOff::default(), PodUid::from("u"), clock::instant());
        back_off.record_replacement(uid.clone(), NotReady, now);
        let later = now + S(2);
        for _ in 0..10 {
            assert_eq!(back_off.remaining(&uid, NotReady, later), None);
        }
        back_off.record_replacement(uid.clone(), NotReady, later);
        assert_eq!(back_off.remaining(&uid, NotReady, later), Some(S(2)));
    }

    #[test]
    fn a_first_sandbox_neither_waits_nor_counts() {
        let (back_off, uid, now) = (SandboxBackOff::default(), PodUid::from("u"), clock::instant());
        back_off.record_replacement(uid.clone(), NoSandbox, now);
        assert_eq!(back_off.remaining(&uid, NotReady, now), None);
        back_off.record_replacement(uid.clone(), NotReady, now);
        assert_eq!(back_off.remaining(&uid, NotReady, now), Some(S(1)));
        assert_eq!(back_off.remaining(&uid, NoSandbox, now), None);
    }

    #[test]
    fn a_sandbox_that_lasted_long_starts_afresh() {
        let (back_off, uid, now) = (SandboxBackOff::default(), PodUid::from("u"), clock::instant());
        for _ in 0..5 {
            back_off.record_replacement(uid.clone(), NotReady, now);
        }
        let late = now + S(601);
        back_off.record_replacement(uid.clone(), NotReady, late);
        assert_eq!(back_off.remaining(&uid, NotReady, late), Some(S(1)));
        back_off.forget(&uid);
        assert_eq!(back_off.remaining(&uid, NotReady, late), None);
    }
}
