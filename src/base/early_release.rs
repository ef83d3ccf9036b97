//! A semaphore whose permits are released early by slow holders, so that hanging work does not block other work.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A FIFO limit on concurrent work. Clones share it.
#[derive(Clone, Debug)]
pub struct EarlyReleaseSemaphore {
    permits: Arc<Semaphore>,
    hold: Duration,
}

/// A permit; released when dropped.
#[derive(Debug)]
pub struct EarlyReleasePermit {
    permit: Option<OwnedSemaphorePermit>,
    hold: Duration,
}

impl EarlyReleaseSemaphore {
    /// At most `limit` permits at a time, each held for at most `hold`.
    pub fn new(limit: usize, hold: Duration) -> Self {
        Self { permits: Arc::new(Semaphore::new(limit)), hold }
    }

    /// Waits for a permit. Safe to cancel.
    pub async fn acquire(&self) -> EarlyReleasePermit {
        EarlyReleasePermit {
            // The semaphore is never closed.
            permit: self.permits.clone().acquire_owned().await.ok(),
            hold: self.hold,
        }
    }
}

impl EarlyReleasePermit {
    /// Runs work to completion. The permit is released when it ends or after the holding time, whichever is earlier.
    pub async fn run<F: Future>(self, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        match timeout(self.hold, work.as_mut()).await {
            Ok(output) => output,
            Err(_) => {
                drop(self.permit);
                work.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    const HOLD: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn never_more_than_the_limit_hold_a_permit() {
        let limit = EarlyReleaseSemaphore::new(4, HOLD);
        let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let mut work = JoinSet::new();
        for _ in 0..50 {
            let (limit, now, most) = (limit.clone(), now.clone(), most.clone());
            work.spawn(async move {
                let call = async {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    sleep(HOLD / 2).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                };
                limit.acquire().await.run(call).await;
            });
        }
        work.join_all().await;
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_dropped_gives_its_permit_back_in_the_queue_and_under_way() {
        let limit = EarlyReleaseSemaphore::new(4, HOLD);
        let hang = || {
            let limit = limit.clone();
            tokio::spawn(
                async move { limit.acquire().await.run(std::future::pending::<()>()).await },
            )
        };
        let all: Vec<_> = (0..7).map(|_| hang()).collect();
        tokio::task::yield_now().await;
        all.iter().rev().for_each(|work| work.abort());
        let begin = clock::instant();
        limit.acquire().await.run(async {}).await;
        assert!(clock::since(begin) < HOLD);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_work_gives_its_permit_back_early_and_still_ends() {
        let limit = EarlyReleaseSemaphore::new(4, HOLD);
        let mut slow = JoinSet::new();
        for _ in 0..4 {
            let limit = limit.clone();
            slow.spawn(async move {
                let work = async {
                    sleep(HOLD * 50).await;
                    "late"
                };
                limit.acquire().await.run(work).await
            });
        }
        tokio::task::yield_now().await;
        let begin = clock::instant();
        limit.acquire().await.run(async {}).await;
        assert_eq!(clock::since(begin), HOLD);
        assert_eq!(slow.join_all().await, ["late"; 4]);
    }
}
