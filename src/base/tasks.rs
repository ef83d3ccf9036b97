//! Named tasks with a common shutdown; tasks for single units of work; optional timers.

use super::clock::Instant;
use super::panics::{PanicScope, Panicked, catch_panic};
use std::future::Future;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// A task that is aborted when this is dropped.
pub type ScopedTask<T = ()> = AbortOnDropHandle<Result<T, Panicked>>;

/// Spawns a task for one unit of work. A panic in it is logged with `scope`, counted, and ends nothing else. Work
/// that ignores the shutdown is dropped when the process ends; if it writes, the caller has to wait for it, for
/// example with a [`TaskTracker`](tokio_util::task::TaskTracker).
pub fn spawn<T: Send + 'static>(
    scope: PanicScope,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<Result<T, Panicked>> {
    tokio::spawn(catch_panic(scope, work))
}

/// [`spawn`] for work that is cancelled when its owner is dropped.
pub fn spawn_scoped<T: Send + 'static>(
    scope: PanicScope,
    work: impl Future<Output = T> + Send + 'static,
) -> ScopedTask<T> {
    AbortOnDropHandle::new(spawn(scope, work))
}

/// Waits until `due`; forever if it is `None`.
pub async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The end of a named task.
#[derive(Debug)]
pub struct TaskEnd {
    /// The task's name.
    pub name: &'static str,
    /// Its result; a panic is an error.
    pub result: anyhow::Result<()>,
}

/// The long-lived tasks of the process. A task that ends before shutdown is a bug, which [`Tasks::first_end`]
/// reports.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<TaskEnd>,
    shutdown: CancellationToken,
}

impl Tasks {
    /// Without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The shutdown token, which every task must observe.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Starts a task.
    pub fn spawn<F>(&mut self, name: &'static str, future: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.set.spawn(async move {
            let result = catch_panic(PanicScope::Task(name), future).await;
            TaskEnd { name, result: result.unwrap_or_else(|panicked| Err(panicked.into())) }
        });
    }

    /// Starts a task for work that does not end by itself; it is dropped at shutdown.
    pub fn spawn_until_shutdown<F>(&mut self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shutdown = self.shutdown();
        self.spawn(name, async move {
            shutdown.run_until_cancelled(work).await;
            Ok(())
        });
    }

    /// Waits for the first task to end; `None` if there are no tasks.
    pub async fn first_end(&mut self) -> Option<TaskEnd> {
        match self.set.join_next().await? {
            Ok(end) => Some(end),
            Err(error) => Some(TaskEnd { name: "unknown", result: Err(error.into()) }),
        }
    }

    /// Cancels all tasks and waits until they have ended; the caller sets the timeout.
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
