//! Tasks that wait for a change of a pod.

use crate::model::PodUid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Tasks that wait for one kind of change, by pod.
#[derive(Debug, Default)]
pub(super) struct PodWaiters(Mutex<HashMap<PodUid, Arc<Notify>>>);

impl PodWaiters {
    /// Waits until `check` returns a value; it is called again after each [`Self::wake`] of the pod. The caller may
    /// drop the future.
    pub(super) async fn until<T>(&self, uid: &PodUid, check: impl Fn() -> Option<T>) -> T {
        loop {
            if let Some(value) = check() {
                return value;
            }
            let woken = {
                let mut waiters = self.0.lock();
                let notify = waiters.entry(uid.clone()).or_default().clone();
                // Under the lock, so that the next wake reaches this waiter even before it is polled.
                notify.notified_owned()
            };
            // The pod may have changed before this waiter was registered.
            if let Some(value) = check() {
                self.wake([uid]);
                return value;
            }
            woken.await;
        }
    }

    /// Wakes those who wait for these pods.
    pub(super) fn wake<'a>(&self, uids: impl IntoIterator<Item = &'a PodUid>) {
        let mut waiters = self.0.lock();
        for uid in uids {
            if let Some(notify) = waiters.remove(uid) {
                notify.notify_waiters();
            }
        }
    }

    /// The number of pods that something waits for.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
