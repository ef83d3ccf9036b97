//! Equal work that several ask for at the same time is done once.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use parking_lot::Mutex;

use crate::base::otel::carried;

/// Work under way by key. Nothing is kept once it is done. The work is dropped when the last of
/// those who wait for it is.
pub(super) struct Flights<K, V: Clone> {
    under_way: Mutex<HashMap<K, WeakShared<BoxFuture<'static, V>>>>,
}

impl<K: Eq + Hash, V: Clone + Send + Sync + 'static> Flights<K, V> {
    pub(super) fn new() -> Flights<K, V> {
        Flights {
            under_way: Mutex::new(HashMap::new()),
        }
    }

    /// Joins the work under way for `key`, or begins it.
    pub(super) async fn run<F>(&self, key: K, begin: impl FnOnce() -> F) -> V
    where
        F: Future<Output = V> + Send + 'static,
    {
        self.join(key, begin).await
    }

    fn join<F>(&self, key: K, begin: impl FnOnce() -> F) -> Shared<BoxFuture<'static, V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut under_way = self.under_way.lock();
        let running = under_way.get(&key).and_then(WeakShared::upgrade);
        // Work that is done is not joined: it says nothing about now.
        if let Some(work) = running.filter(|work| work.peek().is_none()) {
            return work;
        }
        // It belongs to the first caller.
        let work = carried(begin()).boxed().shared();
        under_way.retain(|_, work| work.upgrade().is_some_and(|work| work.peek().is_none()));
        if let Some(weak) = work.downgrade() {
            under_way.insert(key, weak);
        }
        work
    }
}
