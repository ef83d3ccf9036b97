//! Work for a pod that cannot be broken off: what a host path leads to may hang for ever.
//!
//! Whoever is to end the pod does not wait for such work; whoever takes down what it makes does, and so
//! does the next try. So it never runs beside itself, nor beside its own undoing.

use crate::model::PodUid;
use parking_lot::Mutex;
use std::{collections::HashMap, future::Future, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// Nobody wants it any more.
    Cancelled,
    /// It takes too long.
    TimedOut,
}

/// What was left behind and may go on, by pod.
#[derive(Debug, Default)]
pub struct Unfinished {
    left: Mutex<HashMap<PodUid, JoinHandle<()>>>,
}

impl Unfinished {
    /// Does the work after what was left behind for this pod, within `limit`. What is not done by then,
    /// or when `cancel` fires, goes on by itself.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        uid: &PodUid,
        work: impl Future<Output = T> + Send + 'static,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<T, NotDone> {
        let before = self.left.lock().remove(uid);
        let mut work = Box::pin(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            work.await
        });
        let not_done = tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = cancel.cancelled() => NotDone::Cancelled,
            () = tokio::time::sleep(limit) => NotDone::TimedOut,
        };
        let left = tokio::spawn(async move {
            work.await;
        });
        self.left.lock().insert(uid.clone(), left);
        Err(not_done)
    }

    /// Waits until nothing is under way for this pod any more, however long that takes.
    pub(super) async fn over(&self, uid: &PodUid) {
        let left = self.left.lock().remove(uid);
        if let Some(left) = left {
            let _ = left.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use std::sync::Arc;
    use tokio::{sync::Semaphore, time::Instant};

    const LIMIT: Duration = Duration::from_secs(123);

    fn hang(gate: &Arc<Semaphore>) -> BoxFuture<'static, ()> {
        let gate = gate.clone();
        Box::pin(async move { gate.acquire().await.unwrap().forget() })
    }

    #[tokio::test(start_paused = true)]
    async fn who_ends_a_pod_does_not_wait_for_what_hangs_but_its_undoing_does() {
        let (all, uid, gate) = (
            Unfinished::default(),
            "u".into(),
            Arc::new(Semaphore::new(0)),
        );
        let cancel = CancellationToken::new();
        cancel.cancel();
        let cut = all.run(&uid, hang(&gate), LIMIT, &cancel).await;
        assert_eq!(cut, Err(NotDone::Cancelled));
        let undoing = tokio::time::timeout(LIMIT, all.over(&uid)).await;
        assert!(undoing.is_err(), "it is still under way");
        all.over(&"other".into()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_try_waits_for_the_one_before() {
        let (all, uid, gate) = (
            Unfinished::default(),
            "u".into(),
            Arc::new(Semaphore::new(0)),
        );
        let (cancel, begun) = (CancellationToken::new(), Instant::now());
        let first = all.run(&uid, hang(&gate), LIMIT, &cancel).await;
        assert_eq!((first, begun.elapsed()), (Err(NotDone::TimedOut), LIMIT));
        let second = all.run(&uid, async { 2 }, LIMIT, &cancel).await;
        assert_eq!(second, Err(NotDone::TimedOut), "it has not begun");
        gate.add_permits(1);
        let third = all.run(&uid, async { 3 }, LIMIT, &cancel).await;
        assert_eq!(third, Ok(3));
        all.over(&uid).await;
        assert!(all.left.lock().is_empty());
    }
}
