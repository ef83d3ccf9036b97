//! The volumes of one pod: their states and results.

mod kind;

pub(super) use kind::{Attempt, Kind, PlannedKind, PlannedVolume, ReadyVolume, SetUp, VolumePod};

use super::state::{self, VolumeState, VolumeWork};
use super::{PreparedVolumes, VolumeError, VolumePath, VolumesNotReady};
use crate::base::clock::{self, Instant};
use crate::base::error_chain;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{
    OwnedMutexGuard, OwnedRwLockReadGuard, RwLock, RwLockReadGuard, Semaphore, SemaphorePermit,
    watch,
};
use tokio_util::sync::CancellationToken;

/// How long a sync waits for volumes (upstream's `podAttachAndMountTimeout`, 2 min 3 s).
pub(super) const TIMEOUT: Duration = Duration::from_secs(123);
/// How many volumes of a pod are set up concurrently.
const MAX_CONCURRENT: usize = 8;

/// The bind mounts of sub-paths of one volume that are in progress.
#[derive(Default)]
struct VolumeBinds {
    /// Held during a bind mount. The volume may hang; this lock limits the damage to one thread per volume.
    lock: Arc<tokio::sync::Mutex<()>>,
    /// The container that they are for.
    container: Option<String>,
}

/// The guard of a volume's bind mounts.
pub(super) struct BindGuard {
    pod: Arc<PodVolumes>,
    volume: String,
    _lock: OwnedMutexGuard<()>,
}

impl Drop for BindGuard {
    fn drop(&mut self) {
        if let Some(binds) = self.pod.binds.lock().get_mut(&self.volume) {
            binds.container = None;
        }
    }
}

pub(super) struct PodVolumes {
    /// In the order of the plan.
    volumes: watch::Sender<Vec<TrackedVolume>>,
    /// Whether configmaps, secrets or tokens may have changed since the content volumes were last updated.
    outdated: watch::Sender<bool>,
    /// Read-locked while files are created below the pod's directory; true once the pod is being torn down.
    torn_down: RwLock<bool>,
    /// Fires once the pod is being torn down.
    pub(super) ended: CancellationToken,
    /// Read-locked while programs run that `ended` ends.
    programs: Arc<RwLock<()>>,
    slots: Semaphore,
    /// By volume name.
    binds: Mutex<BTreeMap<String, VolumeBinds>>,
}

impl Default for PodVolumes {
    fn default() -> Self {
        Self {
            volumes: watch::Sender::new(Vec::new()),
            outdated: watch::Sender::new(true),
            torn_down: RwLock::default(),
            ended: CancellationToken::new(),
            programs: Arc::default(),
            slots: Semaphore::new(MAX_CONCURRENT),
            binds: Mutex::default(),
        }
    }
}

pub(super) struct TrackedVolume {
    planned: Arc<PlannedVolume>,
    state: VolumeState,
    /// Start of the current or last attempt.
    started_at: Instant,
    ready_volume: Option<Arc<ReadyVolume>>,
    /// The error of the last attempt, until a sync reports it.
    error: Option<VolumeError>,
}

impl TrackedVolume {
    fn is(&self, planned: &PlannedVolume) -> bool {
        self.planned.name == planned.name
    }

    fn may_change(&self) -> bool {
        let ready = self.ready_volume.as_ref();
        ready.is_some_and(|ready| self.planned.kind.may_change(&ready.immutable))
    }
}

impl PodVolumes {
    /// A guard for creating files below the pod's directory; an error once the pod is being torn down.
    pub(super) fn creation_guard(&self) -> Result<RwLockReadGuard<'_, bool>, VolumeError> {
        match self.torn_down.try_read() {
            Ok(torn_down) if !*torn_down => Ok(torn_down),
            _ => Err(VolumeError::Cancelled),
        }
    }

    /// A guard for running programs that `ended` ends; an error once the pod is being torn down.
    pub(super) fn program_guard(&self) -> Result<OwnedRwLockReadGuard<()>, VolumeError> {
        let guard = self.programs.clone().try_read_owned();
        let guard = guard.map_err(|_| VolumeError::Cancelled)?;
        if self.ended.is_cancelled() {
            return Err(VolumeError::Cancelled);
        }
        Ok(guard)
    }

    /// Marks the pod as torn down and waits until no files are being created and no programs run.
    pub(super) async fn tear_down(&self) {
        *self.torn_down.write().await = true;
        // Attempts that wait for a mount or for a slot are woken, and find the pod torn down.
        self.ended.cancel();
        self.slots.close();
        // What they mount is there now, or never will be.
        drop(self.programs.write().await);
    }

    /// Waits for one of the slots of concurrent setups.
    pub(super) async fn slot(&self, name: &str) -> Option<SemaphorePermit<'_>> {
        if let Ok(slot) = self.slots.try_acquire() {
            return Some(slot);
        }
        self.set_waiting(name, state::OTHERS.into());
        self.slots.acquire().await.ok()
    }

    /// Waits for other bind mounts of the volume, and reserves it for this container.
    pub(super) async fn lock_for_binds(
        self: &Arc<Self>,
        volume: &str,
        container: &str,
    ) -> BindGuard {
        let lock = {
            let mut binds = self.binds.lock();
            binds.entry(volume.to_owned()).or_default().lock.clone()
        };
        let lock = lock.lock_owned().await;
        if let Some(binds) = self.binds.lock().get_mut(volume) {
            binds.container = Some(container.to_owned());
        }
        BindGuard { pod: self.clone(), volume: volume.to_owned(), _lock: lock }
    }

    pub(super) fn set_outdated(&self, outdated: bool) {
        self.outdated.send_replace(outdated);
    }

    /// Waits until configmaps, secrets or tokens may have changed.
    pub(super) async fn outdated(&self) {
        // Fails only without a sender, which this owns.
        let _ = self.outdated.subscribe().wait_for(|outdated| *outdated).await;
    }

    /// Notifies of state changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<TrackedVolume>> {
        self.volumes.subscribe()
    }

    /// What a sync does with a volume.
    pub(super) fn work(&self, planned: &PlannedVolume) -> VolumeWork {
        let volumes = self.volumes.borrow();
        let known = volumes.iter().find(|volume| volume.is(planned));
        known.map_or(VolumeWork::SetUp, |volume| {
            let is_as_planned = volume.planned.is_same(planned);
            volume.state.work(is_as_planned, volume.may_change())
        })
    }

    /// Starts an attempt. Returns the volume to update; `None` if it is to be set up.
    pub(super) fn begin(
        &self,
        planned: &Arc<PlannedVolume>,
        work: VolumeWork,
    ) -> Option<Arc<ReadyVolume>> {
        let mut ready = None;
        self.volumes.send_modify(|volumes| {
            let at = volumes.iter().position(|volume| volume.is(planned));
            let mut volume = match at.map(|at| volumes.remove(at)) {
                Some(volume) if volume.planned.is_same(planned) => volume,
                _ => TrackedVolume {
                    planned: planned.clone(),
                    state: VolumeState::new(clock::timestamp()),
                    started_at: clock::instant(),
                    ready_volume: None,
                    error: None,
                },
            };
            volume.started_at = clock::instant();
            volume.error = None;
            volume.state.waits(planned.kind.waits_for(), clock::timestamp());
            if work == VolumeWork::Refresh {
                ready = volume.ready_volume.clone();
            }
            volumes.insert(at.unwrap_or(volumes.len()), volume);
        });
        ready
    }

    /// Records what the attempt waits for.
    pub(super) fn set_waiting(&self, name: &str, wait: Cow<'static, str>) {
        self.volumes.send_if_modified(|volumes| {
            if let Some(volume) = volumes.iter_mut().find(|one| one.planned.name == name) {
                volume.state.waits(wait, clock::timestamp());
            }
            // Syncs wait for the end of attempts only, so they are not notified.
            false
        });
    }

    /// Ends an attempt. Returns whether the volume became ready while no sync waited for it.
    pub(super) fn end(&self, name: &str, ended: Result<ReadyVolume, VolumeError>) -> bool {
        let is_made = ended.is_ok();
        let mut was_ready = false;
        self.volumes.send_modify(|volumes| {
            let Some(volume) = volumes.iter_mut().find(|one| one.planned.name == name) else {
                return;
            };
            volume.error = match ended {
                Ok(mut ready) => {
                    let update_error = ready.update_error.take();
                    volume.ready_volume = Some(Arc::new(ready));
                    update_error
                }
                Err(error) => Some(error),
            };
            was_ready = volume.state.ready;
            let text = volume.error.as_ref().map(|error| error_chain(error));
            volume.state.ended(is_made, text, clock::timestamp());
        });
        is_made && !was_ready && self.volumes.receiver_count() == 0
    }

    /// The number of volumes of a plan with an attempt in progress, and whether one has failed.
    pub(super) fn progress(&self, plan: &[Arc<PlannedVolume>]) -> (usize, bool) {
        let volumes = self.volumes.borrow();
        let of_plan = || volumes.iter().filter(|volume| is_in(plan, volume));
        let under_way = of_plan().filter(|volume| volume.state.is_under_way());
        let failed = |volume: &TrackedVolume| {
            !volume.state.is_under_way() && !volume.state.ready && volume.error.is_some()
        };
        (under_way.count(), of_plan().any(failed))
    }

    /// The results for the volumes of a plan, with the errors that were not reported yet. `timed_out` is whether the
    /// sync's timeout has expired; attempts in progress then count as errors.
    pub(super) fn report(
        &self,
        plan: &[Arc<PlannedVolume>],
        timed_out: bool,
    ) -> Result<PreparedVolumes, VolumesNotReady> {
        let mut prepared = PreparedVolumes::default();
        let (mut errors, mut pending) = (Vec::new(), Vec::new());
        self.volumes.send_if_modified(|volumes| {
            // Forgets volumes that the pod no longer mounts; their directories stay until teardown.
            volumes.retain(|volume| volume.state.is_under_way() || is_in(plan, volume));
            for volume in volumes.iter_mut().filter(|volume| is_in(plan, volume)) {
                let name = &volume.planned.name;
                match (&volume.ready_volume, volume.error.take()) {
                    (Some(ready), update_error) if volume.state.ready => {
                        prepared.paths.insert(name.clone(), ready.path.clone());
                        prepared.update_errors.extend(update_error);
                    }
                    (_, Some(error)) => errors.push(error),
                    (_, None) => {
                        pending.push((name.clone(), clock::since(volume.started_at) >= TIMEOUT))
                    }
                }
            }
            false
        });
        let all = timed_out || errors.is_empty();
        pending.retain(|(_, is_overdue)| all || *is_overdue);
        if !pending.is_empty() {
            let unmounted = pending.into_iter().map(|(name, _)| name).collect();
            errors.push(VolumeError::Unmounted(unmounted));
        }
        VolumesNotReady::of(errors).map_or(Ok(prepared), Err)
    }

    /// The errors of these volumes that were not reported yet.
    pub(super) fn take_errors(&self, of: &[Arc<PlannedVolume>]) -> Vec<VolumeError> {
        let mut errors = Vec::new();
        self.volumes.send_if_modified(|volumes| {
            let volumes = volumes.iter_mut().filter(|volume| is_in(of, volume));
            errors.extend(volumes.filter_map(|volume| volume.error.take()));
            false
        });
        errors
    }

    /// The volumes that are set up.
    pub(super) fn ready(&self) -> Vec<(Arc<PlannedVolume>, VolumePath)> {
        let ready = self.tracked().into_iter();
        ready.filter_map(|(planned, path)| Some((planned, path?))).collect()
    }

    /// All volumes, with the paths of those that are set up.
    pub(super) fn tracked(&self) -> Vec<(Arc<PlannedVolume>, Option<VolumePath>)> {
        let volumes = self.volumes.borrow();
        let tracked = volumes.iter().map(|volume| {
            let ready = volume.ready_volume.as_ref();
            let path = ready.filter(|_| volume.state.ready);
            (volume.planned.clone(), path.map(|ready| ready.path.clone()))
        });
        tracked.collect()
    }

    /// A volume has to be set up again.
    pub(super) fn invalidate(&self, name: &str) {
        self.volumes.send_modify(|volumes| {
            if let Some(volume) = volumes.iter_mut().find(|one| one.planned.name == name) {
                volume.state.ready = false;
                volume.ready_volume = None;
            }
        });
    }

    /// The state of each volume, by name.
    pub(super) fn states(&self) -> Vec<(String, VolumeState)> {
        let (volumes, binds) = (self.volumes.borrow(), self.binds.lock());
        let state = |volume: &TrackedVolume| {
            let name = volume.planned.name.clone();
            let binds = binds.get(&name);
            let state = VolumeState {
                binds_for: binds.and_then(|binds| binds.container.clone()),
                ..volume.state.clone()
            };
            (name, state)
        };
        volumes.iter().map(state).collect()
    }
}

fn is_in(plan: &[Arc<PlannedVolume>], volume: &TrackedVolume) -> bool {
    plan.iter().any(|planned| volume.is(planned))
}
