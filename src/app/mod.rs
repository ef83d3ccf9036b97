//! Wiring: builds everything, names every task, runs, drains.
//!
//! * Owns: the order of start and stop.
//! * Woken by: the signals SIGTERM and SIGINT, a task that ends before its time.
//! * Publishes: the process's exit.
//! * Must never decide anything about pods, and never stop a container because the kubelet stops.
//! * Answers to upstream's `cmd/kubelet/app/server.go` and `NewMainKubelet`.
//!
//! Start: sockets bound, runtime reachable, tasks spawned, first complete list, sources heard. Stop: no
//! new work, workers end their step, journal flushed, servers drained, under one deadline.

mod build;
mod memory;
mod node;
mod views;

use crate::{
    base::{TaskEnd, Tasks, chain},
    config::KubeletConfig,
    cri,
    host::Machine,
    journal::Journal,
    pod_workers::PodWorkers,
    server::{Handlers, HealthChecks, Listener},
};
use anyhow::Context as _;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

pub use build::Boards;

/// How long the tasks may take to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the journal's last writes may take after that.
const FLUSH: Duration = Duration::from_secs(2);

/// A kubelet whose sockets are bound and whose state is read; nothing runs yet.
pub struct App {
    config: KubeletConfig,
    boards: Boards,
    healthz: Option<Listener>,
    read_only: Option<Listener>,
    _lock: Option<node::Lock>,
}

impl App {
    /// Binds sockets, takes the lock, reads the journal. Every error names what is wrong.
    pub async fn build(config: KubeletConfig) -> anyhow::Result<Self> {
        report_settings(&config);
        let machine = Machine::read()?;
        node::check(&config, &machine)?;
        let lock = node::take_lock(config.lock_file.as_deref()).await?;
        node::set_oom_score_adj(config.oom_score_adj);
        let healthz = bind("healthz", config.server.healthz).await?;
        let read_only = bind("read-only", config.server.read_only).await?;
        let boards = Boards::open(&config, machine)?;
        Ok(Self {
            config,
            boards,
            healthz,
            read_only,
            _lock: lock,
        })
    }

    /// Runs until a signal asks it to stop. An error is a task that failed.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let asked = async move {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        self.run_until(asked).await
    }

    /// Runs until the future says why to stop; tests bring their own.
    pub async fn run_until(
        mut self,
        asked: impl Future<Output = &'static str>,
    ) -> anyhow::Result<()> {
        let mut tasks = Tasks::new();
        self.serve(&mut tasks);
        tokio::pin!(asked);
        let runtime = self.boards.runtime.clone();
        let info = tokio::select! {
            info = cri::wait_for_runtime(&runtime) => info,
            why = &mut asked => {
                tracing::info!(why, "Stopping before the runtime was reached");
                return stop(&mut tasks, None).await;
            }
        };
        let journal = self.boards.journal.clone();
        let workers = build::start(&self.config, self.boards, &info, &mut tasks).await?;
        tracing::info!(node = self.config.node_name, "Started kubelet");
        let early = tokio::select! {
            end = tasks.first_end() => end,
            why = &mut asked => {
                tracing::info!(why, "Stopping; pods are left as they are");
                None
            }
        };
        stop(&mut tasks, Some((&workers, &journal))).await?;
        early.map_or(Ok(()), failed)
    }

    fn serve(&mut self, tasks: &mut Tasks) {
        if let Some(listener) = self.healthz.take() {
            let checks = HealthChecks::ping().with("log", || Ok(()));
            let serving = listener.serve(Handlers::health(checks), tasks.shutdown());
            tasks.spawn("server.healthz", serving);
        }
        if let Some(listener) = self.read_only.take() {
            let checks = self.boards.health_checks(self.config.sync_frequency);
            let views = views::of(&self.boards, &self.config.node_name);
            let serving = listener.serve(Handlers::read_only(checks, views), tasks.shutdown());
            tasks.spawn("server.readonly", serving);
        }
    }
}

async fn bind(
    name: &'static str,
    address: Option<std::net::SocketAddr>,
) -> anyhow::Result<Option<Listener>> {
    match address {
        Some(address) => Ok(Some(Listener::bind(name, address).await?)),
        None => Ok(None),
    }
}

async fn stop(tasks: &mut Tasks, pods: Option<(&PodWorkers, &Journal)>) -> anyhow::Result<()> {
    let draining = async {
        tasks.shutdown().cancel();
        if let Some((workers, _)) = pods {
            workers.stop().await;
        }
        tasks.stop().await;
    };
    if tokio::time::timeout(DRAIN, draining).await.is_err() {
        tracing::warn!(seconds = DRAIN.as_secs(), "Some tasks did not stop in time");
    }
    // The last steps of workers may come after the journal's own task has ended.
    if let Some((_, journal)) = pods
        && tokio::time::timeout(FLUSH, journal.flush()).await.is_err()
    {
        tracing::warn!("The journal could not be written in time");
    }
    Ok(())
}

fn failed(end: TaskEnd) -> anyhow::Result<()> {
    let error = match end.result {
        Ok(()) => anyhow::anyhow!("it ended before it was asked to"),
        Err(error) => error,
    };
    tracing::error!(task = end.name, err = %chain(error.as_ref()), "A task ended early");
    Err(error.context(format!("task {} ended", end.name)))
}

fn report_settings(config: &KubeletConfig) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if !config.unsupported.is_empty() {
        tracing::warn!(
            settings = config.unsupported.join(", "),
            "These settings are accepted and have no effect yet"
        );
    }
}
