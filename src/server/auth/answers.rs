//! Answers that are kept for a while, and questions that are asked once at a time.

use futures::future::{BoxFuture, FutureExt as _, Shared, WeakShared};
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    future::Future,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Digest of a question: a token itself is never kept.
pub(super) type Key = [u8; 32];

/// What answers one question, for all who ask it at the same time.
type Asking<V, E> = BoxFuture<'static, Result<V, Arc<E>>>;

/// Answers by question; clones share them.
pub(super) struct Answers<V: Clone, E> {
    inner: Arc<Mutex<Inner<V, E>>>,
}

struct Inner<V: Clone, E> {
    kept: Kept<V>,
    /// Questions that somebody waits for. One whose askers have all gone is asked anew.
    asked: HashMap<Key, WeakShared<Asking<V, E>>>,
}

impl<V: Clone, E> Clone for Answers<V, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<V: Clone, E> fmt::Debug for Answers<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answers")
    }
}

impl<V, E> Answers<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// None yet; at most `most` are kept.
    pub(super) fn new(most: usize) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                kept: Kept::new(most),
                asked: HashMap::new(),
            })),
        }
    }

    /// The answer that is kept.
    pub(super) fn kept(&self, key: &Key) -> Option<V> {
        self.inner.lock().kept.get(key, Instant::now()).cloned()
    }

    /// The answer that is kept, or else a new one, which is kept for as long as `ttl` says. A question that
    /// others are asking already is not asked again. Safe to cancel.
    ///
    /// # Errors
    /// What `ask` returns; that is never kept.
    pub(super) async fn get<F>(
        &self,
        key: Key,
        ask: impl FnOnce() -> F,
        ttl: impl FnOnce(&V) -> Duration + Send + 'static,
    ) -> Result<V, Arc<E>>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
    {
        let asking = {
            let mut inner = self.inner.lock();
            if let Some(kept) = inner.kept.get(&key, Instant::now()) {
                return Ok(kept.clone());
            }
            match inner.asked.get(&key).and_then(WeakShared::upgrade) {
                Some(asking) => asking,
                None => {
                    let asking = self.asking(key, ask(), ttl);
                    inner.asked.retain(|_, asked| asked.upgrade().is_some());
                    if let Some(weak) = asking.downgrade() {
                        inner.asked.insert(key, weak);
                    }
                    asking
                }
            }
        };
        asking.await
    }

    fn asking<F>(
        &self,
        key: Key,
        ask: F,
        ttl: impl FnOnce(&V) -> Duration + Send + 'static,
    ) -> Shared<Asking<V, E>>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
    {
        let answers = self.clone();
        let asking = async move {
            let answer = ask.await.map_err(Arc::new);
            let mut inner = answers.inner.lock();
            inner.asked.remove(&key);
            if let Ok(value) = &answer {
                let now = Instant::now();
                inner.kept.insert(key, value.clone(), now + ttl(value), now);
            }
            answer
        };
        asking.boxed().shared()
    }
}

/// A bounded map whose entries end at instants of their own.
pub(super) struct Kept<V> {
    most: usize,
    entries: HashMap<Key, (V, Instant)>,
    /// The same by their end; of equal ends any.
    ends: BTreeSet<(Instant, Key)>,
}

impl<V> Kept<V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            entries: HashMap::new(),
            ends: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<&V> {
        let (value, end) = self.entries.get(key)?;
        (now < *end).then_some(value)
    }

    /// Whatever has ended goes; if there is no room then, so does what would end first.
    pub(super) fn insert(&mut self, key: Key, value: V, end: Instant, now: Instant) {
        if end <= now || self.most == 0 {
            return;
        }
        if let Some((_, old)) = self.entries.remove(&key) {
            self.ends.remove(&(old, key));
        }
        while let Some((first, oldest)) = self.ends.first().copied() {
            if first > now && self.entries.len() < self.most {
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::oneshot;

    fn key(first: u8) -> Key {
        let mut key = [0; 32];
        key[0] = first;
        key
    }

    #[test]
    fn what_is_kept_ends_at_its_instant() {
        let mut kept = Kept::new(10);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        kept.insert(key(1), "a", at(5), begin);
        assert_eq!(kept.get(&key(1), at(4)), Some(&"a"));
        assert_eq!(kept.get(&key(1), at(5)), None);
        kept.insert(key(1), "b", at(9), at(1));
        assert_eq!(kept.get(&key(1), at(8)), Some(&"b"));
        kept.insert(key(2), "never", at(1), at(1));
        assert_eq!(kept.get(&key(2), at(1)), None);
    }

    #[test]
    fn what_ends_first_makes_room() {
        let mut kept = Kept::new(3);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        for (name, end) in [(1, 30), (2, 10), (3, 20)] {
            kept.insert(key(name), name, at(end), begin);
        }
        kept.insert(key(4), 4, at(40), begin);
        let there = |kept: &Kept<u8>, now| -> Vec<u8> {
            (1..=6)
                .filter(|name| kept.get(&key(*name), now).is_some())
                .collect()
        };
        assert_eq!(there(&kept, begin), [1, 3, 4]);
        // What has ended goes before anything that has not.
        kept.insert(key(5), 5, at(50), at(35));
        assert_eq!(there(&kept, at(35)), [4, 5]);
        assert_eq!((kept.entries.len(), kept.ends.len()), (2, 2));
        for name in 0..100 {
            kept.insert(key(name), name, at(60), begin);
            assert!(kept.entries.len() <= 3 && kept.ends.len() == kept.entries.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_asked_for_once_and_again_when_it_has_ended() {
        let answers: Answers<u8, ()> = Answers::new(10);
        let asked = Arc::new(AtomicUsize::new(0));
        let get = || {
            let asked = asked.clone();
            let ask = move || async move {
                asked.fetch_add(1, Ordering::SeqCst);
                Ok(7)
            };
            answers.get(key(1), ask, |_| Duration::from_secs(120))
        };
        assert_eq!(get().await, Ok(7));
        tokio::time::advance(Duration::from_secs(119)).await;
        assert_eq!(get().await, Ok(7));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(get().await, Ok(7));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_hears_the_same_answer() {
        let answers: Answers<u8, &str> = Answers::new(10);
        let asked = Arc::new(AtomicUsize::new(0));
        let (tell, told) = oneshot::channel::<Result<u8, &str>>();
        let told = told.shared();
        let get = || {
            let (asked, told) = (asked.clone(), told.clone());
            let ask = move || {
                asked.fetch_add(1, Ordering::SeqCst);
                async move { told.await.unwrap() }
            };
            let answers = answers.clone();
            async move { answers.get(key(1), ask, |_| Duration::from_secs(1)).await }
        };
        let all = futures::future::join_all((0..20).map(|_| get()));
        // All of them ask before there is an answer.
        let tell = async { tell.send(Err("no")).unwrap() };
        let (heard, ()) = futures::future::join(all, tell).await;
        assert!(
            heard
                .into_iter()
                .all(|answer| answer == Err(Arc::new("no")))
        );
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // An error is not kept.
        let again = answers.get(key(1), || async { Ok(1) }, |_| Duration::from_secs(1));
        assert_eq!(again.await, Ok(1));
    }

    #[tokio::test]
    async fn an_asker_who_leaves_takes_nobody_along() {
        let answers: Answers<u8, ()> = Answers::new(10);
        let (tell, told) = oneshot::channel::<u8>();
        let ask = || async { Ok(told.await.unwrap()) };
        let mut first = Box::pin(answers.get(key(1), ask, |_| Duration::from_secs(1)));
        assert!((&mut first).now_or_never().is_none());
        let never = || async { std::future::pending().await };
        let mut second = Box::pin(answers.get(key(1), never, |_| Duration::from_secs(1)));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        tell.send(3).unwrap();
        assert_eq!(second.await, Ok(3));
        // When all have left, the next one asks anew.
        let stuck = || async { std::future::pending().await };
        let mut gone = Box::pin(answers.get(key(2), stuck, |_| Duration::from_secs(1)));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        let answer = answers.get(key(2), || async { Ok(4) }, |_| Duration::from_secs(1));
        assert_eq!(answer.await, Ok(4));
    }
}
