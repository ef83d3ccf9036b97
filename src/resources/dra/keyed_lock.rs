//! A lock per key, which exists while it is held or waited for.

use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::OwnedMutexGuard;

/// A lock per key.
#[derive(Debug)]
pub(super) struct KeyedLock<K>(Mutex<BTreeMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> KeyedLock<K> {
    /// Acquires the locks of all keys, in sorted order, so that callers do not deadlock.
    pub(super) async fn lock(&self, keys: &BTreeSet<K>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            let lock = {
                let mut locks = self.0.lock();
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
                locks.entry(key.clone()).or_default().clone()
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_key_has_one_owner_and_is_gone_after_the_last() {
        let locks = KeyedLock::default();
        let first = locks.lock(&BTreeSet::from([1, 2])).await;
        assert!(locks.lock(&BTreeSet::from([2, 3])).now_or_never().is_none());
        let other = locks.lock(&BTreeSet::from([3])).await;
        drop((first, other));
        let all = locks.lock(&BTreeSet::from([1, 2, 3])).await;
        drop(all);
        drop(locks.lock(&BTreeSet::from([9])).await);
        assert_eq!(locks.0.lock().len(), 1, "those of others are gone");
    }
}
