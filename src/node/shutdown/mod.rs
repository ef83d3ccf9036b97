//! Stops pods before the machine goes down.
//!
//! * Owns: logind's inhibit lock; the record of the last shutdown.
//! * Woken by: logind's announcement that the machine goes down, or does not after all.
//! * Publishes: that the node is going down; kills through the pod workers; events; two gauges.
//! * Must never hold up the machine for longer than configured, nor release the lock before the pods have stopped or
//!   their time is over.
//! * Answers to upstream's `pkg/kubelet/nodeshutdown`.

pub mod plan;
mod record;
#[cfg(test)]
mod tests;

use crate::{
    base::{chain, metrics::Metrics},
    host::{InhibitLock, Logind, write_inhibit_delay},
    model::{Pod, PodExt},
    node::active_pods::{active_pods, until_all, until_finished},
    pods::{
        pod_sync::syncer::TerminationReason,
        pod_workers::{PodWorkers, UpdateOptions},
    },
    state::{
        events::{EventRecorder, ObjectRef},
        node_shutdown::NodeShutdownWriter,
        pod_manager::PodManager,
    },
};
use anyhow::Context as _;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use plan::{RESERVE, ShutdownPhase};
use prometheus_client::metrics::gauge::Gauge;
use record::ShutdownRecord;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// The delays before logind is tried again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// How often, and with what first delay, logind is checked for its new configuration.
const RELOAD_TRIES: u32 = 6;
const RELOAD_DELAY: Duration = Duration::from_millis(100);

/// What the manager works with.
pub struct ShutdownDeps {
    /// The node's name.
    pub node_name: String,
    /// Who has how long.
    pub phases: Vec<ShutdownPhase>,
    /// The kubelet's directory.
    pub root: PathBuf,
    /// Where configurations of logind are added.
    pub logind_config: PathBuf,
    /// Who announces that the machine goes down.
    pub logind: Logind,
    /// The desired pods.
    pub pods: PodManager,
    /// Stops them.
    pub workers: PodWorkers,
    /// Events.
    pub events: EventRecorder,
    /// Whether the node is going down.
    pub shutting_down: NodeShutdownWriter,
    /// Whether statuses go to an API server.
    pub reports: bool,
}

/// Stops pods before the machine goes down.
pub struct ShutdownManager {
    deps: ShutdownDeps,
    record: ShutdownRecord,
    /// How long the last statuses of pods may take.
    reserve: Duration,
    start_time: Gauge,
    end_time: Gauge,
}

impl ShutdownManager {
    /// A manager that does not watch yet.
    pub fn new(deps: ShutdownDeps, metrics: &Metrics) -> Self {
        let gauge = |name, help| metrics.register(name, help, Gauge::default());
        Self {
            deps,
            record: ShutdownRecord::default(),
            reserve: RESERVE,
            start_time: gauge(
                "kubelet_graceful_shutdown_start_time_seconds",
                "Last graceful shutdown start time since unix epoch in seconds",
            ),
            end_time: gauge(
                "kubelet_graceful_shutdown_end_time_seconds",
                "Last graceful shutdown end time since unix epoch in seconds",
            ),
        }
    }

    /// Works until the kubelet ends.
    ///
    /// # Errors
    /// None; the type is that of tasks.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        shutdown.run_until_cancelled(self.work()).await;
        Ok(())
    }

    async fn work(&mut self) {
        self.load_record().await;
        let mut delay = FIRST_RETRY;
        let mut last = String::new();
        loop {
            let started = Instant::now();
            let Err(error) = self.watch().await;
            if started.elapsed() > MAX_RETRY {
                delay = FIRST_RETRY;
            }
            let text = chain(error.as_ref());
            // Without logind, this is not logged every minute.
            if text != last {
                tracing::error!(err = text, "Unable to watch the node for shutdown events");
                last = text;
            }
            sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY);
        }
    }

    async fn load_record(&mut self) {
        let root = self.deps.root.clone();
        match tokio::task::spawn_blocking(move || ShutdownRecord::load(&root)).await {
            Ok(Ok(record)) => self.record = record,
            Ok(Err(error)) => {
                tracing::error!(err = %error, "Failed to load graceful shutdown state");
            }
            Err(_) => {}
        }
        self.show_record();
    }

    fn show_record(&self) {
        let seconds = |time: Option<Timestamp>| time.map_or(0, Timestamp::as_second);
        self.start_time.set(seconds(self.record.start_time));
        self.end_time.set(seconds(self.record.end_time));
    }

    async fn store_record(&mut self, record: ShutdownRecord) {
        self.record = record.clone();
        self.show_record();
        let root = self.deps.root.clone();
        let stored = tokio::task::spawn_blocking(move || record.store(&root)).await;
        if let Ok(Err(error)) = stored {
            tracing::error!(err = %error, "Failed to store graceful shutdown state");
        }
    }

    /// Watches until the connection to logind breaks.
    async fn watch(&mut self) -> anyhow::Result<std::convert::Infallible> {
        self.reserve = self.make_logind_wait().await?;
        let logind = &self.deps.logind;
        // Before the property: a change in between is seen.
        let announced = logind.shutdowns().await?;
        // While nothing was connected, a shutdown may have begun or been cancelled.
        let current = logind.preparing_for_shutdown().await;
        let current = current.context("failed reading PreparingForShutdown")?;
        // logind grants no lock during a shutdown.
        let mut lock = if current {
            None
        } else {
            Some(self.lock().await?)
        };
        tracing::info!("Watching the node for shutdown events");
        let mut announced = stream::iter([current]).chain(announced);
        while let Some(is_shutting_down) = announced.next().await {
            if is_shutting_down == *self.deps.shutting_down.borrow() {
                continue;
            }
            self.announce(is_shutting_down);
            if is_shutting_down {
                self.stop_pods().await;
                // What follows is the end of the machine, and of this process.
                lock.take();
            } else if lock.is_none() {
                lock = Some(self.lock().await?);
            }
        }
        anyhow::bail!("the connection to logind ended")
    }

    async fn lock(&self) -> anyhow::Result<InhibitLock> {
        let lock = self.deps.logind.inhibit_shutdown().await;
        lock.context("failed creating systemd inhibitor")
    }

    /// Makes sure that logind waits for as long as pods may take to stop; what is left of that time for their last
    /// statuses.
    async fn make_logind_wait(&self) -> anyhow::Result<Duration> {
        let logind = &self.deps.logind;
        let pods = plan::total(&self.deps.phases);
        let wanted = pods.saturating_add(RESERVE);
        let delay = logind.inhibit_delay();
        let mut now = delay.await.context("failed reading InhibitDelayMaxUSec")?;
        if now < wanted
            && let Err(error) = self.override_inhibit_delay(wanted, &mut now).await
        {
            if now < pods {
                return Err(error);
            }
            tracing::warn!(
                inhibitDelay = ?now,
                err = chain(error.as_ref()),
                "Pods have their grace periods at a shutdown, but their last statuses may not reach the API server"
            );
        }
        Ok(plan::reserve(now, pods))
    }

    /// Has logind wait for longer; `now` is how long it waits.
    async fn override_inhibit_delay(
        &self,
        wanted: Duration,
        now: &mut Duration,
    ) -> anyhow::Result<()> {
        let logind = &self.deps.logind;
        let directory = self.deps.logind_config.clone();
        tokio::task::spawn_blocking(move || write_inhibit_delay(&directory, wanted))
            .await?
            .context("unable to override inhibit delay by shutdown manager")?;
        logind
            .reload()
            .await
            .context("unable to reload logind conf")?;
        let mut pause = RELOAD_DELAY;
        for _ in 0..RELOAD_TRIES {
            sleep(pause).await;
            pause *= 2;
            *now = logind.inhibit_delay().await?;
            if *now >= wanted {
                return Ok(());
            }
        }
        anyhow::bail!("logind delays the shutdown for {now:?} only, and pods may take {wanted:?}")
    }

    fn announce(&self, is_shutting_down: bool) {
        let what = if is_shutting_down {
            "shutdown event"
        } else {
            "shutdown cancellation"
        };
        tracing::info!(event = what, "Shutdown manager detected new shutdown event");
        let node = ObjectRef::node(&self.deps.node_name);
        let text = format!("Shutdown manager detected {what}");
        self.deps.events.normal(&node, "Shutdown", text);
        self.deps.shutting_down.send_replace(is_shutting_down);
    }

    /// Stops all pods, phase by phase, and waits for their last statuses to be known.
    async fn stop_pods(&mut self) {
        let begun = ShutdownRecord {
            start_time: Some(Timestamp::now()),
            end_time: None,
        };
        self.store_record(begun.clone()).await;
        let pods = active_pods(&self.deps.pods, &self.deps.workers);
        for (phase, pods) in plan::groups(&self.deps.phases, &pods) {
            self.stop_phase(phase, &pods).await;
        }
        if self.deps.reports {
            let reported = until_all(&pods, |pod| self.is_reported(pod));
            if timeout_at(Instant::now() + self.reserve, reported)
                .await
                .is_err()
            {
                tracing::warn!("Timed out waiting for final pod statuses");
            }
        }
        let ended = ShutdownRecord {
            end_time: Some(Timestamp::now()),
            ..begun
        };
        self.store_record(ended).await;
        tracing::info!(
            "Shutdown manager completed processing shutdown event, node will shutdown shortly"
        );
    }

    async fn stop_phase(&self, phase: ShutdownPhase, pods: &[Arc<Pod>]) {
        let end = Instant::now() + Duration::from_secs(phase.grace.unsigned_abs());
        for pod in pods {
            let grace = plan::grace(pod, phase);
            tracing::info!(
                pod = %pod.log_name(),
                podUID = %pod.uid(),
                gracePeriod = grace,
                "Shutdown manager killing pod with gracePeriod"
            );
            let kill = UpdateOptions::kill(pod.clone(), TerminationReason::NodeShutdown);
            self.deps.workers.update_pod(kill.with_grace(grace));
        }
        let finished = until_finished(&self.deps.workers, pods);
        let what = if timeout_at(end, finished).await.is_ok() {
            "Done waiting for all pods in group to terminate"
        } else {
            "Shutdown manager pod killing time out"
        };
        tracing::info!(
            gracePeriod = phase.grace,
            priority = phase.priority,
            "{what}"
        );
    }

    /// Whether the API server knows that a pod of its own has ended.
    fn is_reported(&self, pod: &Pod) -> bool {
        let known = self.deps.pods.get(&pod.uid());
        pod.is_static() || known.is_none_or(|pod| pod.is_terminal())
    }
}
