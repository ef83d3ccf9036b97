//! Reclaims disk space: removes containers and images in one task, and reads the disk usage of pods in another.

use super::decide::{self, Observations};
use super::disk::{self, DiskStep, IMAGE_REMOVAL_TIMEOUT, NodeReclaim, Reclaimable};
use super::measurements::take_ended;
use super::thresholds::EvictionThreshold;
use super::{DiskUsage, EvictionManager, ReclaimOutcome};
use crate::base::clock::{self, Instant};
use crate::base::panics::PanicScope;
use crate::base::{ScopedTask, error_chain, spawn_blocking, spawn_scoped};
use crate::node::eviction::observe::MeasuredSignals;
use std::time::Duration;
use tokio::time::timeout;

/// How long the measurement after the removal of an image may take.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of disk reclaim.
#[derive(Default)]
pub(super) struct DiskReclaim {
    /// The running removal of containers and images. It may take minutes.
    freeing: Option<NodeReclaimTask>,
    /// When the last removal ended, and its thresholds; cleared when these are no longer met or a pod is evicted.
    freed: Option<(Instant, Vec<EvictionThreshold>)>,
    /// The running measurement of the disk usage of pods, for an eviction.
    usage: Option<DiskUsage>,
}

struct NodeReclaimTask {
    task: ScopedTask<anyhow::Result<()>>,
    since: Instant,
    goal: Vec<EvictionThreshold>,
}

impl DiskReclaim {
    /// Updates the state after a measurement; resets it if no disk threshold is met, unless the disks did not respond.
    pub(super) fn observe(&mut self, observed: &Observations, act_on: &[EvictionThreshold]) {
        if let Some(NodeReclaimTask { task, goal, .. }) = &mut self.freeing
            && let Some(freed) = futures::FutureExt::now_or_never(task)
        {
            if let Ok(Ok(Err(error))) = freed {
                tracing::warn!(err = %error_chain(error.as_ref()), "Eviction manager: unexpected error when attempting to reduce resource pressure");
            }
            self.freed = Some((clock::instant(), std::mem::take(goal)));
            self.freeing = None;
        }
        if act_on.iter().any(|one| one.signal.resource().is_on_disk()) {
            return;
        }
        if observed.keys().any(|signal| signal.resource().is_on_disk()) {
            self.usage = None;
            self.freed = None;
        }
    }
}

impl EvictionManager {
    /// Takes the next step for a disk threshold that is met. Never waits for disks or the runtime.
    pub(super) fn reclaim_disk(
        &mut self,
        threshold: &EvictionThreshold,
        act_on: &[EvictionThreshold],
        measured: &MeasuredSignals,
    ) -> ReclaimOutcome {
        // The disk usage of terminating pods is measured too rarely to be subtracted, so wait until they have ended.
        if !self.terminating.is_empty() {
            self.shorten_grace(threshold);
            self.disk.usage = None;
            return ReclaimOutcome::InProgress;
        }
        let reclaim = match (&self.disk.freeing, &self.disk.freed) {
            (Some(NodeReclaimTask { since, .. }), _) => NodeReclaim::Running { since: *since },
            (None, Some((at, goal))) => NodeReclaim::Ended {
                goal,
                measured: self.measurements.has_measured_disks_since(*at),
            },
            (None, None) => NodeReclaim::NotStarted,
        };
        match disk::step(threshold, measured.layout, reclaim, clock::instant()) {
            DiskStep::Wait => ReclaimOutcome::InProgress,
            DiskStep::Free => {
                self.report_attempt(threshold.signal.resource());
                self.free_disk(act_on, measured);
                ReclaimOutcome::InProgress
            }
            DiskStep::Evict => self.evict_for_disk(threshold, measured),
        }
    }

    fn free_disk(&mut self, act_on: &[EvictionThreshold], measured: &MeasuredSignals) {
        let reclaimable =
            |threshold: &EvictionThreshold| Reclaimable::of(threshold.signal, measured.layout);
        let is_on_disk = |threshold: &&EvictionThreshold| threshold.signal.resource().is_on_disk();
        let is_reclaimable = |threshold: &&EvictionThreshold| !reclaimable(threshold).is_nothing();
        let goal = act_on.iter().filter(is_on_disk).filter(is_reclaimable);
        let goal: Vec<_> = goal.copied().collect();
        let containers = goal.iter().any(|threshold| reclaimable(threshold).containers);
        let image_thresholds = goal.iter().filter(|threshold| reclaimable(threshold).images);
        let (thresholds, since) = (image_thresholds.copied().collect::<Vec<_>>(), clock::instant());
        let disks = self.measurements.disks_only();
        let is_done = move || {
            let (thresholds, disks) = (thresholds.clone(), disks.clone());
            async move {
                let measuring = timeout(MEASURE_TIMEOUT, spawn_blocking(disks)).await;
                let Ok(Ok(measured)) = measuring else {
                    // The disk did not respond: remove no further images.
                    return true;
                };
                let now = &measured.observations;
                let is_over = |threshold: &EvictionThreshold| {
                    now.contains_key(&threshold.signal) && !decide::is_met(threshold, now, true)
                };
                thresholds.iter().all(is_over) || clock::since(since) >= IMAGE_REMOVAL_TIMEOUT
            }
        };
        let reclaim = self.deps.reclaim.clone();
        let freeing = async move { reclaim.free_disk(containers, is_done).await };
        self.disk.freeing =
            Some(NodeReclaimTask { task: spawn_scoped(PanicScope::CleanUp, freeing), since, goal });
    }

    fn evict_for_disk(
        &mut self,
        threshold: &EvictionThreshold,
        measured: &MeasuredSignals,
    ) -> ReclaimOutcome {
        let resource = threshold.signal.resource();
        if self.disk.usage.is_none() {
            if Reclaimable::of(threshold.signal, measured.layout).is_nothing() {
                self.report_attempt(resource);
            }
            self.disk.usage = Some(self.read_disk_usage());
        }
        let Some(usage) = take_ended(&mut self.disk.usage) else {
            return ReclaimOutcome::InProgress;
        };
        let Some(candidates) = self.candidates(usage.flatten(), resource) else {
            return ReclaimOutcome::InProgress;
        };
        self.disk.freed = None;
        self.evict_first(candidates, threshold, measured)
    }
}
