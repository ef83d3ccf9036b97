//! One answer for all who ask at about the same time, and none of them waits for ever.

use crate::base::panics::{Place, contain};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// What a source gives; nothing, where it failed.
type Answer<T> = Option<Arc<T>>;

/// How a source is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// For so long an answer serves whoever asks.
    pub(super) fresh: Duration,
    /// For so long one waits for an answer before an older one has to do.
    pub(super) patience: Duration,
    /// So old that may be.
    pub(super) stale: Duration,
}

/// Something that can be slow or hang: at most one question is under way.
pub(super) struct Source<T> {
    pace: Pace,
    state: Mutex<State<T>>,
}

struct State<T> {
    last: Option<(Instant, Arc<T>)>,
    flight: Option<(u64, Shared<BoxFuture<'static, Answer<T>>>)>,
    flights: u64,
}

impl<T: Send + Sync + 'static> Source<T> {
    pub(super) fn new(pace: Pace) -> Self {
        let state = State {
            last: None,
            flight: None,
            flights: 0,
        };
        Self {
            pace,
            state: Mutex::new(state),
        }
    }

    /// The last answer, where it is fresh.
    pub(super) fn fresh(&self) -> Option<Arc<T>> {
        let state = self.state.lock();
        let (at, last) = state.last.as_ref()?;
        (at.elapsed() < self.pace.fresh).then(|| last.clone())
    }

    /// The answer that is fresh, or that of the question under way, or of `ask`, which is asked then. When
    /// that takes too long or fails, the last answer, unless it is too old.
    pub(super) async fn get(
        &self,
        ask: impl FnOnce() -> BoxFuture<'static, Option<T>>,
    ) -> Answer<T> {
        let begun = Instant::now();
        let (number, flight) = {
            let mut state = self.state.lock();
            if let Some((at, last)) = &state.last
                && begun.duration_since(*at) < self.pace.fresh
            {
                return Some(last.clone());
            }
            match &state.flight {
                Some((number, flight)) => (*number, flight.clone()),
                None => {
                    // Those who share a future that panicked would all panic.
                    let asked = contain(Place::Stats, ask());
                    let answer = asked.map(|answer| answer.ok().flatten().map(Arc::new));
                    let flight = answer.boxed().shared();
                    state.flights += 1;
                    state.flight = Some((state.flights, flight.clone()));
                    (state.flights, flight)
                }
            }
        };
        let answer = tokio::time::timeout(self.pace.patience, flight).await;
        let now = Instant::now();
        let mut state = self.state.lock();
        if let Ok(answer) = answer {
            // Whoever sees the end first makes room for the next question.
            if state
                .flight
                .as_ref()
                .is_some_and(|(under_way, _)| *under_way == number)
            {
                state.flight = None;
                if let Some(answer) = &answer {
                    state.last = Some((now, answer.clone()));
                }
            }
            if answer.is_some() {
                return answer;
            }
        }
        let (at, last) = state.last.as_ref()?;
        (now.duration_since(*at) < self.pace.stale).then(|| last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    const PACE: Pace = Pace {
        fresh: Duration::from_secs(1),
        patience: Duration::from_secs(5),
        stale: Duration::from_secs(60),
    };

    /// Answers with how often it was asked, once it is allowed to.
    #[derive(Clone, Default)]
    struct Slow {
        asked: Arc<AtomicU32>,
        go: Arc<Notify>,
    }

    impl Slow {
        fn ask(&self) -> BoxFuture<'static, Option<u32>> {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            let go = self.go.clone();
            Box::pin(async move {
                go.notified().await;
                Some(number)
            })
        }
    }

    fn at_once(value: Option<u32>) -> BoxFuture<'static, Option<u32>> {
        Box::pin(async move { value })
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_together_shares_one_question_and_who_asks_soon_its_answer() {
        let (source, slow) = (Source::new(PACE), Slow::default());
        let both = async { tokio::join!(source.get(|| slow.ask()), source.get(|| slow.ask())) };
        slow.go.notify_one();
        let (first, second) = both.await;
        assert_eq!((first.as_deref(), second.as_deref()), (Some(&1), Some(&1)));
        assert_eq!(source.get(|| slow.ask()).await.as_deref(), Some(&1));
        tokio::time::advance(PACE.fresh).await;
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.ask()).await.as_deref(), Some(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_source_hangs_the_last_answer_does_until_it_is_too_old() {
        let (source, slow) = (Source::new(PACE), Slow::default());
        assert_eq!(source.get(|| at_once(Some(7))).await.as_deref(), Some(&7));
        tokio::time::advance(PACE.fresh).await;
        for _ in 0..3 {
            assert_eq!(source.get(|| slow.ask()).await.as_deref(), Some(&7));
        }
        assert_eq!(
            slow.asked.load(Ordering::SeqCst),
            1,
            "asked again while it hangs"
        );
        tokio::time::advance(PACE.stale).await;
        assert_eq!(source.get(|| slow.ask()).await, None);
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.ask()).await.as_deref(), Some(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_no_answer_and_the_next_one_asks_again() {
        let source = Source::new(PACE);
        assert_eq!(source.get(|| at_once(None)).await, None);
        assert_eq!(source.get(|| at_once(Some(1))).await.as_deref(), Some(&1));
        tokio::time::advance(PACE.fresh).await;
        assert_eq!(source.get(|| at_once(None)).await.as_deref(), Some(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_and_leaves_does_not_block_those_who_come_later() {
        let (source, slow) = (Source::new(PACE), Slow::default());
        assert!(source.get(|| slow.ask()).now_or_never().is_none());
        slow.go.notify_one();
        assert_eq!(source.get(|| slow.ask()).await.as_deref(), Some(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_panics_is_no_answer_and_is_asked_again() {
        let source = Source::new(PACE);
        let panics =
            || -> BoxFuture<'static, Option<u32>> { Box::pin(async { panic!("as scripted") }) };
        assert_eq!(source.get(panics).await, None);
        assert_eq!(source.get(|| at_once(Some(1))).await.as_deref(), Some(&1));
    }
}
