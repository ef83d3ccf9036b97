//! Cached results of TokenReviews and SubjectAccessReviews, and single-flight for reviews.

use crate::base::SingleFlight;
use crate::base::clock::{self, Instant};
use futures::future::{Either, ready};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Digest of the review's input; the token itself is never stored.
pub(super) type ReviewKey = [u8; 32];

/// Results by digest; clones share them.
pub(super) struct ReviewCache<V: Clone, E> {
    results: Arc<Mutex<ExpiringMap<V>>>,
    in_flight: Arc<SingleFlight<ReviewKey, Result<V, Arc<E>>>>,
}

impl<V: Clone, E> Clone for ReviewCache<V, E> {
    fn clone(&self) -> Self {
        Self { results: self.results.clone(), in_flight: self.in_flight.clone() }
    }
}

impl<V, E> ReviewCache<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// A cache of at most `max` results.
    pub(super) fn new(max: usize) -> Self {
        Self { results: Arc::new(Mutex::new(ExpiringMap::new(max))), in_flight: Arc::default() }
    }

    /// The cached result, if there is one.
    pub(super) fn get_cached(&self, key: &ReviewKey) -> Option<V> {
        self.results.lock().get(key, clock::instant()).cloned()
    }

    /// The cached result, else that of the review in flight, else that of a new review, which is cached for the time
    /// that `ttl` returns. Safe to cancel.
    ///
    /// # Errors
    /// Those of the review; they are never cached.
    pub(super) async fn get<F>(
        &self,
        key: ReviewKey,
        review: impl FnOnce() -> F,
        ttl: impl FnOnce(&V) -> Duration + Send + 'static,
    ) -> Result<V, Arc<E>>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
    {
        let begin = || {
            if let Some(value) = self.get_cached(&key) {
                return Either::Left(ready(Ok(value)));
            }
            let (review, results) = (review(), self.results.clone());
            Either::Right(async move {
                let value = review.await.map_err(Arc::new)?;
                let now = clock::instant();
                results.lock().insert(key, value.clone(), now + ttl(&value), now);
                Ok(value)
            })
        };
        self.in_flight.join(key, begin).await
    }
}

/// A bounded map whose entries expire.
pub(super) struct ExpiringMap<V> {
    max: usize,
    entries: HashMap<ReviewKey, (V, Instant)>,
    /// The keys in order of expiry.
    ends: BTreeSet<(Instant, ReviewKey)>,
}

impl<V> ExpiringMap<V> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, entries: HashMap::new(), ends: BTreeSet::new() }
    }

    pub(super) fn get(&self, key: &ReviewKey, now: Instant) -> Option<&V> {
        let (value, end) = self.entries.get(key)?;
        (now < *end).then_some(value)
    }

    /// Removes the expired entries and, if the map is still full, the one that expires next.
    pub(super) fn insert(&mut self, key: ReviewKey, value: V, end: Instant, now: Instant) {
        if end <= now || self.max == 0 {
            return;
        }
        if let Some((_, old)) = self.entries.remove(&key) {
            self.ends.remove(&(old, key));
        }
        while let Some((first, oldest)) = self.ends.first().copied() {
            if first > now && self.entries.len() < self.max {
                break;
            }
            self.ends.remove(&(first, oldest));
            self.entries.remove(&oldest);
        }
        self.ends.insert((end, key));
        self.entries.insert(key, (value, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::FutureExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::oneshot;

    fn key(first: u8) -> ReviewKey {
        let mut key = [0; 32];
        key[0] = first;
        key
    }

    #[test]
    fn an_entry_ends_at_its_instant() {
        let mut results = ExpiringMap::new(10);
        let begin = clock::instant();
        let at = |seconds| begin + Duration::from_secs(seconds);
        results.insert(key(1), "a", at(5), begin);
        assert_eq!(results.get(&key(1), at(4)), Some(&"a"));
        assert_eq!(results.get(&key(1), at(5)), None);
        results.insert(key(1), "b", at(9), at(1));
        assert_eq!(results.get(&key(1), at(8)), Some(&"b"));
        results.insert(key(2), "never", at(1), at(1));
        assert_eq!(results.get(&key(2), at(1)), None);
    }

    #[test]
    fn the_entry_that_ends_first_makes_room() {
        let mut results = ExpiringMap::new(3);
        let begin = clock::instant();
        let at = |seconds| begin + Duration::from_secs(seconds);
        for (name, end) in [(1, 30), (2, 10), (3, 20)] {
            results.insert(key(name), name, at(end), begin);
        }
        results.insert(key(4), 4, at(40), begin);
        let there = |results: &ExpiringMap<u8>, now| -> Vec<u8> {
            (1..=6).filter(|name| results.get(&key(*name), now).is_some()).collect()
        };
        assert_eq!(there(&results, begin), [1, 3, 4]);
        // Expired entries are removed before any other.
        results.insert(key(5), 5, at(50), at(35));
        assert_eq!(there(&results, at(35)), [4, 5]);
        assert_eq!((results.entries.len(), results.ends.len()), (2, 2));
        for name in 0..100 {
            results.insert(key(name), name, at(60), begin);
            assert!(results.entries.len() <= 3 && results.ends.len() == results.entries.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_is_made_once_and_again_when_its_result_has_expired() {
        let cache: ReviewCache<u8, ()> = ReviewCache::new(10);
        let reviews = Arc::new(AtomicUsize::new(0));
        let get = || {
            let reviews = reviews.clone();
            let review = move || async move {
                reviews.fetch_add(1, Ordering::SeqCst);
                Ok(7)
            };
            cache.get(key(1), review, |_| Duration::from_secs(120))
        };
        assert_eq!(get().await, Ok(7));
        tokio::time::advance(Duration::from_secs(119)).await;
        assert_eq!(get().await, Ok(7));
        assert_eq!(reviews.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(get().await, Ok(7));
        assert_eq!(reviews.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn simultaneous_callers_share_one_review() {
        let cache: ReviewCache<u8, &str> = ReviewCache::new(10);
        let reviews = Arc::new(AtomicUsize::new(0));
        let (respond, response) = oneshot::channel::<Result<u8, &str>>();
        let response = response.shared();
        let get = || {
            let (reviews, response) = (reviews.clone(), response.clone());
            let review = move || {
                reviews.fetch_add(1, Ordering::SeqCst);
                async move { response.await.unwrap() }
            };
            let cache = cache.clone();
            async move { cache.get(key(1), review, |_| Duration::from_secs(1)).await }
        };
        let all = futures::future::join_all((0..20).map(|_| get()));
        // All of them join before there is a result.
        let respond = async { respond.send(Err("no")).unwrap() };
        let (results, ()) = futures::future::join(all, respond).await;
        assert!(results.into_iter().all(|answer| answer == Err(Arc::new("no"))));
        assert_eq!(reviews.load(Ordering::SeqCst), 1);
        // An error is not kept.
        let again = cache.get(key(1), || async { Ok(1) }, |_| Duration::from_secs(1));
        assert_eq!(again.await, Ok(1));
    }

    #[tokio::test]
    async fn a_caller_that_leaves_does_not_cancel_the_review_for_the_others() {
        let cache: ReviewCache<u8, ()> = ReviewCache::new(10);
        let (respond, response) = oneshot::channel::<u8>();
        let review = || async { Ok(response.await.unwrap()) };
        let mut first = Box::pin(cache.get(key(1), review, |_| Duration::from_secs(1)));
        assert!((&mut first).now_or_never().is_none());
        let never = || async { std::future::pending().await };
        let mut second = Box::pin(cache.get(key(1), never, |_| Duration::from_secs(1)));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        respond.send(3).unwrap();
        assert_eq!(second.await, Ok(3));
        // When all have left, the next one starts another review.
        let stuck = || async { std::future::pending().await };
        let mut gone = Box::pin(cache.get(key(2), stuck, |_| Duration::from_secs(1)));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        let answer = cache.get(key(2), || async { Ok(4) }, |_| Duration::from_secs(1));
        assert_eq!(answer.await, Ok(4));
    }
}
