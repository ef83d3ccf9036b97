//! Named tasks and the one shutdown they share.

use super::panics::{Place, contain};
use std::future::Future;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

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
            let result = contain(Place::Task(name), future).await;
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

    /// Tells every task to stop and waits until all have; the caller sets the deadline.
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
    async fn a_task_that_panics_ends_with_an_error_that_names_it() {
        let mut tasks = Tasks::new();
        tasks.spawn("unlucky", async { panic!("as scripted") });
        let end = tasks.first_end().await.unwrap();
        assert_eq!(end.name, "unlucky");
        assert_eq!(end.result.unwrap_err().to_string(), "panicked: as scripted");
    }
}
