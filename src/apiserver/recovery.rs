//! Notices when the API server responds again after an outage, so that a few urgent requests need not wait for their
//! back-off.

use super::{ApiError, ApiServer};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Maximum delay of a request after a recovery. The delay is random, so that nodes do not send requests all at once.
const MAX_WAIT: Duration = Duration::from_millis(400);

/// Whether the requests of a client and of its clones are answered. The API server is away after a request failed,
/// unless another one was answered meanwhile: then only some requests fail, and theirs is the usual back-off.
#[derive(Default)]
pub(super) struct Availability {
    is_away: AtomicBool,
    answered: AtomicU64,
    recoveries: watch::Sender<()>,
}

impl Availability {
    /// The number of answered requests.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Records the result of a request; `answered_before` is the number of answered requests when it began.
    pub(super) fn observe<T>(&self, result: &Result<T, ApiError>, answered_before: u64) {
        if result.as_ref().err().is_some_and(ApiError::is_absence) {
            if self.answered() == answered_before {
                self.is_away.store(true, Ordering::Relaxed);
            }
            return;
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        if self.is_away.swap(false, Ordering::Relaxed) {
            self.recoveries.send_replace(());
        }
    }
}

/// Recoveries since the last wait.
pub struct Recovery(watch::Receiver<()>);

impl Recovery {
    /// Waits until `next_try`, which is brought forward when any request reaches the API server again. Cancel safe.
    pub async fn wait(&mut self, next_try: &mut Instant) {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.0.changed() => {
                    let soon = Instant::now() + MAX_WAIT.mul_f64(fastrand::f64());
                    *next_try = soon.min(*next_try);
                }
                () = sleep_until(*next_try) => return,
            }
        }
    }
}

impl ApiServer {
    /// Subscribes to recoveries from now on.
    pub fn recovery(&self) -> Recovery {
        Recovery(self.availability.recoveries.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_recovers_only_from_an_absence_and_not_from_a_slow_request() {
        let availability = Availability::default();
        let mut recoveries = availability.recoveries.subscribe();
        let late = || Err::<(), _>(ApiError::Timeout(Duration::ZERO));
        let recovered = |recoveries: &mut watch::Receiver<()>| {
            let changed = recoveries.has_changed().unwrap();
            recoveries.mark_unchanged();
            changed
        };
        // Another request was answered while this one was late.
        let began = availability.answered();
        availability.observe(&Ok(()), availability.answered());
        availability.observe(&late(), began);
        availability.observe(&Ok(()), availability.answered());
        assert!(!recovered(&mut recoveries));
        // Nothing was answered.
        availability.observe(&late(), availability.answered());
        availability.observe(&Ok(()), availability.answered());
        assert!(recovered(&mut recoveries));
        availability.observe(&Ok(()), availability.answered());
        assert!(!recovered(&mut recoveries));
    }
}
