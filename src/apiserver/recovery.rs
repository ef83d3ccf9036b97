//! Notices when the API server responds again after an outage, so that a few urgent requests need not wait for their
//! back-off.

use super::{ApiError, ApiServer};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Maximum delay of a request after a recovery. The delay is random, so that nodes do not send requests all at once.
const MAX_WAIT: Duration = Duration::from_millis(400);

/// Whether the last request of a client, or of one of its clones, was answered.
#[derive(Default)]
pub(super) struct Availability {
    is_away: AtomicBool,
    recoveries: watch::Sender<()>,
}

impl Availability {
    pub(super) fn observe<T>(&self, result: &Result<T, ApiError>) {
        let is_away = result.as_ref().err().is_some_and(ApiError::is_absence);
        if self.is_away.swap(is_away, Ordering::Relaxed) && !is_away {
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
