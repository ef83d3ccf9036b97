//! The transaction scripts for one pod: set it up, stop it, clean up after it.
//!
//! * Owns: the failures that explain why a container waits (upstream's reason cache).
//! * Woken by: the pod's worker, one turn at a time; statuses also by whoever saw an input change.
//! * Publishes: API statuses through the status manager.
//! * Must never run beside itself for one UID, or wait for anything but its own pod.
//! * Answers to upstream's `Kubelet.SyncPod`, `SyncTerminatingPod` and `SyncTerminatedPod`.

mod clean_up;
mod statuses;
pub mod syncer;

use crate::{
    base::chain,
    events::{EventRecorder, ObjectRef},
    journal::Journal,
    kuberuntime::{KubeGenericRuntimeManager, SyncReport, SyncRequest},
    model::{GraceDeadline, Pod, PodExt, PodStatus, PodUid, reasons::event},
    pleg::RuntimeStateReader,
    pod_cache::{Owner, PodCache},
    prober::ProbeManager,
    status::generate::FailedBecause,
    volumes::VolumeManager,
};
use anyhow::Context as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use statuses::{Stage, deadline_left};
use std::{sync::Arc, time::Duration};
use syncer::{PodSyncer, RetryDelay, SyncTurn, TerminationReason, UpdateKind};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub use statuses::StatusPublisher;

/// How soon a pod is looked at again whose picture moved on under the look.
const UNSETTLED_AGAIN: Duration = Duration::from_millis(50);
/// How long a pod that is to stop waits for a picture that cannot be read before it is stopped on
/// the last one.
const STOP_WITHOUT_PICTURE: Duration = Duration::from_secs(5);

/// The syncer of real pods.
pub struct PodSync {
    /// Makes the runtime match a pod.
    pub runtime: KubeGenericRuntimeManager,
    /// The runtime's picture.
    pub cache: PodCache,
    /// Statuses.
    pub statuses: Arc<StatusPublisher>,
    /// Probes.
    pub probes: ProbeManager,
    /// Volumes.
    pub volumes: VolumeManager,
    /// Facts that survive a restart.
    pub journal: Journal,
    /// Events.
    pub events: EventRecorder,
    /// The runtime's health.
    pub state: RuntimeStateReader,
}

impl PodSync {
    async fn sync(&self, pod: Arc<Pod>, cancel: CancellationToken) -> SyncTurn {
        let uid = pod.uid();
        let picture = tokio::select! {
            picture = self.cache.settled(&uid) => picture,
            () = cancel.cancelled() => return turn(Ok(false), RetryDelay::Resync),
        };
        let Some(status) = self.statuses.publish(&pod) else {
            // Touched again before anything could be shown: a moment, not a failure.
            let again = Some(Instant::now() + UNSETTLED_AGAIN);
            return SyncTurn {
                again,
                ..turn(Ok(false), RetryDelay::Error)
            };
        };
        let left = deadline_left(&pod, &status, Timestamp::now());
        if left == Some(Duration::ZERO) {
            self.fail_for_deadline(&pod);
        }
        let status = self.statuses.statuses().get(&uid).unwrap_or(status);
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            self.statuses.record_terminal(&uid, &status).await;
            return turn(Ok(true), RetryDelay::Resync);
        }
        let network = if pod.host_network() {
            None
        } else {
            self.state.borrow().network_error()
        };
        if let Some(text) = network {
            let object = ObjectRef::pod(&pod);
            self.events
                .warning(&object, event::NETWORK_NOT_READY, text.clone());
            return turn(Err(anyhow::anyhow!(text)), RetryDelay::NetworkNotReady);
        }
        let report = match Box::pin(self.set_up(&pod, picture, &cancel)).await {
            Ok(report) => report,
            Err(error) => return turn(Err(error), RetryDelay::Error),
        };
        self.finish_turn(&pod, report, left).await
    }

    async fn set_up(
        &self,
        pod: &Arc<Pod>,
        picture: Arc<PodStatus>,
        cancel: &CancellationToken,
    ) -> anyhow::Result<SyncReport> {
        let volumes = match self.volumes.prepare(pod).await {
            Ok(volumes) => volumes,
            Err(error) => {
                let text = chain(&error);
                self.events
                    .warning(&ObjectRef::pod(pod), event::FAILED_MOUNT, text);
                return Err(error.into());
            }
        };
        self.probes.add_pod(pod);
        let request = SyncRequest {
            pod,
            status: picture,
            volumes: &volumes,
            cancel,
        };
        let report = Box::pin(self.runtime.sync_pod(request)).await;
        if report.acted {
            Box::pin(self.collect_superseded(pod)).await;
        }
        Ok(report)
    }

    /// Old dead instances go as soon as newer ones have taken their place (P-02, P-05).
    async fn collect_superseded(&self, pod: &Pod) {
        let picture = self.cache.latest(&pod.uid());
        let collected = self
            .runtime
            .collect_pod(&picture, &Owner::of(pod), false)
            .await;
        if let Err(error) = collected {
            tracing::warn!(
                pod = %pod.full_name(),
                err = %chain(error.as_ref()),
                "Cannot remove old containers yet"
            );
        }
    }

    async fn finish_turn(
        &self,
        pod: &Arc<Pod>,
        report: SyncReport,
        deadline: Option<Duration>,
    ) -> SyncTurn {
        self.statuses.note_report(&pod.uid(), &report);
        self.statuses.publish(pod);
        let again = [report.again_in, deadline].into_iter().flatten().min();
        let delay = match report.needs_retry() {
            true => RetryDelay::Error,
            false => RetryDelay::Resync,
        };
        let result = match (report.error, report.cancelled) {
            (Some(error), false) => Err(error),
            _ => Ok(false),
        };
        SyncTurn {
            result,
            again: again.map(|delay| Instant::now() + delay),
            delay,
        }
    }

    fn fail_for_deadline(&self, pod: &Arc<Pod>) {
        let message = "Pod was active on the node longer than the specified deadline";
        self.events
            .normal(&ObjectRef::pod(pod), event::DEADLINE_EXCEEDED, message);
        let because = FailedBecause {
            reason: event::DEADLINE_EXCEEDED.into(),
            message: message.into(),
        };
        self.statuses.note_failed(&pod.uid(), because);
        self.statuses.publish(pod);
    }

    async fn terminate(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> anyhow::Result<()> {
        let uid = pod.uid();
        if let TerminationReason::Evicted { reason, message } = reason {
            self.statuses
                .note_failed(&uid, FailedBecause { reason, message });
        }
        self.statuses.note_stage(&uid, Stage::Ending);
        self.statuses.publish(&pod);
        self.probes.stop_liveness_and_startup(&uid);
        let picture = self.picture_to_stop(&uid).await;
        let killed = self.runtime.kill_pod(Some(&pod), &picture, grace).await;
        if let Err(error) = killed {
            let text = format!("error killing pod: {}", chain(error.as_ref()));
            self.events
                .warning(&ObjectRef::pod(&pod), event::FAILED_KILL_POD, text);
            return Err(error);
        }
        self.probes.remove_pod(&uid);
        self.statuses.note_stage(&uid, Stage::Ended);
        let settled = tokio::time::timeout(STOP_WITHOUT_PICTURE, self.cache.settled(&uid)).await;
        settled.context("the pod has stopped, but how it ended cannot be read yet")?;
        self.statuses.publish(&pod);
        Ok(())
    }

    /// The settled picture; the last one when it cannot be had soon, for stopping needs no more than
    /// ids.
    async fn picture_to_stop(&self, uid: &PodUid) -> Arc<PodStatus> {
        match tokio::time::timeout(STOP_WITHOUT_PICTURE, self.cache.settled(uid)).await {
            Ok(picture) => picture,
            Err(_) => {
                tracing::warn!("podUID" = %uid, "Stopping a pod that cannot be read");
                self.cache.latest(uid)
            }
        }
    }

    /// Stops a pod of which only the runtime knows. At the start it may have been listed and not read
    /// yet; that nothing of it is known then does not mean that there is nothing to stop.
    async fn terminate_orphan(
        &self,
        running: &PodStatus,
        grace: watch::Receiver<GraceDeadline>,
    ) -> anyhow::Result<()> {
        let picture = self.picture_to_stop(&running.uid).await;
        if !picture.is_empty() {
            return self.runtime.kill_pod(None, &picture, grace).await;
        }
        let settled = self.cache.try_settled(&running.uid).is_some();
        anyhow::ensure!(settled, "the pod cannot be read, so it cannot be stopped");
        Ok(())
    }

    async fn finish(&self, pod: Arc<Pod>) -> anyhow::Result<()> {
        let uid = pod.uid();
        self.statuses.publish(&pod);
        self.volumes.teardown(&uid).await?;
        self.statuses.finish(&pod);
        if let Some(status) = self.statuses.statuses().get(&uid)
            && matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
        {
            self.statuses.record_terminal(&uid, &status).await;
        }
        Ok(())
    }
}

impl PodSyncer for PodSync {
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        _kind: UpdateKind,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, SyncTurn> {
        Box::pin(self.sync(pod, cancel))
    }

    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(self.terminate(pod, grace, reason))
    }

    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async move { self.terminate_orphan(&running, grace).await })
    }

    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(self.finish(pod))
    }
}

fn turn(result: anyhow::Result<bool>, delay: RetryDelay) -> SyncTurn {
    SyncTurn {
        result,
        again: None,
        delay,
    }
}
