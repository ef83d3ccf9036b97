//! Single-flight: work that several callers request concurrently is done once.

use super::otel::in_current_context;
use futures::future::{BoxFuture, FutureExt as _, Shared, WeakShared};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Work in flight; yields its result to all callers that joined it.
pub type Flight<V> = Shared<BoxFuture<'static, V>>;

/// The work in flight by key. Results are not cached, and work is dropped if all of its callers are.
pub struct SingleFlight<K, V: Clone> {
    latest: Mutex<HashMap<K, Latest<V>>>,
}

/// The latest flight of a key.
struct Latest<V: Clone> {
    flight: WeakShared<BoxFuture<'static, V>>,
    /// Whether its work has started, or waits for the flight before it.
    started: Arc<AtomicBool>,
}

impl<V: Clone> Latest<V> {
    /// The flight, unless it has finished: a finished result may be outdated.
    fn running(&self) -> Option<Flight<V>> {
        let flight = self.flight.upgrade();
        flight.filter(|flight| flight.peek().is_none())
    }
}

impl<K, V: Clone> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self { latest: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone + Send + Sync + 'static> SingleFlight<K, V> {
    /// Joins the work in flight for `key`, or starts it. Its spans belong to the trace of the first caller.
    pub fn join<F>(&self, key: K, begin: impl FnOnce() -> F) -> Flight<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut latest = self.latest.lock();
        let running = latest.get(&key).and_then(Latest::running);
        running.unwrap_or_else(|| {
            let started = Arc::new(AtomicBool::new(true));
            insert(&mut latest, key, started, begin())
        })
    }

    /// Joins or starts work that has not started before this call. Work in flight may already have read its input, so
    /// the returned one starts when that has ended.
    pub fn next<F>(&self, key: K, begin: impl FnOnce() -> F + Send + 'static) -> Flight<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut latest = self.latest.lock();
        let current = latest.get(&key);
        let running = current.and_then(Latest::running);
        if let (Some(running), Some(current)) = (&running, current)
            && !current.started.load(Ordering::SeqCst)
        {
            return running.clone();
        }
        let started = Arc::new(AtomicBool::new(false));
        let sets_started = started.clone();
        let work = async move {
            if let Some(running) = running {
                running.await;
            }
            sets_started.store(true, Ordering::SeqCst);
            begin().await
        };
        insert(&mut latest, key, started, work)
    }
}

fn insert<K: Eq + Hash, V: Clone>(
    latest: &mut HashMap<K, Latest<V>>,
    key: K,
    started: Arc<AtomicBool>,
    work: impl Future<Output = V> + Send + 'static,
) -> Flight<V> {
    let flight = in_current_context(work).boxed().shared();
    latest.retain(|_, latest| latest.running().is_some());
    if let Some(weak) = flight.downgrade() {
        let flight = weak;
        latest.insert(key, Latest { flight, started });
    }
    flight
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    /// Work that returns how often it was begun, once it is allowed to.
    #[derive(Clone, Default)]
    struct Work {
        begun: Arc<AtomicUsize>,
        go: Arc<Notify>,
    }

    impl Work {
        fn begin(&self) -> impl Future<Output = usize> + use<> {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let go = self.go.clone();
            async move {
                go.notified().await;
                number
            }
        }
    }

    #[tokio::test]
    async fn callers_of_one_key_share_one_result_and_the_next_one_begins_again() {
        let (flights, work) = (SingleFlight::default(), Work::default());
        let all = (0..20).map(|_| flights.join("a", || work.begin()));
        let all = futures::future::join_all(all);
        let other = flights.join("b", || async { 7 });
        assert_eq!(other.await, 7);
        work.go.notify_one();
        assert_eq!(all.await, [1; 20]);
        work.go.notify_one();
        assert_eq!(flights.join("a", || work.begin()).await, 2);
    }

    #[tokio::test]
    async fn a_caller_that_leaves_does_not_end_the_work_of_the_others() {
        let (flights, work) = (SingleFlight::default(), Work::default());
        let mut first = flights.join((), || work.begin());
        assert!((&mut first).now_or_never().is_none());
        let second = flights.join((), || work.begin());
        drop(first);
        work.go.notify_one();
        assert_eq!(second.await, 1);
        // Once all of them have left, it is begun again.
        drop(flights.join((), || work.begin()));
        work.go.notify_one();
        assert_eq!(flights.join((), || work.begin()).await, 3);
    }

    #[tokio::test]
    async fn next_shares_the_work_after_the_one_in_flight() {
        let (flights, work) = (SingleFlight::default(), Work::default());
        let next = || {
            let work = work.clone();
            flights.next((), move || work.begin())
        };
        let mut first = next();
        assert!((&mut first).now_or_never().is_none());
        let others = (0..20).map(|_| next()).collect::<Vec<_>>();
        work.go.notify_one();
        assert_eq!(first.await, 1);
        work.go.notify_one();
        assert_eq!(futures::future::join_all(others).await, [2; 20]);
        work.go.notify_one();
        assert_eq!(next().await, 3);
    }
}
