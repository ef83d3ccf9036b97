//! Cached readings of sources that may be slow or hang: one read at a time, shared by all callers, with a timeout.

use crate::base::clock::{self, Instant};
use crate::base::otel::in_current_context;
use crate::base::panics::PanicScope;
use crate::base::{Flight, SingleFlight, spawn_scoped};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A completed reading: the generation in which it began, the time when it ended, and its value. `None` if it failed.
type TimedReading<T> = Option<(u64, Instant, Arc<T>)>;

/// Freshness and timeout of a cached reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachePolicy {
    /// Maximum age at which a reading is returned without a new one.
    pub(super) max_age: Duration,
    /// How long callers wait for a new reading before they get an older one.
    pub(super) timeout: Duration,
    /// Maximum age of that older reading.
    pub(super) max_age_on_failure: Duration,
}

/// A cached reading, shared by all callers.
pub(super) struct CachedReading<T> {
    policy: CachePolicy,
    in_flight: SingleFlight<(), TimedReading<T>>,
    /// Incremented by [`Self::invalidate`]; readings that began in an earlier generation are not fresh.
    generation: Arc<AtomicU64>,
    state: Mutex<ReadingState<T>>,
}

struct ReadingState<T> {
    last: TimedReading<T>,
    /// The generation in which a caller last joined the flight.
    joined: u64,
    /// Keeps a read in progress after all its callers timed out, so that a source that hangs is not read twice. The
    /// read runs in a task, so its end is noticed without a caller.
    flight: Option<Flight<TimedReading<T>>>,
}

impl<T: Send + Sync + 'static> CachedReading<T> {
    pub(super) fn new(policy: CachePolicy) -> Self {
        let state = ReadingState { last: None, joined: 0, flight: None };
        Self {
            policy,
            in_flight: SingleFlight::default(),
            generation: Arc::default(),
            state: Mutex::new(state),
        }
    }

    /// The last reading, if it is younger than the policy's limit and was not invalidated.
    pub(super) fn fresh(&self) -> Option<Arc<T>> {
        let generation = self.generation.load(Ordering::SeqCst);
        self.last(self.policy.max_age, |began| began == generation)
    }

    /// Invalidates all readings, including one in progress.
    pub(super) fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the last reading if it is fresh; otherwise waits for a new one. On a timeout or failure returns the last
    /// reading, unless it is stale. A read in progress that began before the last [`invalidate`] is not used, but has
    /// to end first, so that a source that hangs is not read twice at the same time.
    ///
    /// [`invalidate`]: Self::invalidate
    pub(super) async fn get<F>(&self, read: impl Fn() -> F) -> Option<Arc<T>>
    where
        F: Future<Output = Option<T>> + Send + 'static,
    {
        if let Some(fresh) = self.fresh() {
            return Some(fresh);
        }
        let read = || -> BoxFuture<'static, Option<T>> { Box::pin(read()) };
        let mut reading = self.read(&read).await;
        if reading.as_ref().is_some_and(|(_, at, _)| clock::since(*at) >= self.policy.max_age) {
            // It ended while no caller waited for it.
            reading = self.read(&read).await;
        }
        match reading {
            Some((_, _, value)) => Some(value),
            None => self.last(self.policy.max_age_on_failure, |_| true),
        }
    }

    /// Waits for the read in progress, or a new one, and keeps its value; `None` on a timeout or failure.
    async fn read(&self, read: impl Fn() -> BoxFuture<'static, Option<T>>) -> TimedReading<T> {
        let flight = self.join(read);
        let ended = tokio::time::timeout(self.policy.timeout, flight).await;
        let (generation, at, value) = ended.ok().flatten()?;
        let mut state = self.state.lock();
        let last = state.last.as_ref();
        if last.is_none_or(|(known, last, _)| (*known, *last) <= (generation, at)) {
            state.last = Some((generation, at, value.clone()));
        }
        Some((generation, at, value))
    }

    fn join(
        &self,
        read: impl FnOnce() -> BoxFuture<'static, Option<T>>,
    ) -> Flight<TimedReading<T>> {
        let mut state = self.state.lock();
        let begin = || {
            let (read, generation) = (read(), self.generation.clone());
            async move {
                let generation = generation.load(Ordering::SeqCst);
                // A task, because callers that timed out do not poll the read, and its value has the time of its end.
                let read = in_current_context(async move { (read.await, clock::instant()) });
                let (value, at) = spawn_scoped(PanicScope::Stats, read).await.ok()?.ok()?;
                Some((generation, at, Arc::new(value?)))
            }
        };
        let generation = self.generation.load(Ordering::SeqCst);
        let flight = if state.joined == generation {
            self.in_flight.join((), begin)
        } else {
            let reading = begin();
            self.in_flight.next((), move || reading)
        };
        state.joined = generation;
        state.flight = Some(flight.clone());
        flight
    }

    /// The last reading, if it is younger than `age` and `accepts` its generation.
    fn last(&self, age: Duration, accepts: impl Fn(u64) -> bool) -> Option<Arc<T>> {
        let state = self.state.lock();
        let (generation, at, last) = state.last.as_ref()?;
        (clock::since(*at) < age && accepts(*generation)).then(|| last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    const POLICY: CachePolicy = CachePolicy {
        max_age: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
        max_age_on_failure: Duration::from_secs(60),
    };

    /// Returns how often it was read, once it is allowed to.
    #[derive(Clone, Default)]
    struct Slow {
        fetched: Arc<AtomicU32>,
        go: Arc<Notify>,
    }

    impl Slow {
        fn fetch(&self) -> BoxFuture<'static, Option<u32>> {
            let number = self.fetched.fetch_add(1, Ordering::SeqCst) + 1;
            let go = self.go.clone();
            Box::pin(async move {
                go.notified().await;
                Some(number)
            })
        }
    }

    async fn at_once(value: Option<u32>) -> Option<u32> {
        value
    }

    #[tokio::test(start_paused = true)]
    async fn simultaneous_callers_share_a_reading_and_it_stays_fresh_for_a_while() {
        let (source, slow) = (CachedReading::new(POLICY), Slow::default());
        let both = async { tokio::join!(source.get(|| slow.fetch()), source.get(|| slow.fetch())) };
        slow.go.notify_one();
        let (first, second) = both.await;
        assert_eq!((first.as_deref(), second.as_deref()), (Some(&1), Some(&1)));
        assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&1));
        tokio::time::advance(POLICY.max_age).await;
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&2));
        tokio::time::advance(POLICY.max_age / 2).await;
        source.invalidate();
        tokio::time::advance(POLICY.max_age / 4).await;
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&3));
        assert_eq!(source.fresh().as_deref(), Some(&3), "once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_began_before_it_was_invalidated_is_not_joined() {
        let (source, slow) = (CachedReading::new(POLICY), Slow::default());
        let mut first = Box::pin(source.get(|| slow.fetch()));
        assert!((&mut first).now_or_never().is_none());
        source.invalidate();
        let mut others = Box::pin(async {
            tokio::join!(source.get(|| slow.fetch()), source.get(|| slow.fetch()))
        });
        assert!((&mut others).now_or_never().is_none());
        slow.go.notify_one();
        assert_eq!(first.await.as_deref(), Some(&1));
        assert_eq!(source.fresh(), None, "it began before");
        assert!((&mut others).now_or_never().is_none(), "it is read again");
        slow.go.notify_one();
        let (second, third) = others.await;
        assert_eq!((second.as_deref(), third.as_deref()), (Some(&2), Some(&2)));
        assert_eq!(source.fresh().as_deref(), Some(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_source_hangs_the_last_reading_is_returned_until_it_is_stale() {
        let (source, slow) = (CachedReading::new(POLICY), Slow::default());
        assert_eq!(source.get(|| at_once(Some(7))).await.as_deref(), Some(&7));
        tokio::time::advance(POLICY.max_age).await;
        for _ in 0..3 {
            assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&7));
        }
        assert_eq!(slow.fetched.load(Ordering::SeqCst), 1, "asked again while it hangs");
        tokio::time::advance(POLICY.max_age_on_failure).await;
        assert_eq!(source.get(|| slow.fetch()).await, None);
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_ended_while_nobody_waited_is_not_fresh_later() {
        let (source, slow) = (CachedReading::new(POLICY), Slow::default());
        assert_eq!(source.get(|| slow.fetch()).await, None, "it takes too long");
        slow.go.notify_one();
        tokio::time::sleep(POLICY.max_age).await;
        let mut later = Box::pin(source.get(|| slow.fetch()));
        assert!((&mut later).now_or_never().is_none(), "it is read again");
        assert_eq!(later.await.as_deref(), Some(&1), "not yet stale");
        tokio::time::advance(POLICY.max_age_on_failure).await;
        assert_eq!(source.get(|| slow.fetch()).await, None);
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_fails_is_repeated_by_the_next_caller() {
        let source = CachedReading::new(POLICY);
        assert_eq!(source.get(|| at_once(None)).await, None);
        assert_eq!(source.get(|| at_once(Some(1))).await.as_deref(), Some(&1));
        tokio::time::advance(POLICY.max_age).await;
        assert_eq!(source.get(|| at_once(None)).await.as_deref(), Some(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_leaves_does_not_block_later_ones() {
        let (source, slow) = (CachedReading::new(POLICY), Slow::default());
        assert!(source.get(|| slow.fetch()).now_or_never().is_none());
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.fetch()).await.as_deref(), Some(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_panics_is_repeated_by_the_next_caller() {
        let source = CachedReading::new(POLICY);
        let panics =
            || -> BoxFuture<'static, Option<u32>> { Box::pin(async { panic!("as scripted") }) };
        assert_eq!(source.get(panics).await, None);
        assert_eq!(source.get(|| at_once(Some(1))).await.as_deref(), Some(&1));
    }
}
