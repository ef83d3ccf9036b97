//! The task of a volume: evaluates its state machine whenever something changes that the next step depends on, and executes
//! that step.

use super::attach::{AttachWait, attached};
use super::machine::{CallOutcome, DriverFacts, Known, Next, Step, VolumeFacts, attach_required};
use super::manager::CsiVolumesInner;
use super::record;
use super::volume::{CsiVolume, CsiVolumeState};
use crate::base::clock::{self, Instant};
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{error_chain, spawn_blocking};
use crate::volumes::metrics::StorageOperation;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep_until;

/// How often a volume of a driver with `requiresRepublish` is published again, as often as the Go kubelet syncs a pod.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);
/// When the capabilities of a driver are read again after a failure.
const CAPABILITIES_RETRY: Duration = Duration::from_secs(1);

impl CsiVolumesInner {
    /// The task of a volume.
    pub(super) async fn run(self: Arc<Self>, volume: Arc<CsiVolume>) {
        let mut changes = volume.changes.subscribe();
        let mut registrations = self.sources.drivers.changes();
        let mut last_registration = *registrations.borrow();
        let mut objects = self.sources.objects.changes();
        let mut confirmed = self.sources.in_use.confirmed();
        let mut node = self.sources.node.clone();
        let mut known = self.pods_are_known.subscribe();
        let mut republish_at = clock::instant() + REPUBLISH_INTERVAL;
        let mut attach = AttachWait::default();
        loop {
            changes.borrow_and_update();
            let registration = *registrations.borrow_and_update();
            if registration != last_registration {
                last_registration = registration;
                volume.state.lock().machine.driver_registered();
            }
            objects.borrow_and_update();
            confirmed.borrow_and_update();
            node.borrow_and_update();
            known.borrow_and_update();
            if clock::instant() >= republish_at {
                republish_at = clock::instant() + REPUBLISH_INTERVAL;
                self.republish(&volume);
            }
            let (facts, read_again_at) = self.facts(&volume).await;
            self.follow_attach(&volume, &facts, &mut attach).await;
            let next = volume.state.lock().machine.evaluate(&facts, clock::instant());
            let retry_at = match next {
                Next::Do(step) => {
                    self.run_step(&volume, step).await;
                    continue;
                }
                Next::Forget if self.forget(&volume, &facts) => return,
                Next::Forget => continue,
                Next::Wait(wait) => wait.retry_at,
                Next::Idle => None,
            };
            let times = [retry_at, read_again_at, attach.check_at(), Some(republish_at)];
            let wake_at = times.into_iter().flatten().min().unwrap_or(republish_at);
            // No sender is ever dropped while this runs; if one were, the timer would still wake the task.
            tokio::select! {
                Ok(()) = changes.changed() => {}
                Ok(()) = registrations.changed() => {}
                Ok(()) = objects.changed() => {}
                Ok(()) = confirmed.changed() => {}
                Ok(()) = node.changed() => {}
                Ok(()) = known.changed() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    async fn run_step(self: &Arc<Self>, volume: &Arc<CsiVolume>, step: Step) {
        let began = volume.modify(|state| state.machine.begin(step.clone(), clock::instant()));
        if !began {
            return;
        }
        tracing::debug!(volume = volume.identity.unique_name(), %step, "Step of a CSI volume begins");
        let began_at = clock::instant();
        let executed = catch_panic(PanicScope::Other, self.execute(volume, &step)).await;
        let outcome =
            executed.unwrap_or_else(|panicked| CallOutcome::Unknown(panicked.to_string()));
        if let Some(error) = outcome.failure() {
            let volume = volume.identity.unique_name();
            tracing::warn!(volume, %step, err = error, "Step of a CSI volume failed");
        }
        let is_refused = matches!(outcome, CallOutcome::Failed(_));
        self.record_end(volume, &step, &outcome, clock::since(began_at));
        // Those that wait for the end are woken below, once what belongs to the step is done.
        volume.state.lock().ended(&step, outcome);
        if is_refused && volume.is_undone(&step) {
            self.remove_refused(volume, &step).await;
        }
        if matches!(step, Step::Unpublish(_) | Step::Unstage) || is_refused {
            self.write_record(volume).await;
        }
        self.report_in_use();
        // One receiver is this task's.
        let is_awaited = volume.changes.receiver_count() > 1;
        volume.modify(CsiVolumeState::prune);
        if let (Step::Publish(uid) | Step::Expand(uid), false) = (&step, is_awaited) {
            self.pods_to_sync.mark(uid.clone());
        }
    }

    /// Records the end of a step in the metrics. Upstream's `volume_mount` is the stage together with the publish.
    fn record_end(
        &self,
        volume: &CsiVolume,
        step: &Step,
        outcome: &CallOutcome,
        mut took: Duration,
    ) {
        let (plugin, is_success) = (volume.plugin(), *outcome == CallOutcome::Done);
        let is_migrated = volume.is_migrated();
        let mut state = volume.state.lock();
        let [set_up, tear_down, unstage] = if volume.identity.is_block() {
            [StorageOperation::Map, StorageOperation::Unmap, StorageOperation::UnmapDevice]
        } else {
            [StorageOperation::Mount, StorageOperation::Unmount, StorageOperation::UnmountDevice]
        };
        let operation = match step {
            // Most do not call the driver. Those that do are recorded where they do.
            Step::Expand(_) => return,
            Step::Stage if is_success => {
                state.stage_took = took;
                return;
            }
            Step::Stage | Step::Republish(_) => set_up,
            Step::Publish(uid) => {
                took += std::mem::take(&mut state.stage_took);
                let pod = state.pods.get_mut(uid).filter(|_| is_success);
                let since = pod.and_then(|pod| pod.waits_since.take());
                if let Some(since) = since {
                    self.sources.metrics.mounted(&plugin, clock::since(since));
                }
                set_up
            }
            Step::Unpublish(_) => tear_down,
            Step::Unstage => unstage,
        };
        drop(state);
        let metrics = &self.sources.metrics;
        metrics.operation(&plugin, operation, is_success, is_migrated, took);
    }

    /// Brings the record in line after something was undone. A record that says too much is no harm.
    async fn write_record(&self, volume: &Arc<CsiVolume>) {
        let (root, identity) = (self.root.clone(), volume.identity.clone());
        let new = volume.record();
        let work = move || match new {
            Some(new) => record::write(&root, &new),
            None => record::remove(&root, &identity),
        };
        match spawn_blocking(work).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let volume = volume.identity.unique_name();
                tracing::warn!(volume, err = %error_chain(&error), "Failed to update the record of a CSI volume");
            }
            // The tokio runtime is shutting down.
            Err(_) => {}
        }
    }

    /// What the next step depends on, and when to read it again if a driver could not be asked.
    async fn facts(&self, volume: &CsiVolume) -> (VolumeFacts, Option<Instant>) {
        let driver = volume.identity.driver();
        let mut read_again_at = None;
        let driver_facts = match self.sources.drivers.get(driver) {
            None => None,
            Some(client) => match client.capabilities().await {
                Ok(capabilities) => Some(DriverFacts {
                    // The stage of a block volume also makes its directories.
                    stages: capabilities.stage_unstage || volume.identity.is_block(),
                }),
                Err(error) => {
                    read_again_at = Some(clock::instant() + CAPABILITIES_RETRY);
                    tracing::debug!(driverName = driver, err = %error, "Failed to read the capabilities of a CSI driver");
                    None
                }
            },
        };
        if !volume.is_inline() {
            // If it is not known, what was known stays. The first list wakes the task.
            if let Ok(object) = self.sources.objects.get(driver).await {
                let object = object.as_deref().cloned().unwrap_or_default();
                let now = object.attach_required;
                let mut state = volume.state.lock();
                state.check_label(&object);
                state.attach_required = Some(attach_required(state.attach_required, now));
            }
        }
        let name = volume.identity.unique_name();
        let confirmed = self.sources.in_use.confirmed().borrow().clone();
        let version = confirmed.get(&name);
        let node = self.sources.node.borrow().clone();
        let facts = VolumeFacts {
            driver: driver_facts,
            attach_required: volume.has_to_be_attached(),
            is_confirmed_in_use: version.is_some(),
            is_attached: version.is_some_and(|version| {
                node.is_some_and(|node| attached(&node, &name, version).is_some())
            }),
            pods_are_known: *self.pods_are_known.borrow(),
        };
        (facts, read_again_at)
    }

    /// Forgets a volume of which nothing is left, unless a pod wants it again.
    fn forget(&self, volume: &Arc<CsiVolume>, facts: &VolumeFacts) -> bool {
        let mut volumes = self.volumes.lock();
        let is_over = {
            let state = volume.state.lock();
            state.machine.next(facts, clock::instant()) == Next::Forget
        };
        if is_over {
            volumes.remove(&volume.identity.unique_name());
        }
        is_over
    }

    fn republish(&self, volume: &CsiVolume) {
        let object = self.sources.objects.get_now(volume.identity.driver());
        let is_required = object.is_ok_and(|it| it.is_some_and(|it| it.requires_republish));
        if is_required {
            let mut state = volume.state.lock();
            let uids: Vec<_> = state.machine.pods().keys().cloned().collect();
            uids.iter().for_each(|uid| state.machine.request_republish(uid));
        }
    }
}

impl CsiVolume {
    /// Whether nothing is there after a step that failed.
    fn is_undone(&self, step: &Step) -> bool {
        let state = self.state.lock();
        match step.pod() {
            Some(uid) => !state.machine.is_held_by(uid),
            None => state.machine.staged() == Known::No,
        }
    }
}
