//! Graceful node shutdown: terminates pods before the machine shuts down.
//!
//! * Owns: logind's inhibit lock; the record of the last shutdown.
//! * Woken by: logind's `PrepareForShutdown` signal.
//! * Publishes: the shutdown flag; kills through the pod workers; events; two gauges.
//! * Must never delay the shutdown for longer than configured, or release the lock before the pods have terminated or
//!   their time has passed.
//! * Upstream: `pkg/kubelet/nodeshutdown`.

pub mod plan;
mod record;
#[cfg(test)]
mod tests;

use crate::base::clock::{self, Instant};
use crate::base::metrics::{Metrics, metric_set};
use crate::base::{error_chain, spawn_blocking};
use crate::host::{InhibitLock, Logind, write_inhibit_delay};
use crate::model::{Pod, PodExt};
use crate::node::active_pods::{
    TERMINATION_CHECK_INTERVAL, active_pods, until_all, until_finished,
};
use crate::pods::pod_config::SourcesReadyReader;
use crate::pods::pod_sync::syncer::TerminationReason;
use crate::pods::pod_workers::{PodWorkers, UpdatePodOptions};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::node_shutdown::NodeShutdownWriter;
use crate::state::pod_manager::PodManager;
use anyhow::Context as _;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use plan::{FINAL_STATUS_TIME, ShutdownPhase};
use record::ShutdownRecord;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout, timeout_at};

/// Delays before a reconnect to logind.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// How long a kubelet that starts during a shutdown waits for its pods. logind does not wait for it then.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of checks, and first delay, until logind has applied its new configuration.
const RELOAD_TRIES: u32 = 6;
const RELOAD_DELAY: Duration = Duration::from_millis(100);

/// Dependencies of the shutdown manager.
pub struct ShutdownDeps {
    /// The node's name.
    pub node_name: String,
    /// The phases, by pod priority.
    pub phases: Vec<ShutdownPhase>,
    /// The kubelet's directory.
    pub root: PathBuf,
    /// Directory for drop-in configuration files of logind.
    pub logind_config: PathBuf,
    /// The D-Bus client of logind.
    pub logind: Logind,
    /// Whether the sources of pods have delivered.
    pub sources: SourcesReadyReader,
    /// The desired pods.
    pub pod_manager: PodManager,
    /// Terminates the pods.
    pub workers: PodWorkers,
    /// Events.
    pub events: EventRecorder,
    /// Writing end of the shutdown flag.
    pub shutting_down: NodeShutdownWriter,
    /// Whether there is an API server, which statuses are sent to.
    pub has_api_server: bool,
    /// Returns whether no volume is left on the node that no pod wants.
    pub volumes_are_undone: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Terminates pods before the machine shuts down.
pub struct ShutdownManager {
    deps: ShutdownDeps,
    record: ShutdownRecord,
    /// Time for the final statuses of pods, after the pods have terminated.
    final_status_time: Duration,
    metrics: ShutdownMetrics,
}

metric_set! {
    struct ShutdownMetrics {
        start_time: Gauge = "kubelet_graceful_shutdown_start_time_seconds",
            "Last graceful shutdown start time since unix epoch in seconds";
        end_time: Gauge = "kubelet_graceful_shutdown_end_time_seconds",
            "Last graceful shutdown end time since unix epoch in seconds";
    }
}

impl ShutdownManager {
    /// Builds the manager; it starts with [`Self::run`].
    pub fn new(deps: ShutdownDeps, metrics: &Metrics) -> Self {
        Self {
            deps,
            record: ShutdownRecord::default(),
            final_status_time: FINAL_STATUS_TIME,
            metrics: ShutdownMetrics::register(metrics),
        }
    }

    /// Runs without an end.
    pub async fn run(mut self) {
        self.load_record().await;
        let mut delay = FIRST_RETRY;
        let mut last = String::new();
        loop {
            let started = clock::instant();
            let Err(error) = self.watch().await;
            if clock::since(started) > MAX_RETRY {
                delay = FIRST_RETRY;
            }
            let text = error_chain(error.as_ref());
            // On a machine without logind, the same error is logged only once.
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
        match spawn_blocking(move || ShutdownRecord::load(&root)).await {
            Ok(Ok(record)) => self.record = record,
            Ok(Err(error)) => {
                tracing::error!(err = %error, "Failed to load graceful shutdown state");
            }
            Err(_) => {}
        }
        self.set_gauges();
    }

    fn set_gauges(&self) {
        let seconds = |time: Option<Timestamp>| time.map_or(0, Timestamp::as_second);
        self.metrics.start_time.set(seconds(self.record.start_time));
        self.metrics.end_time.set(seconds(self.record.end_time));
    }

    async fn store_record(&mut self, record: ShutdownRecord) {
        self.record = record.clone();
        self.set_gauges();
        let root = self.deps.root.clone();
        let stored = spawn_blocking(move || record.store(&root)).await;
        if let Ok(Err(error)) = stored {
            tracing::error!(err = %error, "Failed to store graceful shutdown state");
        }
    }

    /// Watches for shutdowns until the connection to logind fails.
    async fn watch(&mut self) -> anyhow::Result<std::convert::Infallible> {
        self.final_status_time = self.ensure_inhibit_delay().await?;
        let logind = &self.deps.logind;
        // Subscribes before it reads the property, so that no change is missed.
        let announced = logind.shutdowns().await?;
        // A shutdown may have begun or been cancelled while disconnected.
        let current = logind.preparing_for_shutdown().await;
        let current = current.context("failed reading PreparingForShutdown")?;
        // logind grants no inhibit lock during a shutdown.
        let mut lock = if current { None } else { Some(self.lock().await?) };
        tracing::info!("Watching the node for shutdown events");
        let mut announced = stream::iter([current]).chain(announced);
        while let Some(is_shutting_down) = announced.next().await {
            if is_shutting_down == *self.deps.shutting_down.borrow() {
                continue;
            }
            self.announce(is_shutting_down);
            if is_shutting_down {
                self.stop_pods().await;
                // Releases the lock: logind continues with the shutdown, which ends this process.
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

    /// Ensures that logind's maximum inhibit delay covers the time that pods may take. Returns the time that remains
    /// for their final statuses.
    async fn ensure_inhibit_delay(&self) -> anyhow::Result<Duration> {
        let logind = &self.deps.logind;
        let pods = plan::total(&self.deps.phases);
        let wanted = pods.saturating_add(FINAL_STATUS_TIME);
        let delay = logind.inhibit_delay();
        let mut current = delay.await.context("failed reading InhibitDelayMaxUSec")?;
        if current < wanted
            && let Err(error) = self.override_inhibit_delay(wanted, &mut current).await
        {
            if current < pods {
                return Err(error);
            }
            tracing::warn!(
                inhibitDelay = ?current,
                err = error_chain(error.as_ref()),
                "Inhibit delay is too short for final pod statuses; they may not reach the API server before shutdown"
            );
        }
        Ok(plan::final_status_time(current, pods))
    }

    /// Raises logind's maximum inhibit delay; `current` is set to the new value.
    async fn override_inhibit_delay(
        &self,
        wanted: Duration,
        current: &mut Duration,
    ) -> anyhow::Result<()> {
        let logind = &self.deps.logind;
        let directory = self.deps.logind_config.clone();
        spawn_blocking(move || write_inhibit_delay(&directory, wanted))
            .await?
            .context("unable to override inhibit delay by shutdown manager")?;
        logind.reload().await.context("unable to reload logind conf")?;
        let mut pause = RELOAD_DELAY;
        for _ in 0..RELOAD_TRIES {
            sleep(pause).await;
            pause *= 2;
            *current = logind.inhibit_delay().await?;
            if *current >= wanted {
                return Ok(());
            }
        }
        anyhow::bail!(
            "node shutdown manager was timed out after {RELOAD_TRIES} attempts waiting for logind InhibitDelayMaxSec to \
             update to {wanted:?} (ShutdownGracePeriod), current value is {current:?}"
        )
    }

    fn announce(&self, is_shutting_down: bool) {
        let what = if is_shutting_down { "shutdown event" } else { "shutdown cancellation" };
        tracing::info!(event = what, "Shutdown manager detected new shutdown event");
        let node = ObjectRef::node(&self.deps.node_name);
        let text = format!("Shutdown manager detected {what}");
        self.deps.events.normal(&node, "Shutdown", text);
        self.deps.shutting_down.send_replace(is_shutting_down);
    }

    /// Terminates all pods, phase by phase, and waits until their final statuses are reported. A kubelet that starts
    /// during a shutdown keeps the pods that run, so that they are terminated here as well.
    async fn stop_pods(&mut self) {
        let started = ShutdownRecord { start_time: Some(clock::timestamp()), end_time: None };
        self.store_record(started.clone()).await;
        let seen = async {
            while !self.deps.sources.all_seen() {
                sleep(TERMINATION_CHECK_INTERVAL).await;
            }
        };
        let _ = timeout(SOURCES_TIMEOUT, seen).await;
        let pods = active_pods(&self.deps.pod_manager, &self.deps.workers);
        let pods_end = clock::instant() + plan::total(&self.deps.phases);
        for (phase, pods) in plan::groups(&self.deps.phases, &pods) {
            self.stop_phase(phase, &pods).await;
        }
        tokio::join!(
            self.wait_for_statuses(&pods),
            self.wait_for_volumes(pods_end + self.final_status_time)
        );
        let finished = ShutdownRecord { end_time: Some(clock::timestamp()), ..started };
        self.store_record(finished).await;
        tracing::info!(
            "Shutdown manager completed processing shutdown event, node will shutdown shortly"
        );
    }

    async fn wait_for_statuses(&self, pods: &[Arc<Pod>]) {
        if !self.deps.has_api_server {
            return;
        }
        let reported = until_all(pods, |pod| self.is_reported(pod));
        let reported = timeout_at(clock::instant() + self.final_status_time, reported);
        if reported.await.is_err() {
            tracing::warn!("Timed out waiting for final pod statuses");
        }
    }

    /// Waits until the volumes of the pods are unstaged: only then can they be used on another node. They may take what
    /// the pods have left of their time.
    async fn wait_for_volumes(&self, end: Instant) {
        let undone = async {
            while !(self.deps.volumes_are_undone)() {
                sleep(TERMINATION_CHECK_INTERVAL).await;
            }
        };
        if timeout_at(end, undone).await.is_err() {
            tracing::warn!("Timed out waiting for volumes to be unstaged");
        }
    }

    async fn stop_phase(&self, phase: ShutdownPhase, pods: &[Arc<Pod>]) {
        let end = clock::instant() + Duration::from_secs(phase.grace.unsigned_abs());
        for pod in pods {
            let grace = plan::grace(pod, phase);
            tracing::info!(
                pod = %pod.log_name(),
                podUID = %pod.uid(),
                gracePeriod = grace,
                "Shutdown manager killing pod with gracePeriod"
            );
            let kill = UpdatePodOptions::kill(pod.clone(), TerminationReason::NodeShutdown);
            self.deps.workers.update_pod(kill.with_grace(grace));
        }
        let finished = until_finished(&self.deps.workers, pods);
        let what = if timeout_at(end, finished).await.is_ok() {
            "Done waiting for all pods in group to terminate"
        } else {
            "Shutdown manager pod killing time out"
        };
        tracing::info!(gracePeriod = phase.grace, priority = phase.priority, "{what}");
    }

    /// Whether the API server has the final status of a pod. Static and removed pods count as reported.
    fn is_reported(&self, pod: &Pod) -> bool {
        let known = self.deps.pod_manager.get(&pod.uid());
        pod.is_static() || known.is_none_or(|pod| pod.is_terminal())
    }
}
