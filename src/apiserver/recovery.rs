//! When the API server answers again after it did not: few and urgent requests then need not wait for their delays.

use super::{ApiError, ApiServer};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// The longest wait after a recovery. It is a random part of this, so that nodes do not come all at once.
const MAX_WAIT: Duration = Duration::from_millis(400);

/// What the last request of a client and its clones showed.
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

/// The recoveries since the last wait.
pub struct Recovery(watch::Receiver<()>);

impl Recovery {
    /// Waits until the next try, which is brought forward when a request of any kind finds the API server back.
    /// Cancelling it loses nothing.
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
    /// The recoveries from now on.
    pub fn recovery(&self) -> Recovery {
        Recovery(self.availability.recoveries.subscribe())
    }
}
