//! Exponential back-off per key, with the clock passed in (upstream's `flowcontrol.Backoff`).

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffEntry<T> {
    /// The current delay.
    pub delay: Duration,
    /// When the delay was last advanced.
    pub last_update: T,
}

/// A clock for back-offs: monotonic instants, or wall-clock timestamps if the start of the delay is a time reported
/// by the runtime.
pub trait BackoffTime: Copy {
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    fn since(self, earlier: Self) -> Duration;
}

impl BackoffTime for super::clock::Instant {
    fn since(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl BackoffTime for jiff::Timestamp {
    fn since(self, earlier: Self) -> Duration {
        Duration::try_from(self.duration_since(earlier)).unwrap_or_default()
    }
}

/// Delays per key that double from `base` to `cap`. The back-off of a key is reset if it was not advanced for
/// longer than `reset_after`.
#[derive(Clone, Debug)]
pub struct Backoff<K, T> {
    base: Duration,
    cap: Duration,
    reset_after: Duration,
    entries: HashMap<K, BackoffEntry<T>>,
}

impl<K: Eq + Hash, T: BackoffTime> Backoff<K, T> {
    /// An empty back-off.
    pub fn new(base: Duration, cap: Duration, reset_after: Duration) -> Self {
        Self { base: base.min(cap), cap, reset_after, entries: HashMap::new() }
    }

    /// The current delay of a key; zero without an entry.
    pub fn delay(&self, key: &K) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |entry| entry.delay)
    }

    /// The entry of a key.
    pub fn entry(&self, key: &K) -> Option<BackoffEntry<T>> {
        self.entries.get(key).copied()
    }

    /// The time left at `now` of a delay that started at `event`; `None` if there is none. An event more than
    /// `reset_after` later than the last update is not delayed. Neither is one that is further in the future than the
    /// whole delay: the clock was set back then, and waiting for it would take too long.
    pub fn remaining(&self, key: &K, event: T, now: T) -> Option<Duration> {
        let entry = self.entries.get(key)?;
        if event.since(entry.last_update) > self.reset_after {
            return None;
        }
        if event.since(now) > entry.delay {
            return None;
        }
        let passed = now.since(event);
        (passed < entry.delay).then(|| entry.delay - passed)
    }

    /// Advances the delay: `base` the first time or after a reset, then doubled up to `cap`.
    pub fn advance(&mut self, key: K, event: T, now: T) -> Duration {
        self.advance_within(key, event, now, self.cap)
    }

    /// As [`Self::advance`], with a cap for this key only.
    pub fn advance_within(&mut self, key: K, event: T, now: T, cap: Duration) -> Duration {
        let base = self.base.min(cap);
        let delay = match self.entries.get(&key) {
            Some(entry) if event.since(entry.last_update) <= self.reset_after => {
                entry.delay.saturating_mul(2).clamp(base, cap)
            }
            _ => base,
        };
        let last_update = now;
        self.entries.insert(key, BackoffEntry { delay, last_update });
        delay
    }

    /// Restores a persisted entry, with a cap for this key only.
    pub fn restore_within(&mut self, key: K, entry: BackoffEntry<T>, cap: Duration) {
        let delay = entry.delay.min(cap);
        self.entries.insert(key, BackoffEntry { delay, ..entry });
    }

    /// Number of keys with an entry.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Forgets one key.
    pub fn forget(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Removes the keys for which the predicate is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &BackoffEntry<T>) -> bool) {
        self.entries.retain(|key, entry| keep(key, entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn delays_double_from_base_to_cap() {
        let t0 = clock::instant();
        let mut b = Backoff::new(S(10), S(300), S(600));
        let delays: Vec<_> = (0..7).map(|_| b.advance("k", t0, t0).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_cap_of_the_keys_own_takes_the_place_of_the_common_one() {
        let t0 = clock::instant();
        let mut b = Backoff::new(S(10), S(60), S(600));
        let mut step = |cap| b.advance_within("k", t0, t0, S(cap)).as_secs();
        assert_eq!([step(3), step(3), step(25)], [3, 3, 10]);
        assert_eq!([step(100), step(100), step(100), step(100)], [20, 40, 80, 100]);
        b.restore_within("k", BackoffEntry { delay: S(90), last_update: t0 }, S(80));
        assert_eq!(b.delay(&"k"), S(80));
    }

    #[test]
    fn a_key_without_a_step_is_never_held_back() {
        let t0 = clock::instant();
        let b = Backoff::<&str, _>::new(S(10), S(300), S(600));
        assert_eq!(b.remaining(&"k", t0, t0), None);
    }

    #[test]
    fn the_delay_counts_from_the_event() {
        let t0 = clock::instant();
        let mut b = Backoff::new(S(10), S(300), S(600));
        b.advance("k", t0, t0);
        let exit = t0 + S(5);
        assert_eq!(b.remaining(&"k", exit, exit + S(4)), Some(S(6)));
        assert_eq!(b.remaining(&"k", exit, exit + S(10)), None);
    }

    #[test]
    fn a_clock_set_back_holds_nothing_up_for_longer_than_twice_the_delay() {
        let t0 = jiff::Timestamp::from_second(1_000_000).unwrap();
        let mut b = Backoff::new(S(10), S(300), S(600));
        b.advance("k", t0, t0);
        let exit = t0 + S(1);
        for (back, left) in
            [(0, Some(S(10))), (1, Some(S(10))), (10, Some(S(10))), (11, None), (86_400, None)]
        {
            assert_eq!(b.remaining(&"k", exit, exit - S(back)), left, "{back}");
        }
        // It goes on by the new clock.
        let (exit, now) = (t0 - S(80_000), t0 - S(80_000));
        assert_eq!(b.advance("k", exit, now), S(20));
        assert_eq!(b.remaining(&"k", exit, now), Some(S(20)));
    }

    #[test]
    fn a_quiet_key_starts_afresh() {
        let t0 = clock::instant();
        let mut b = Backoff::new(S(10), S(300), S(600));
        b.advance("k", t0, t0);
        b.advance("k", t0, t0);
        let late = t0 + S(601);
        assert_eq!(b.remaining(&"k", late, late), None);
        assert_eq!(b.advance("k", late, late), S(10));
    }
}
