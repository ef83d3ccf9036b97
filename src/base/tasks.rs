//! Named tasks and the one shutdown they share; tasks that carry out one item of work; timers that may not be set.

use super::panics::{PanicScope, Panicked, contain};
use std::future::Future;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// A task that is aborted when this is dropped.
pub type ScopedTask<T = ()> = AbortOnDropHandle<Result<T, Panicked>>;

/// Starts a task for one item of work, beside the caller. A panic in it is logged with `place`, counted, and ends
/// nothing else. Work that does not watch the shutdown ends with the process; a caller whose work writes has to wait
/// for it, as with a [`TaskTracker`](tokio_util::task::TaskTracker).
pub fn spawn<T: Send + 'static>(
    place: PanicScope,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<Result<T, Panicked>> {
    tokio::spawn(contain(place, work))
}

/// [`spawn`] for work that is given up when its owner is dropped.
pub fn spawn_scoped<T: Send + 'static>(
    place: PanicScope,
    work: impl Future<Output = T> + Send + 'static,
) -> ScopedTask<T> {
    AbortOnDropHandle::new(spawn(place, work))
}

/// Waits until `due`; without one, for ever.
pub async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// How a named task ended.
#[derive(Debug)]
pub struct TaskEnd {
    /// The task's name.
    pub name: &'static str,
    /// What it returned; a panic is an error too.
    pub result: anyhow::Result<()>,
}

/// The long-lived tasks of the process. One that ends before shutdown is a bug, reported by
/// [`Tasks::first_end`] with its name.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<TaskEnd>,
    shutdown: CancellationToken,
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The token every task must watch.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Starts a task.
    pub fn spawn<F>(&mut self, name: &'static str, future: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.set.spawn(async move {
            let result = contain(PanicScope::Task(name), future).await;
            TaskEnd {
                name,
                result: result.unwrap_or_else(|panicked| Err(panicked.into())),
            }
        });
    }

    /// Waits for the first task to end; `None` when there are none (left).
    pub async fn first_end(&mut self) -> Option<TaskEnd> {
        match self.set.join_next().await? {
            Ok(end) => Some(end),
            Err(error) => Some(TaskEnd {
                name: "unknown",
                result: Err(error.into()),
            }),
        }
    }

    /// Cancels every task and waits until all have stopped; the caller sets the deadline.
    pub async fn stop(&mut self) {
        self.shutdown.cancel();
        while self.set.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_early_end_names_the_task() {
        let mut tasks = Tasks::new();
        let token = tasks.shutdown();
        tasks.spawn("patient", async move {
            token.cancelled().await;
            Ok(())
        });
        tasks.spawn("hasty", async { anyhow::bail!("no") });
        let end = tasks.first_end().await.unwrap();
        assert_eq!(end.name, "hasty");
        assert!(end.result.is_err());
        tasks.stop().await;
        assert!(tasks.first_end().await.is_none());
    }

    #[tokio::test]
    async fn work_beside_its_caller_ends_alone_when_it_panics_or_its_owner_is_dropped() {
        let ended = spawn(PanicScope::Other, async { panic!("as scripted") });
        let ended: Result<(), Panicked> = ended.await.unwrap();
        assert_eq!(ended.unwrap_err().to_string(), "panicked: as scripted");
        assert_eq!(spawn(PanicScope::Other, async { 1 }).await.unwrap(), Ok(1));
        let (held, given_back) = tokio::sync::oneshot::channel::<()>();
        let task = spawn_scoped(PanicScope::Other, async move {
            let _held = held;
            std::future::pending::<()>().await
        });
        tokio::task::yield_now().await;
        drop(task);
        assert!(given_back.await.is_err());
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_with_an_error_that_names_it() {
        let mut tasks = Tasks::new();
        tasks.spawn("unlucky", async { panic!("as scripted") });
        let end = tasks.first_end().await.unwrap();
        assert_eq!(end.name, "unlucky");
        assert_eq!(end.result.unwrap_err().to_string(), "panicked: as scripted");
    }
}
