//! A queue of keys with a bounded number of requests in flight, coalescing, and back-off per key.

use super::backoff::Backoff;
use super::clock::Instant;
use super::{DirtySet, wait_until};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// Initial delay after a failure.
const MIN_DELAY: Duration = Duration::from_millis(200);
/// The back-off of a key is reset after this time without a failure.
const RESET_AFTER: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    urgent: bool,
}

/// Decides which key is next. At most one request per key is in flight; a key added meanwhile is handled again
/// afterwards.
#[derive(Debug)]
pub struct WorkQueue<K> {
    dirty: Arc<DirtySet<K>>,
    due: HashMap<K, Due>,
    in_flight: HashSet<K>,
    back_off: Backoff<K, Instant>,
    max_in_flight: usize,
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// An empty queue, filled from `dirty`.
    pub fn new(dirty: Arc<DirtySet<K>>, max_in_flight: usize, max_delay: Duration) -> Self {
        Self {
            dirty,
            due: HashMap::new(),
            in_flight: HashSet::new(),
            back_off: Backoff::new(MIN_DELAY, max_delay, RESET_AFTER),
            max_in_flight,
        }
    }

    /// Waits until keys are marked, which are returned, or until a key is due. Safe to cancel.
    pub async fn woken(&self) -> HashSet<K> {
        let waiting = self.due.iter().filter(|(key, _)| !self.in_flight.contains(*key));
        let next = waiting.map(|(_, due)| due.at).min();
        let is_full = self.in_flight.len() >= self.max_in_flight;
        tokio::select! {
            keys = self.dirty.take() => keys,
            () = wait_until(next.filter(|_| !is_full)) => HashSet::new(),
        }
    }

    /// Adds a key; urgent ones are handled first. A key in its back-off keeps its delay.
    pub fn add(&mut self, key: K, urgent: bool, now: Instant) {
        let backs_off = self.back_off.entry(&key).is_some();
        let due = self.due.entry(key).or_insert(Due { at: now, urgent });
        due.urgent |= urgent;
        if !backs_off {
            due.at = due.at.min(now);
        }
    }

    /// Schedules a key, unless it is handled earlier.
    pub fn add_at(&mut self, key: K, at: Instant) {
        let due = self.due.entry(key).or_insert(Due { at, urgent: false });
        due.at = due.at.min(at);
    }

    /// The next due key. It is in flight until [`WorkQueue::done`] or [`WorkQueue::failed`].
    pub fn next(&mut self, now: Instant) -> Option<K> {
        if self.in_flight.len() >= self.max_in_flight {
            return None;
        }
        let due = self.due.iter();
        let due = due.filter(|(key, due)| due.at <= now && !self.in_flight.contains(*key));
        let first = due.min_by_key(|(_, due)| (!due.urgent, due.at));
        let key = first?.0.clone();
        self.due.remove(&key);
        self.in_flight.insert(key.clone());
        Some(key)
    }

    /// The request of a key succeeded, or was not needed.
    pub fn done(&mut self, key: &K) {
        self.in_flight.remove(key);
        self.back_off.forget(key);
    }

    /// The request of a key failed and will be retried. Returns whether it is the first failure in a row.
    pub fn failed(&mut self, key: &K, now: Instant) -> bool {
        self.in_flight.remove(key);
        let is_first = self.back_off.entry(key).is_none();
        let delay = self.back_off.advance(key.clone(), now, now);
        // Jitter, so that keys that failed together are not retried together.
        let at = now + delay.mul_f64(0.75 + fastrand::f64() / 2.0);
        let urgent = self.due.get(key).is_some_and(|due| due.urgent);
        self.due.insert(key.clone(), Due { at, urgent });
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn queue(max: usize) -> WorkQueue<&'static str> {
        WorkQueue::new(Arc::default(), max, S(10))
    }

    #[test]
    fn urgent_keys_come_first_and_each_once() {
        let (mut queue, now) = (queue(9), clock::instant());
        queue.add("a", false, now);
        queue.add("b", false, now + S(1));
        queue.add("b", true, now + S(1));
        let now = now + S(1);
        assert_eq!(queue.next(now), Some("b"));
        assert_eq!(queue.next(now), Some("a"));
        assert_eq!(queue.next(now), None);
    }

    #[test]
    fn a_key_in_flight_comes_again_only_when_its_request_has_ended() {
        let (mut queue, now) = (queue(9), clock::instant());
        queue.add("a", false, now);
        assert_eq!(queue.next(now), Some("a"));
        queue.add("a", false, now);
        assert_eq!(queue.next(now), None);
        queue.done(&"a");
        assert_eq!(queue.next(now), Some("a"));
        queue.done(&"a");
        assert_eq!(queue.next(now), None);
    }

    #[test]
    fn no_more_are_in_flight_than_may_be() {
        let (mut queue, now) = (queue(1), clock::instant());
        queue.add("a", false, now);
        queue.add("b", false, now);
        let first = queue.next(now).unwrap();
        assert_eq!(queue.next(now), None);
        queue.done(&first);
        assert!(queue.next(now).is_some());
    }

    #[test]
    fn a_failure_delays_its_key_alone_and_is_the_first_only_once() {
        let (mut queue, mut now) = (queue(9), clock::instant());
        queue.add("a", false, now);
        queue.next(now);
        assert!(queue.failed(&"a", now));
        queue.add("a", true, now);
        queue.add("b", false, now);
        assert_eq!(queue.next(now), Some("b"));
        assert_eq!(queue.next(now), None, "a new change does not end the delay");
        for _ in 0..9 {
            now += S(13);
            assert_eq!(queue.next(now), Some("a"));
            assert!(!queue.failed(&"a", now));
        }
        now += S(13);
        assert_eq!(queue.next(now), Some("a"), "never longer than the cap");
        queue.done(&"a");
        queue.add("a", false, now);
        assert_eq!(queue.next(now), Some("a"));
        assert!(queue.failed(&"a", now), "a success ends the row");
    }

    #[tokio::test(start_paused = true)]
    async fn marks_and_due_keys_wake() {
        let mut queue = queue(9);
        queue.dirty.mark("m");
        assert_eq!(queue.woken().await, HashSet::from(["m"]));
        let started_at = clock::instant();
        queue.add_at("l", started_at + S(3));
        assert!(queue.woken().await.is_empty());
        assert_eq!(queue.next(clock::instant()), Some("l"));
        assert_eq!(clock::since(started_at).as_secs(), 3);
    }
}
