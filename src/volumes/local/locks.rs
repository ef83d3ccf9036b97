//! A lock for each volume. Waiting for a lock does not block a thread.

use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock for each volume, by the name of its PersistentVolume.
#[derive(Default)]
pub(in crate::volumes) struct VolumeLocks(Mutex<HashMap<String, Arc<AsyncMutex<()>>>>);

impl VolumeLocks {
    /// Locks a volume; waits while another attempt has it locked.
    pub(in crate::volumes) async fn lock(&self, volume: &str) -> OwnedMutexGuard<()> {
        self.of(volume).lock_owned().await
    }

    /// `None` if another attempt has it locked.
    pub(super) fn try_lock(&self, volume: &str) -> Option<OwnedMutexGuard<()>> {
        self.of(volume).try_lock_owned().ok()
    }

    fn of(&self, volume: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock();
        // Removes locks that are neither held nor waited for.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(volume.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_volume_is_locked_alone_and_a_lock_that_is_not_held_is_forgotten() {
        let locks = VolumeLocks::default();
        let first = locks.lock("a").await;
        assert!(locks.try_lock("a").is_none());
        assert!(locks.try_lock("b").is_some());
        let waiting = locks.lock("a");
        drop(first);
        let second = waiting.await;
        assert!(locks.try_lock("a").is_none());
        drop(second);
        assert!(locks.try_lock("a").is_some());
        assert_eq!(locks.0.lock().len(), 1);
    }
}
