//! How often pulls may begin: `qps` on average, `burst` at once. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket. Tokens may be taken in advance: the taker waits.
#[derive(Debug)]
pub(super) struct Rate {
    /// Time per token; `None` for no limit.
    interval: Option<Duration>,
    burst: u32,
    /// When the bucket would be empty going backwards: the next free token's time, less the burst.
    next: Option<Instant>,
}

impl Rate {
    /// `qps` of zero (or less) is no limit.
    pub(super) fn new(qps: f64, burst: u32) -> Rate {
        let interval = (qps > 0.0)
            .then(|| Duration::try_from_secs_f64(1.0 / qps).ok())
            .flatten();
        Rate {
            interval,
            burst: burst.max(1),
            next: None,
        }
    }

    /// Takes a token; how long to wait before using it.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        let Some(interval) = self.interval else {
            return Duration::ZERO;
        };
        let next = self.next.map_or(now, |next| next.max(now));
        self.next = Some(next + interval);
        // The first `burst` tokens after a pause are ahead of their time.
        let ahead = interval.saturating_mul(self.burst.saturating_sub(1));
        next.saturating_duration_since(now).saturating_sub(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut rate = Rate::new(5.0, 3);
        let waits: Vec<u128> = (0..6).map(|_| rate.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        let later = now + Duration::from_secs(10);
        let waits: Vec<u128> = (0..4).map(|_| rate.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200]);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let mut rate = Rate::new(0.0, 0);
        assert!((0..100).all(|_| rate.take(Instant::now()).is_zero()));
    }
}
