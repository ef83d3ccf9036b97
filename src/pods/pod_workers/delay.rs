//! The delay until the next sync of a pod. Pure.

use crate::base::clock::Instant;
use crate::pods::pod_sync::syncer::{NextSync, SyncDelay};
use std::time::Duration;

/// The delays before jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// After a sync that left nothing to do (`syncFrequency`).
    pub resync: Duration,
    /// After a failure.
    pub error: Duration,
    /// After the first failure to stop a pod or to clean up after it; each further one doubles it, up
    /// to `error`.
    pub stop: Duration,
    /// While the runtime's network is not ready.
    pub network_not_ready: Duration,
}

impl Default for Delays {
    /// 60 s, 10 s, 2 s and 1 s.
    fn default() -> Self {
        Self {
            resync: Duration::from_secs(60),
            error: Duration::from_secs(10),
            stop: Duration::from_secs(2),
            network_not_ready: Duration::from_secs(1),
        }
    }
}

/// When the next sync is due. `jitter` from 0 to 1 lengthens the delay by up to a half, so that pods that start together
/// do not stay in step. An exact instant (the end of a back-off, a deadline) gets no jitter. The earlier of the two
/// counts.
pub(super) fn due(next: NextSync, delays: &Delays, now: Instant, jitter: f64) -> Instant {
    let delay = match next.delay {
        SyncDelay::Resync => delays.resync,
        SyncDelay::Error => delays.error,
        SyncDelay::Stop(failures) => doubled(delays.stop, failures).min(delays.error),
        SyncDelay::Unsupported(syncs) => doubled(delays.error, syncs).min(delays.resync),
        SyncDelay::NetworkNotReady => delays.network_not_ready,
    };
    let latest = now + delay.mul_f64(1.0 + 0.5 * jitter.clamp(0.0, 1.0));
    next.at.map_or(latest, |at| at.clamp(now, latest))
}

/// The delay after the given number of failures in a row, doubled with each after the first.
fn doubled(delay: Duration, failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1));
    delay.saturating_mul(factor.unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn delays_are_stretched_by_up_to_a_half() {
        let now = clock::instant();
        for (delay, roll, millis) in [
            (SyncDelay::Resync, 0.0, 60_000),
            (SyncDelay::Resync, 1.0, 90_000),
            (SyncDelay::Error, 0.0, 10_000),
            (SyncDelay::Error, 0.5, 12_500),
            (SyncDelay::NetworkNotReady, 1.0, 1_500),
            (SyncDelay::Stop(1), 0.0, 2_000),
            (SyncDelay::Stop(1), 1.0, 3_000),
            (SyncDelay::Stop(2), 0.0, 4_000),
            (SyncDelay::Stop(3), 0.0, 8_000),
            (SyncDelay::Stop(4), 0.0, 10_000),
            (SyncDelay::Stop(u32::MAX), 1.0, 15_000),
            (SyncDelay::Unsupported(1), 1.0, 15_000),
            (SyncDelay::Unsupported(3), 0.0, 40_000),
            (SyncDelay::Unsupported(4), 0.0, 60_000),
            (SyncDelay::Unsupported(u32::MAX), 1.0, 90_000),
        ] {
            let due = due(delay.into(), &Delays::default(), now, roll);
            assert_eq!(due, now + Duration::from_millis(millis), "{delay:?} {roll}");
        }
    }

    #[test]
    fn an_exact_instant_is_exact_but_never_later_than_the_delay() {
        let now = clock::instant();
        for (delay, seconds, millis) in [
            (SyncDelay::Resync, 7, 7_000),
            (SyncDelay::Resync, 300, 87_000),
            (SyncDelay::Error, 7, 7_000),
            (SyncDelay::Error, 3_600, 14_500),
            (SyncDelay::NetworkNotReady, 3_600, 1_450),
        ] {
            let next = NextSync { at: Some(now + Duration::from_secs(seconds)), delay };
            let at = due(next, &Delays::default(), now, 0.9) - now;
            assert_eq!(at, Duration::from_millis(millis), "{delay:?} {seconds}");
        }
        let past = NextSync { at: Some(now), delay: SyncDelay::Resync };
        let later = now + Duration::from_secs(5);
        assert_eq!(due(past, &Delays::default(), later, 0.0), later);
    }
}
