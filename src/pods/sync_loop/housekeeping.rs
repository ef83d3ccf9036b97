//! The schedule of housekeeping, and its background part.

use crate::base::clock::{self, Instant};
use crate::base::panics::{PanicScope, Panicked};
use crate::base::spawn;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

/// How often housekeeping runs if nothing changes.
pub const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(60);
/// Delay after a change that may have left an orphan. Changes within it cause one run.
const HOUSEKEEPING_DELAY: Duration = Duration::from_millis(100);
/// Delay after a removal that failed.
const RETRY_DELAY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(in crate::pods) struct HousekeepingSchedule {
    period: Duration,
    next: Instant,
    /// When the next full run is due. A full run also compares workers with the desired pods, and searches for orphaned
    /// cgroups; everything else, including the rest of the background part, belongs to every run.
    next_full: Instant,
    /// The running background part. It hangs if the runtime does, so a second one is not started beside it.
    running: Option<JoinHandle<Result<(), Panicked>>>,
    /// A run was due while the background part of the last one was running: it is repeated after that.
    missed: bool,
    /// The next run repeats what failed or was missed.
    repeats: bool,
}

impl HousekeepingSchedule {
    /// Housekeeping every `period`, the first time after [`HOUSEKEEPING_DELAY`].
    pub(in crate::pods) fn every(period: Duration) -> Self {
        let now = clock::instant();
        Self {
            period,
            next: now + HOUSEKEEPING_DELAY,
            next_full: now,
            running: None,
            missed: false,
            repeats: false,
        }
    }

    /// Schedules a run after [`HOUSEKEEPING_DELAY`]: there may be an orphan.
    pub(super) fn run_soon(&mut self) {
        self.within(HOUSEKEEPING_DELAY);
    }

    /// Schedules a run after [`RETRY_DELAY`]: something could not be removed.
    pub(super) fn retry_later(&mut self) {
        self.repeats = true;
        self.within(RETRY_DELAY);
    }

    fn within(&mut self, pause: Duration) {
        self.next = self.next.min(clock::instant() + pause);
    }

    /// Waits until the next run is due. Safe to cancel.
    pub(super) async fn due(&mut self) {
        loop {
            tokio::select! {
                () = sleep_until(self.next) => return,
                () = end_of(&mut self.running) => {}
            }
            self.running = None;
            if std::mem::take(&mut self.missed) {
                self.repeats = true;
                self.run_soon();
            }
        }
    }

    /// Records that a run begins. True if it is a full one, which needs all sources to have delivered.
    pub(super) fn begin(&mut self, all_delivered: bool) -> bool {
        let now = clock::instant();
        self.next = now + self.period;
        let is_full = all_delivered && now >= self.next_full;
        if is_full {
            self.next_full = now + self.period;
        }
        is_full
    }

    /// Whether a run, full or not, searches for orphans that have only a cgroup, which is expensive.
    pub(super) fn searches_cgroups(&mut self, is_full: bool) -> bool {
        std::mem::take(&mut self.repeats) || is_full
    }

    /// Starts the background part, which reads the runtime and the disk, unless it is running.
    pub(super) fn start(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.missed = self.running.is_some();
        if !self.missed {
            self.running = Some(spawn(PanicScope::Housekeeping, work));
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    #[tokio::test(start_paused = true)]
    async fn one_run_at_a_time_and_a_missed_one_follows_it() {
        let mut schedule = HousekeepingSchedule::every(HOUSEKEEPING_PERIOD);
        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let work = || {
            let (begun, gate) = (begun.clone(), gate.clone());
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
            }
        };
        for _ in 0..5 {
            schedule.due().await;
            schedule.begin(true);
            schedule.start(work());
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        gate.add_permits(1);
        let before = clock::instant();
        schedule.due().await;
        assert_eq!(clock::since(before), HOUSEKEEPING_DELAY, "the missed one follows");
        schedule.begin(true);
        assert!(schedule.searches_cgroups(false));
        schedule.start(work());
        gate.add_permits(1);
        schedule.due().await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        assert_eq!(
            clock::since(before),
            HOUSEKEEPING_DELAY + HOUSEKEEPING_PERIOD,
            "nothing was missed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_compared_once_a_period_and_not_before_that_is_possible() {
        let mut schedule = HousekeepingSchedule::every(HOUSEKEEPING_PERIOD);
        schedule.due().await;
        assert!(!schedule.begin(false));
        schedule.run_soon();
        schedule.due().await;
        assert!(schedule.begin(true));
        schedule.run_soon();
        schedule.due().await;
        assert!(!schedule.begin(true), "only what may just have been left");
        assert!(!schedule.searches_cgroups(false));
        schedule.due().await;
        assert!(schedule.begin(true) && schedule.searches_cgroups(true));
        let before = clock::instant();
        schedule.retry_later();
        schedule.due().await;
        assert_eq!(clock::since(before), RETRY_DELAY);
        assert!(schedule.searches_cgroups(false) && !schedule.searches_cgroups(false));
    }
}
