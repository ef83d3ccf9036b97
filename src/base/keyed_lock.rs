//! A lock per key, which exists while it is held or waited for. Waiting for one does not block a thread.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock per key.
#[derive(Debug)]
pub struct KeyedLock<K>(Mutex<BTreeMap<K, Arc<AsyncMutex<()>>>>);

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> KeyedLock<K> {
    /// Acquires the lock of a key.
    pub async fn lock(&self, key: &K) -> OwnedMutexGuard<()> {
        self.of(key).lock_owned().await
    }

    /// Acquires the locks of all keys, in sorted order, so that callers do not deadlock.
    pub async fn lock_all(&self, keys: &BTreeSet<K>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            guards.push(self.lock(key).await);
        }
        guards
    }

    /// `None` if the lock is held.
    pub fn try_lock(&self, key: &K) -> Option<OwnedMutexGuard<()>> {
        self.of(key).try_lock_owned().ok()
    }

    fn of(&self, key: &K) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock();
        // Removes locks that are neither held nor waited for.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(key.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_key_is_locked_alone_and_a_lock_that_is_not_held_is_forgotten() {
        let locks = KeyedLock::default();
        let first = locks.lock(&"a").await;
        assert!(locks.try_lock(&"a").is_none());
        assert!(locks.try_lock(&"b").is_some());
        let waiting = locks.lock(&"a");
        drop(first);
        let second = waiting.await;
        assert!(locks.try_lock(&"a").is_none());
        drop(second);
        assert!(locks.try_lock(&"a").is_some());
        assert_eq!(locks.0.lock().len(), 1);
    }

    #[tokio::test]
    async fn a_key_has_one_owner_and_is_gone_after_the_last() {
        let locks = KeyedLock::default();
        let first = locks.lock_all(&BTreeSet::from([1, 2])).await;
        let others = BTreeSet::from([2, 3]);
        assert!(locks.lock_all(&others).now_or_never().is_none());
        let other = locks.lock_all(&BTreeSet::from([3])).await;
        drop((first, other));
        let all = locks.lock_all(&BTreeSet::from([1, 2, 3])).await;
        drop(all);
        drop(locks.lock(&9).await);
        assert_eq!(locks.0.lock().len(), 1, "those of others are gone");
    }
}
