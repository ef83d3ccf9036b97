//! A rate limiter: `qps` on average, bursts of `burst`. Pure.

use super::clock::Instant;
use std::time::Duration;

/// A token bucket. Tokens can be reserved in advance; the caller then waits.
#[derive(Debug)]
pub struct TokenBucket {
    /// Time per token; `None` for no limit.
    interval: Option<Duration>,
    burst: u32,
    /// GCRA's theoretical arrival time of the next token; tokens of a burst are taken before it.
    next: Option<Instant>,
}

impl TokenBucket {
    /// Without a limit if `qps` is zero or negative.
    pub fn new(qps: f64, burst: u32) -> TokenBucket {
        let interval = (qps > 0.0).then(|| Duration::try_from_secs_f64(1.0 / qps).ok()).flatten();
        TokenBucket { interval, burst: burst.max(1), next: None }
    }

    /// Reserves a token; returns how long to wait before using it. Reserves nothing and returns `None` if the wait
    /// would exceed `max_wait`.
    pub fn take(&mut self, now: Instant, max_wait: Duration) -> Option<Duration> {
        let Some(interval) = self.interval else {
            return Some(Duration::ZERO);
        };
        let next = self.next.map_or(now, |next| next.max(now));
        // After a pause, the first `burst` tokens are available immediately.
        let burst_credit = interval.saturating_mul(self.burst.saturating_sub(1));
        let wait = next.saturating_duration_since(now).saturating_sub(burst_credit);
        if wait > max_wait {
            return None;
        }
        self.next = Some(next + interval);
        Some(wait)
    }

    /// Gives a token back that was not needed.
    pub fn give_back(&mut self) {
        let earlier = |next: Instant| next.checked_sub(self.interval?);
        self.next = self.next.and_then(earlier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let now = clock::instant();
        let mut rate = TokenBucket::new(5.0, 3);
        let mut waits = |n, now| -> Vec<u128> {
            let one = |_| rate.take(now, Duration::MAX).unwrap().as_millis();
            (0..n).map(one).collect()
        };
        assert_eq!(waits(6, now), [0, 0, 0, 200, 400, 600]);
        let later = now + Duration::from_secs(10);
        assert_eq!(waits(4, later), [0, 0, 0, 200]);
    }

    #[test]
    fn a_wait_that_is_too_long_is_refused_and_takes_nothing() {
        let now = clock::instant();
        let mut rate = TokenBucket::new(0.5, 1);
        let most = Duration::from_secs(3);
        assert_eq!(rate.take(now, most), Some(Duration::ZERO));
        assert_eq!(rate.take(now, most), Some(Duration::from_secs(2)));
        assert_eq!(rate.take(now, most), None);
        let later = now + Duration::from_secs(1);
        assert_eq!(rate.take(later, most), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_token_that_is_given_back_is_there_again_and_no_more_than_the_burst() {
        let now = clock::instant();
        let mut rate = TokenBucket::new(1.0, 2);
        let take = |rate: &mut TokenBucket| rate.take(now, Duration::MAX).unwrap().as_secs();
        assert_eq!([(); 3].map(|()| take(&mut rate)), [0, 0, 1]);
        rate.give_back();
        assert_eq!(take(&mut rate), 1);
        (0..9).for_each(|_| rate.give_back());
        assert_eq!([(); 3].map(|()| take(&mut rate)), [0, 0, 1]);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let mut rate = TokenBucket::new(0.0, 0);
        assert!((0..100).all(|_| rate.take(clock::instant(), Duration::ZERO).is_some()));
    }
}
