//! Whether the loop runs, for health checks and the watchdog.

use crate::base::clock::{self, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When the last iteration of the loop began, for `/healthz`.
#[derive(Clone, Debug)]
pub struct SyncLoopMonitor {
    started: Instant,
    /// Seconds from `started` to the last iteration, plus one; zero before the first.
    last: Arc<AtomicU64>,
}

impl SyncLoopMonitor {
    /// The sync_loop_monitor of a loop that has not started; [`Self::check`] counts from now until its first iteration.
    pub fn new() -> Self {
        Self { started: clock::instant(), last: Arc::default() }
    }

    pub(super) fn record_iteration(&self) {
        let seconds = clock::since(self.started).as_secs();
        self.last.store(seconds + 1, Ordering::Relaxed);
    }

    /// Whether the loop runs. It does not before the runtime was reached.
    pub fn has_started(&self) -> bool {
        self.last.load(Ordering::Relaxed) > 0
    }

    /// The check of `/healthz`: whether an iteration began within `limit`.
    ///
    /// # Errors
    /// No iteration began within `limit`; upstream's text.
    pub fn check(&self, limit: Duration) -> Result<(), String> {
        if self.age() > limit {
            return Err("sync Loop took longer than expected".to_owned());
        }
        Ok(())
    }

    /// How long ago the last iteration began, to the second.
    fn age(&self) -> Duration {
        let last = self.last.load(Ordering::Relaxed).saturating_sub(1);
        let last = Duration::from_secs(last);
        clock::since(self.started).saturating_sub(last)
    }
}

impl Default for SyncLoopMonitor {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_has_begun_fails_its_check_when_an_iteration_takes_too_long() {
        let limit = Duration::from_secs(300);
        let sync_loop_monitor = SyncLoopMonitor::new();
        assert!(!sync_loop_monitor.has_started());
        assert_eq!(sync_loop_monitor.check(limit), Ok(()));
        tokio::time::advance(Duration::from_secs(400)).await;
        assert!(sync_loop_monitor.check(limit).is_err(), "it has not begun in time");
        sync_loop_monitor.record_iteration();
        assert!(sync_loop_monitor.has_started());
        assert_eq!(sync_loop_monitor.check(limit), Ok(()));
        tokio::time::advance(Duration::from_secs(301)).await;
        assert!(sync_loop_monitor.check(limit).is_err());
    }
}
