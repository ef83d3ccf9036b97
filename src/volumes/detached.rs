//! Work for a pod that cannot be interrupted: a file system of the user's may hang for ever.
//!
//! A caller that gives up leaves the work behind. What is left behind runs on, but makes nothing any
//! more below the pod's directory; it runs beside nothing that is done for the same pod later, and
//! the teardown of what it made waits only until it makes nothing more.

use crate::model::PodUid;
use parking_lot::Mutex;
use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// The pod is to stop, or to be synced again.
    Cancelled,
    /// It takes too long.
    TimedOut,
}

/// What a piece of work checks before it makes anything. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Permit {
    shared: Arc<PermitState>,
}

#[derive(Debug, Default)]
struct PermitState {
    use_of: Mutex<PermitUse>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct PermitUse {
    revoked: bool,
    creating: usize,
}

/// As long as it lives, its work may make things.
#[derive(Debug)]
pub(super) struct CreationGuard<'a>(&'a PermitState);

impl Permit {
    /// Permission to make something; `None` when the work was left behind, and should end.
    pub(super) fn begin(&self) -> Option<CreationGuard<'_>> {
        let mut permit = self.shared.use_of.lock();
        if permit.revoked {
            return None;
        }
        permit.creating += 1;
        Some(CreationGuard(&self.shared))
    }

    fn revoke(&self) {
        self.shared.use_of.lock().revoked = true;
    }

    /// Waits until nothing is being made.
    async fn idle(&self) {
        loop {
            let idle = self.shared.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.shared.use_of.lock().creating == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for CreationGuard<'_> {
    fn drop(&mut self) {
        self.0.use_of.lock().creating -= 1;
        self.0.idle.notify_waiters();
    }
}

/// What was left behind, by pod.
#[derive(Debug, Default)]
pub(super) struct DetachedWork {
    left: Mutex<HashMap<PodUid, Left>>,
}

#[derive(Debug)]
struct Left {
    task: JoinHandle<()>,
    permit: Permit,
}

impl DetachedWork {
    /// Does the work within `limit`, after what was left behind for this pod has ended. What is not done
    /// by then, or when `cancel` fires, is left behind.
    pub(super) async fn run<T, F>(
        &self,
        uid: &PodUid,
        work: impl FnOnce(Permit) -> F,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<T, NotDone>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let before = self.left.lock().remove(uid);
        let permit = Permit::default();
        let (work, asked) = (work(permit.clone()), permit.clone());
        let mut work = Box::pin(async move {
            if let Some(before) = before {
                let _ = before.task.await;
            }
            // Left behind before it has begun.
            asked.begin()?;
            Some(work.await)
        });
        let not_done = tokio::select! {
            biased;
            done = &mut work => return done.ok_or(NotDone::Cancelled),
            () = cancel.cancelled() => NotDone::Cancelled,
            () = tokio::time::sleep(limit) => NotDone::TimedOut,
        };
        permit.revoke();
        let task = tokio::spawn(async move {
            work.await;
        });
        self.left.lock().insert(uid.clone(), Left { task, permit });
        Err(not_done)
    }

    /// Waits until what was left behind for this pod makes nothing any more, and forgets it.
    pub(super) async fn idle(&self, uid: &PodUid) {
        let left = self.left.lock().remove(uid);
        if let Some(left) = left {
            left.permit.idle().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use tokio::{sync::Semaphore, time::Instant};

    const LIMIT: Duration = Duration::from_secs(123);

    fn hang(gate: &Arc<Semaphore>) -> BoxFuture<'static, ()> {
        let gate = gate.clone();
        Box::pin(async move { gate.acquire().await.unwrap().forget() })
    }

    fn parts() -> (DetachedWork, PodUid, Arc<Semaphore>, CancellationToken) {
        let gate = Arc::new(Semaphore::new(0));
        (
            DetachedWork::default(),
            "u".into(),
            gate,
            CancellationToken::new(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn taking_down_waits_for_work_that_makes_something() {
        let (all, uid, gate, cancel) = parts();
        let hung = hang(&gate);
        let work = |permit: Permit| async move {
            let _making = permit.begin();
            hung.await;
        };
        let begun = Instant::now();
        let cut = all.run(&uid, work, LIMIT, &cancel).await;
        assert_eq!((cut, begun.elapsed()), (Err(NotDone::TimedOut), LIMIT));
        let mut idle = Box::pin(all.idle(&uid));
        assert!(
            tokio::time::timeout(LIMIT, &mut idle).await.is_err(),
            "it is still being made"
        );
        all.idle(&"other".into()).await;
        gate.add_permits(1);
        idle.await;
    }

    #[tokio::test(start_paused = true)]
    async fn taking_down_does_not_wait_for_work_that_makes_nothing_and_it_never_does_later() {
        let (all, uid, gate, cancel) = parts();
        let (hung, made) = (hang(&gate), Arc::new(Mutex::new(None)));
        let later = made.clone();
        let work = |permit: Permit| async move {
            hung.await;
            *later.lock() = Some(permit.begin().is_some());
        };
        cancel.cancel();
        let cut = all.run(&uid, work, LIMIT, &cancel).await;
        assert_eq!(cut, Err(NotDone::Cancelled));
        all.idle(&uid).await;
        gate.add_permits(1);
        while made.lock().is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(*made.lock(), Some(false));
        let cancel = CancellationToken::new();
        let next = all.run(&uid, |_| async { 2 }, LIMIT, &cancel).await;
        assert_eq!(next, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_try_waits_for_the_one_before() {
        let (all, uid, gate, cancel) = parts();
        let hung = hang(&gate);
        let first = all.run(&uid, |_| hung, LIMIT, &cancel).await;
        assert_eq!(first, Err(NotDone::TimedOut));
        let second = all.run(&uid, |_| async { 2 }, LIMIT, &cancel).await;
        assert_eq!(second, Err(NotDone::TimedOut), "it has not begun");
        gate.add_permits(1);
        let third = all.run(&uid, |_| async { 3 }, LIMIT, &cancel).await;
        assert_eq!(third, Ok(3));
        assert!(all.left.lock().is_empty());
    }
}
