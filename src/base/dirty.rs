//! A coalescing set of keys to process.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::hash::Hash;
use std::mem;
use tokio::sync::Notify;

/// Producers mark keys, and one consumer takes all marked keys. Marking a key again has no effect, so the set does
/// not overflow, nothing is dropped and producers never wait.
#[derive(Debug)]
pub struct DirtySet<K> {
    keys: Mutex<HashSet<K>>,
    notify: Notify,
}

impl<K> Default for DirtySet<K> {
    fn default() -> Self {
        Self { keys: Mutex::new(HashSet::new()), notify: Notify::new() }
    }
}

impl<K: Eq + Hash> DirtySet<K> {
    /// Marks one key.
    pub fn mark(&self, key: K) {
        let fresh = self.keys.lock().insert(key);
        if fresh {
            self.notify.notify_one();
        }
    }

    /// Marks many keys with one wake-up.
    pub fn mark_all(&self, keys: impl IntoIterator<Item = K>) {
        let mut set = self.keys.lock();
        let before = set.len();
        set.extend(keys);
        if set.len() > before {
            self.notify.notify_one();
        }
    }

    /// Waits until a key is marked and takes all marked keys. Safe to cancel.
    pub async fn take(&self) -> HashSet<K> {
        loop {
            let keys = mem::take(&mut *self.keys.lock());
            if !keys.is_empty() {
                return keys;
            }
            self.notify.notified().await;
        }
    }

    /// Waits until a key is marked, without taking it.
    pub async fn marked(&self) {
        while self.is_empty() {
            self.notify.notified().await;
        }
    }

    /// Removes one key; false if it was not marked.
    pub fn unmark(&self, key: &K) -> bool {
        self.keys.lock().remove(key)
    }

    /// Whether a key is marked.
    pub fn contains(&self, key: &K) -> bool {
        self.keys.lock().contains(key)
    }

    /// Whether no key is marked.
    pub fn is_empty(&self) -> bool {
        self.keys.lock().is_empty()
    }

    /// Takes the marked keys without waiting.
    pub fn take_now(&self) -> HashSet<K> {
        mem::take(&mut *self.keys.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn marks_made_before_anyone_waits_are_not_lost() {
        let set = DirtySet::default();
        set.mark(1);
        set.mark_all([1, 2]);
        assert_eq!(set.take().await, HashSet::from([1, 2]));
        assert!(set.take_now().is_empty());
    }

    #[tokio::test]
    async fn what_is_marked_stays_until_it_is_taken() {
        let set = DirtySet::default();
        set.mark_all([1, 2]);
        set.marked().await;
        assert!(set.contains(&1) && !set.contains(&3));
        assert!(set.unmark(&1) && !set.unmark(&1));
        set.marked().await;
        assert_eq!(set.take_now(), HashSet::from([2]));
        assert!(set.is_empty());
    }

    #[tokio::test]
    async fn a_waiting_consumer_is_woken_by_a_mark() {
        let set = Arc::new(DirtySet::default());
        let waiting = tokio::spawn({
            let set = set.clone();
            async move { set.take().await }
        });
        tokio::task::yield_now().await;
        set.mark("x");
        assert_eq!(waiting.await.unwrap(), HashSet::from(["x"]));
    }
}
