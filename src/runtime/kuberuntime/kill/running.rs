//! Stops of containers in progress. Each is a task of its own, so that it continues if the sync that began it is
//! cancelled. If the pod is terminated then, the termination joins this stop, and may shorten its grace period.

use crate::base::otel::in_current_context;
use crate::base::panics::PanicScope;
use crate::base::spawn;
use crate::cri::CriError;
use crate::model::{ContainerId, GraceDeadline};
use anyhow::Context as _;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// The stops in progress, at most one per container.
#[derive(Clone, Debug, Default)]
pub(in crate::runtime::kuberuntime) struct RunningStops {
    stops: Arc<Mutex<HashMap<ContainerId, RunningStop>>>,
}

/// One stop; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RunningStop {
    grace: Arc<watch::Sender<GraceDeadline>>,
    ended: watch::Receiver<Option<Result<(), CriError>>>,
}

/// Removes a stop from the list when it is dropped, also if the task panics.
struct RunningStopGuard(RunningStops, ContainerId);

impl Drop for RunningStopGuard {
    fn drop(&mut self) {
        self.0.stops.lock().remove(&self.1);
    }
}

impl RunningStops {
    /// Whether a stop of this container is in progress.
    pub(super) fn contains(&self, id: &ContainerId) -> bool {
        self.stops.lock().contains_key(id)
    }

    /// Joins the stop of this container that is in progress, limiting its grace period to `grace`, or begins `stop`.
    pub(super) fn join_or_begin<F>(
        &self,
        id: &ContainerId,
        grace: GraceDeadline,
        stop: impl FnOnce(watch::Receiver<GraceDeadline>) -> F,
    ) -> RunningStop
    where
        F: Future<Output = Result<(), CriError>> + Send + 'static,
    {
        let mut stops = self.stops.lock();
        if let Some(running) = stops.get(id) {
            running.shorten(grace);
            return running.clone();
        }
        let (sender, receiver) = watch::channel(grace);
        let (report, ended) = watch::channel(None);
        let (work, guard) = (stop(receiver), RunningStopGuard(self.clone(), id.clone()));
        let stopping = in_current_context(async move {
            let result = work.await;
            // Before the result is sent, so that a caller that retries then begins another stop.
            drop(guard);
            report.send_replace(Some(result));
        });
        let running = RunningStop { grace: Arc::new(sender), ended };
        stops.insert(id.clone(), running.clone());
        // During shutdown `spawn` drops the task immediately, and the guard's drop takes this lock.
        drop(stops);
        spawn(PanicScope::ContainerStop, stopping);
        running
    }
}

impl RunningStop {
    fn shorten(&self, grace: GraceDeadline) {
        self.grace.send_if_modified(|known| {
            let shorter = grace.deadline < known.deadline;
            if shorter {
                *known = grace;
            }
            shorter
        });
    }

    /// Waits until it has ended, with or without an error.
    pub(super) async fn ended(&self) {
        let _ = self.ended.clone().wait_for(Option::is_some).await;
    }

    /// Waits for its result and shortens it whenever `grace` gets shorter.
    pub(super) async fn result(
        &self,
        mut grace: watch::Receiver<GraceDeadline>,
    ) -> anyhow::Result<()> {
        let mut ended = self.ended.clone();
        loop {
            self.shorten(*grace.borrow_and_update());
            tokio::select! {
                ended = ended.wait_for(Option::is_some) => {
                    let result = ended.context("stopping the container panicked")?.clone();
                    return Ok(result.unwrap_or(Ok(()))?);
                }
                Ok(()) = grace.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use std::time::Duration;
    use tokio::time::sleep_until;

    fn grace(seconds: i64) -> GraceDeadline {
        GraceDeadline::starting(clock::instant(), seconds)
    }

    /// A stop that takes all of its grace.
    async fn stubborn(mut grace: watch::Receiver<GraceDeadline>) -> Result<(), CriError> {
        loop {
            let deadline = grace.borrow_and_update().deadline;
            tokio::select! {
                () = sleep_until(deadline) => return Ok(()),
                Ok(()) = grace.changed() => {}
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_caller_joins_the_stop_and_can_only_shorten_it() {
        let (stops, id, started_at) = (RunningStops::default(), "c".into(), clock::instant());
        let first = stops.join_or_begin(&id, grace(3600), stubborn);
        let (_keep, never) = watch::channel(grace(7200));
        let waiting = tokio::spawn(async move { first.result(never).await });
        let (less, receiver) = watch::channel(grace(60));
        let second = stops.join_or_begin(&id, grace(60), |_| async { panic!("a second stop") });
        let shortened = tokio::spawn(async move { second.result(receiver).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        less.send_replace(grace(4));
        shortened.await.unwrap().unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(clock::since(started_at), Duration::from_secs(5));
        assert!(stops.stops.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_goes_on_when_the_one_who_began_it_is_cancelled() {
        let (stops, id) = (RunningStops::default(), "c".into());
        let first = stops.join_or_begin(&id, grace(10), stubborn);
        let (_keep, receiver) = watch::channel(grace(10));
        let waited = tokio::time::timeout(Duration::from_secs(2), first.result(receiver));
        assert!(waited.await.is_err());
        let started_at = clock::instant();
        let second = stops.join_or_begin(&id, grace(10), |_| async { panic!("a second stop") });
        second.ended().await;
        assert_eq!(clock::since(started_at), Duration::from_secs(8));
    }

    #[test]
    fn a_stop_that_begins_while_the_process_ends_is_dropped_at_once() {
        let tokio_runtime = tokio::runtime::Runtime::new().unwrap();
        let handle = tokio_runtime.handle().clone();
        drop(tokio_runtime);
        let _entered = handle.enter();
        let stops = RunningStops::default();
        let stop = stops.join_or_begin(&"c".into(), grace(1), |_| async { Ok(()) });
        assert!(stops.stops.lock().is_empty());
        assert!(stop.ended.has_changed().is_err(), "its task is gone");
    }

    #[tokio::test]
    async fn a_stop_that_panics_is_an_error_and_the_next_one_is_another() {
        let (stops, id) = (RunningStops::default(), "c".into());
        let first = stops.join_or_begin(&id, grace(1), |_| async { panic!("on purpose") });
        let (_keep, receiver) = watch::channel(grace(1));
        assert!(first.result(receiver.clone()).await.is_err());
        let second = stops.join_or_begin(&id, grace(1), |_| async { Ok(()) });
        second.result(receiver).await.unwrap();
    }
}
