//! When housekeeping runs, and the run in progress.

use crate::base::{
    panics::{PanicScope, Panicked},
    spawn,
};
use std::time::Duration;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// How often housekeeping runs. Everything else is event-driven.
pub const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(60);
/// The delay after something that may have left remains.
const HOUSEKEEPING_DELAY: Duration = Duration::from_millis(100);
/// The delay after remains that could not be removed.
const RETRY_DELAY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct HousekeepingSchedule {
    period: Duration,
    next: Instant,
    /// When everything is compared again, and not only what may just have been left behind.
    whole: Instant,
    /// The running one. It may hang as long as the runtime does, and a second one would hang beside it.
    running: Option<JoinHandle<Result<(), Panicked>>>,
    /// Housekeeping was due while it was running: it runs again after that.
    missed: bool,
}

impl HousekeepingSchedule {
    /// Housekeeping every `period`, the first time soon.
    pub(super) fn every(period: Duration) -> Self {
        let now = Instant::now();
        Self {
            period,
            next: now + HOUSEKEEPING_DELAY,
            whole: now,
            running: None,
            missed: false,
        }
    }

    /// Something may have been left behind.
    pub(super) fn soon(&mut self) {
        self.within(HOUSEKEEPING_DELAY);
    }

    /// Something was left behind that cannot be removed now.
    pub(super) fn again(&mut self) {
        self.within(RETRY_DELAY);
    }

    fn within(&mut self, pause: Duration) {
        self.next = self.next.min(Instant::now() + pause);
    }

    /// Waits for the next one. Safe to cancel.
    pub(super) async fn due(&mut self) {
        loop {
            tokio::select! {
                () = sleep_until(self.next) => return,
                () = end_of(&mut self.running) => {}
            }
            self.running = None;
            if std::mem::take(&mut self.missed) {
                self.soon();
            }
        }
    }

    /// An audit runs now. True when it is time to compare everything; `complete` is whether that is
    /// possible.
    pub(super) fn done(&mut self, complete: bool) -> bool {
        let now = Instant::now();
        self.next = now + self.period;
        let whole = complete && now >= self.whole;
        if whole {
            self.whole = now + self.period;
        }
        whole
    }

    /// Starts the part of an audit that reads the runtime and the disk, unless one is running.
    pub(super) fn start(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.missed = self.running.is_some();
        if !self.missed {
            self.running = Some(spawn(PanicScope::Audit, work));
        }
    }
}

async fn end_of(running: &mut Option<JoinHandle<Result<(), Panicked>>>) {
    match running {
        Some(running) => drop(running.await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tokio::sync::Semaphore;

    #[tokio::test(start_paused = true)]
    async fn one_audit_runs_at_a_time_and_a_missed_one_follows_it() {
        let mut audits = HousekeepingSchedule::every(HOUSEKEEPING_PERIOD);
        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let work = || {
            let (begun, gate) = (begun.clone(), gate.clone());
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
            }
        };
        for _ in 0..5 {
            audits.due().await;
            audits.done(true);
            audits.start(work());
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        gate.add_permits(1);
        let before = Instant::now();
        audits.due().await;
        assert_eq!(
            before.elapsed(),
            HOUSEKEEPING_DELAY,
            "the missed one follows"
        );
        audits.done(true);
        audits.start(work());
        gate.add_permits(1);
        audits.due().await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        assert_eq!(
            before.elapsed(),
            HOUSEKEEPING_DELAY + HOUSEKEEPING_PERIOD,
            "nothing was missed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_compared_once_a_period_and_not_before_that_is_possible() {
        let mut audits = HousekeepingSchedule::every(HOUSEKEEPING_PERIOD);
        audits.due().await;
        assert!(!audits.done(false));
        audits.soon();
        audits.due().await;
        assert!(audits.done(true));
        audits.soon();
        audits.due().await;
        assert!(!audits.done(true), "only what may just have been left");
        audits.due().await;
        assert!(audits.done(true));
        let before = Instant::now();
        audits.again();
        audits.due().await;
        assert_eq!(before.elapsed(), RETRY_DELAY);
    }
}
