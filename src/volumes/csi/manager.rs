//! The CSI volumes of the node.
//!
//! Each volume has a task. It evaluates the volume's state machine whenever something changes that the next step depends
//! on (a pod's wish, the end of a step, a registration, a CSIDriver object, the Node), executes that step, and ends when
//! nothing is left of the volume. Nothing is polled but the capacities of volumes that may grow.

use super::files;
use super::identity::VolumeIdentity;
use super::inputs::CsiSources;
use super::machine::{NodeVolume, Step, StepFailure};
use super::mount_table::MountTable;
use super::paths::{self, PublishDir, StageDir};
use super::recovery::{self, Evidence, RecoveredVolume, UnknownVolume};
use super::setup_error::{setup_error, wait_error};
use super::volume::{CsiVolume, PodOfVolume, PodUsage, PublishRequest};
use crate::base::panics::PanicScope;
use crate::base::{DirtySet, clock, spawn};
use crate::model::PodUid;
use crate::volumes::devices_in_use::DevicesInUse;
use crate::volumes::{KubeletRoot, Mounter, PodDir, VolumeError};
use anyhow::anyhow;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep_until, timeout_at};

/// How long a setup waits for a driver to register, or for another pod that has the volume alone, before an event says so.
/// The volume waits on.
const REPORT_WAIT: Duration = Duration::from_secs(3);
/// How long the teardown of a pod waits for a volume that can do nothing, such as one whose driver is not registered.
const TEARDOWN_WAIT: Duration = Duration::from_secs(10);
/// How many changes of ownership are in progress at most, each on a thread: an eighth of the threads for blocking work.
pub(super) const MAX_WALKS: usize = 64;

/// The CSI volumes of the node; cheap to clone.
#[derive(Clone)]
pub struct CsiVolumes(pub(super) Arc<CsiVolumesInner>);

pub(super) struct CsiVolumesInner {
    pub(super) root: KubeletRoot,
    pub(super) mounter: Arc<dyn Mounter>,
    pub(super) sources: CsiSources,
    /// By unique name. Locked before the state of a volume.
    pub(super) volumes: Mutex<HashMap<String, Arc<CsiVolume>>>,
    /// What an earlier kubelet left and this one cannot undo: such volumes stay in use. `None` until what is on disk has been
    /// read: until then the Node keeps its list.
    unknown: Mutex<Option<Vec<UnknownVolume>>>,
    /// What is in use beside volumes of CSI drivers.
    pub(super) devices: DevicesInUse,
    pub(super) pods_are_known: watch::Sender<bool>,
    /// The drivers whose reports of usage are awaited.
    pub(super) measuring: Mutex<HashSet<String>>,
    /// Limits the changes of ownership in progress.
    pub(super) walks: Arc<Semaphore>,
    /// Pods whose volumes became ready while no sync waited for them.
    pub(super) pods_to_sync: Arc<DirtySet<PodUid>>,
}

impl CsiVolumes {
    /// Volumes of an earlier kubelet are not known before [`Self::recover`].
    pub(in crate::volumes) fn new(
        root: KubeletRoot,
        mounter: Arc<dyn Mounter>,
        sources: CsiSources,
        pods_to_sync: Arc<DirtySet<PodUid>>,
    ) -> Self {
        Self(Arc::new(CsiVolumesInner {
            root,
            mounter,
            sources,
            volumes: Mutex::default(),
            unknown: Mutex::default(),
            devices: DevicesInUse::default(),
            pods_are_known: watch::Sender::new(false),
            measuring: Mutex::default(),
            walks: Arc::new(Semaphore::new(MAX_WALKS)),
            pods_to_sync,
        }))
    }

    /// What is needed from elsewhere.
    pub fn sources(&self) -> &CsiSources {
        &self.0.sources
    }

    /// Takes over the volumes that an earlier kubelet left. Blocking; has to be called once, on a tokio runtime, before
    /// pods are synced.
    pub fn recover(&self) {
        let inner = &self.0;
        let mounts = MountTable::new(inner.mounter.list());
        let found = recovery::recover(&inner.root, &mounts);
        let metrics = &inner.sources.metrics;
        let count = found.volumes.iter().map(|volume| volume.pods.len().max(1));
        let failed = found.unknown.len();
        metrics.reconstructed(count.sum::<usize>() + failed, failed);
        let mut unknown = found.unknown;
        for mut volume in found.volumes {
            let target = StageDir::new(&inner.root, &volume.identity).target();
            // After a reboot, another node may have written to it.
            volume.owner_group = volume.owner_group.filter(|_| mounts.is_mount_point(&target));
            let name = volume.identity.unique_name();
            let directory = StageDir::new(&inner.root, &volume.identity);
            if !inner.take_over(volume) {
                unknown.push(UnknownVolume {
                    path: directory.path().to_owned(),
                    why: "the handle is that of a volume of another mode".to_owned(),
                    evidence: Evidence::UniqueName(name),
                    pod: None,
                });
            }
        }
        for unknown in &unknown {
            let (path, why) = (unknown.path.display(), &unknown.why);
            tracing::warn!(%path, err = why, "A CSI volume is kept as it is, because this kubelet cannot undo it");
        }
        let left = recovery::remove_leftovers(&found.leftovers, &mounts);
        metrics.force_cleaned(found.leftovers.len(), left.len());
        for (leftover, error) in left {
            let path = leftover.path().display();
            tracing::warn!(%path, err = %error, "Failed to remove the directory of a CSI volume");
        }
        let has_unknown = !self.recover_devices() || !unknown.is_empty();
        *inner.unknown.lock() = Some(unknown);
        if has_unknown {
            // Which of the Node's volumes in use these may be is known when the Node is.
            spawn(PanicScope::Other, inner.clone().report_when_node_is_known());
        }
        inner.report_in_use();
        spawn(PanicScope::Other, inner.clone().reread_capacities());
    }

    /// All sources of pods have delivered, and these are the desired pods. What an earlier kubelet left for others, of
    /// which no directory is left either, is undone.
    pub fn pods_are_known(&self, is_desired: impl Fn(&PodUid) -> bool) {
        let inner = &self.0;
        let volumes: Vec<_> = inner.volumes.lock().values().cloned().collect();
        for volume in volumes {
            let state = volume.state.lock();
            let gone = state.machine.pods().keys().filter(|uid| {
                let has_directory = || inner.root.pod(uid).is_ok_and(|pod| pod.path().exists());
                !is_desired(uid) && !has_directory()
            });
            let gone: Vec<_> = gone.cloned().collect();
            drop(state);
            gone.iter().for_each(|uid| volume.unwant(uid));
        }
        inner.pods_are_known.send_if_modified(|known| !std::mem::replace(known, true));
    }

    /// Number of volumes.
    pub fn count(&self) -> usize {
        self.0.volumes.lock().len()
    }

    /// Records that a pod wants a volume, which is then staged and published. Attempts go on until [`Self::unpublish`].
    pub(in crate::volumes) fn begin_publish(&self, request: PublishRequest) -> Publish {
        let request = Arc::new(request);
        let wanted = self.0.want(&request);
        Publish { csi: self.0.clone(), request, wanted }
    }

    /// Whether the pod has or may have a volume.
    pub(in crate::volumes) fn has_volumes_of(&self, uid: &PodUid) -> bool {
        let volumes = self.0.volumes.lock();
        let mut volumes = volumes.values();
        volumes.any(|volume| volume.is_of(uid))
    }

    /// The path of a volume that an earlier kubelet published for this pod, if it is mounted. Blocking.
    pub(in crate::volumes) fn published_earlier(
        &self,
        uid: &PodUid,
        volume: &VolumeIdentity,
    ) -> Option<PathBuf> {
        let volume = self.0.volumes.lock().get(&volume.unique_name()).cloned()?;
        let directory = self.0.publish_dir(&volume, uid).ok()?;
        // The target itself is not asked: its file system may hang or be dead.
        let mounts = MountTable::new(self.0.mounter.list());
        let is_mounted = mounts.is_mount_point(&directory.for_stats());
        is_mounted.then(|| directory.for_containers())
    }

    /// Unpublishes all volumes of a pod whose containers have ended, and unstages those that no other pod wants. Attempts go
    /// on after an error.
    ///
    /// # Errors
    /// A volume is still published: an attempt failed, or nothing can be done at the moment.
    pub(in crate::volumes) async fn unpublish(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let volumes = self.0.volumes_of_pod(uid);
        for volume in &volumes {
            volume.unwant(uid);
        }
        self.0.report_in_use();
        for volume in volumes {
            self.0.wait_for_unpublish(&volume, uid).await?;
        }
        Ok(())
    }

    /// Removes the directories of volumes that are not published for a pod: empty ones, and upstream's file. Blocking.
    pub(in crate::volumes) fn remove_leftovers(&self, pod: &PodDir) {
        remove_links(&paths::pod_devices(pod));
        let directory = paths::pod_volumes(pod);
        let Ok(entries) = fs::read_dir(&directory) else {
            return;
        };
        let mounts = MountTable::new(self.0.mounter.list());
        for entry in entries.flatten() {
            let name = entry.file_name();
            let found = name.to_str().and_then(|name| PublishDir::new(pod, name).ok());
            let removed = found.map(|found| files::remove_published(&found, &mounts));
            if let Some(Err(error)) = removed {
                let path = entry.path();
                tracing::warn!(path = %path.display(), err = %error, "Failed to remove the directory of a CSI volume");
            }
        }
        // Fails if something is left.
        let _ = fs::remove_dir(directory);
    }

    /// What the volume waits for, for a pod.
    pub(in crate::volumes) fn waits_for(&self, uid: &PodUid, volume: &str) -> Option<String> {
        let volume = self.0.volume_of(uid, volume)?;
        let walk = volume.explain_walk(uid);
        walk.or_else(|| {
            let state = volume.state.lock();
            state.machine.waits_for(Some(uid), clock::instant())
        })
    }
}

/// A volume that a pod wants.
pub(in crate::volumes) struct Publish {
    csi: Arc<CsiVolumesInner>,
    request: Arc<PublishRequest>,
    wanted: Result<WantedVolume, VolumeError>,
}

/// The volume, with the failure of an attempt before.
type WantedVolume = (Arc<CsiVolume>, Option<(Step, StepFailure)>);

impl Publish {
    /// Waits until the volume is published, and returns its path: as long as that can succeed without another attempt, which
    /// may be for ever.
    ///
    /// # Errors
    /// An attempt failed, or for a while the driver has not been registered, or another pod has had the volume alone.
    pub(in crate::volumes) async fn finish(self) -> Result<PathBuf, VolumeError> {
        let Self { csi, request, .. } = self;
        let (volume, before) = self.wanted?;
        let (uid, began) = (&request.pod.uid, clock::instant());
        let mut changes = volume.changes.subscribe();
        let report_by = clock::instant() + REPORT_WAIT;
        loop {
            changes.borrow_and_update();
            {
                let state = volume.state.lock();
                if state.machine.is_ready(uid) {
                    break;
                }
                if state.over_limit_at.is_some_and(|at| at >= began) {
                    return Err(VolumeError::AttachmentLimit(request.volume.clone()));
                }
                let failure = state.setup_failure(uid);
                if let Some((step, failure)) = failure.filter(|it| Some(it) != before.as_ref()) {
                    return Err(setup_error(&request.spec, &step, failure.error));
                }
            }
            let driver = csi.sources.drivers.require(volume.identity.driver());
            let taken = volume.state.lock().machine.is_taken_from(uid);
            let why = driver.err().map(|error| error.to_string());
            let why = why.or(taken.map(str::to_owned));
            let is_late = clock::instant() >= report_by;
            if let Some(why) = why.filter(|_| is_late) {
                return Err(wait_error(&request.spec, why));
            }
            tokio::select! {
                changed = changes.changed() => changed.map_err(|_| VolumeError::Cancelled)?,
                () = sleep_until(report_by), if !is_late => {}
            }
        }
        // A pod that does not want it any more has no directory.
        let directory = csi.publish_dir(&volume, uid);
        let directory = directory.map_err(|_| VolumeError::Cancelled)?;
        Ok(directory.for_containers())
    }
}

/// Removes the links to devices of a pod that has none. What else there is of their volumes has directories of its own.
fn remove_links(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            // Fails if it is gone.
            let _ = fs::remove_file(entry.path());
        }
    }
    // Fails if something is left.
    let _ = fs::remove_dir(directory);
}

impl CsiVolumesInner {
    /// The volumes that a pod has or may have.
    pub(super) fn volumes_of_pod(&self, uid: &PodUid) -> Vec<Arc<CsiVolume>> {
        let volumes = self.volumes.lock();
        let volumes = volumes.values().filter(|volume| volume.is_of(uid));
        volumes.cloned().collect()
    }

    /// The volume that a pod mounts by this name.
    pub(super) fn volume_of(&self, uid: &PodUid, name: &str) -> Option<Arc<CsiVolume>> {
        let volumes = self.volumes.lock();
        let volume = volumes.values().find(|volume| {
            let state = volume.state.lock();
            let pod = state.pods.get(uid);
            let request = pod.and_then(|pod| pod.request.as_ref());
            request.is_some_and(|request| request.volume == name)
        });
        volume.cloned()
    }

    /// A pod wants a volume, which gets a task if it has none. Returns it with its last failure for the pod.
    ///
    /// # Errors
    /// The driver's volume is on the node by another PersistentVolume, as a device or for one.
    fn want(self: &Arc<Self>, request: &Arc<PublishRequest>) -> Result<WantedVolume, VolumeError> {
        let identity = &request.spec.identity;
        let wanted = {
            let mut volumes = self.volumes.lock();
            let volume = volumes.entry(identity.unique_name()).or_insert_with(|| {
                let machine = NodeVolume::new(identity.lifecycle());
                let name = &request.spec.spec_name;
                self.begin(CsiVolume::new(identity.clone(), machine, name))
            });
            if volume.identity != *identity {
                let (name, mode) = (&request.spec.spec_name, volume.identity.mode().as_str());
                let why = anyhow!(
                    "{} is on the node with volumeMode {mode}, by another PersistentVolume",
                    identity.unique_name()
                );
                return Err(VolumeError::set_up(name, why));
            }
            let before = volume.state.lock().setup_failure(&request.pod.uid);
            // Under the lock, so that the volume's task does not end meanwhile.
            volume.want(request);
            (volume.clone(), before)
        };
        self.report_in_use();
        Ok(wanted)
    }

    /// False if the node has a volume of this unique name already.
    fn take_over(self: &Arc<Self>, found: RecoveredVolume) -> bool {
        let machine = found.state();
        let name = found.identity.unique_name();
        let spec_name = found.spec_name.unwrap_or_default();
        let volume = CsiVolume::new(found.identity, machine, &spec_name);
        volume.modify(|state| {
            state.attach_required = found.attach_required;
            state.owner_group = found.owner_group;
            state.sizes.node = found.size;
            let pods = found.pods.into_iter().map(|(uid, spec_name)| {
                let pod = PodOfVolume {
                    spec_name,
                    request: None,
                    waits_since: None,
                    usage: PodUsage::default(),
                };
                (uid, pod)
            });
            state.pods = pods.collect();
        });
        let mut volumes = self.volumes.lock();
        let Entry::Vacant(entry) = volumes.entry(name) else {
            return false;
        };
        entry.insert(self.begin(volume));
        true
    }

    fn begin(self: &Arc<Self>, volume: CsiVolume) -> Arc<CsiVolume> {
        let volume = Arc::new(volume);
        spawn(PanicScope::Other, self.clone().run(volume.clone()));
        volume
    }

    /// Reports the volumes in use to the Node.
    pub(super) fn report_in_use(&self) {
        // Locked until the names are set, so that an older set never replaces a newer one.
        let unknown = self.unknown.lock();
        let Some(unknown) = &*unknown else {
            return;
        };
        let devices = &self.devices;
        let mut names = devices.names();
        if !unknown.is_empty() || !devices.are_known() {
            let Some(node) = self.sources.node.borrow().clone() else {
                return;
            };
            let in_use = node.status.as_ref().and_then(|status| status.volumes_in_use.as_ref());
            let in_use = in_use.into_iter().flatten();
            let may_be = |name: &&String| {
                unknown.iter().any(|unknown| unknown.may_be(name)) || devices.may_have(name)
            };
            names.extend(in_use.filter(may_be).cloned());
        }
        let volumes = self.volumes.lock();
        let in_use = volumes.iter().filter(|(_, volume)| {
            volume.has_to_be_attached() && volume.state.lock().machine.is_in_use()
        });
        names.extend(in_use.map(|(name, _)| name.clone()));
        self.sources.in_use.set(names);
    }

    async fn report_when_node_is_known(self: Arc<Self>) {
        let mut node = self.sources.node.clone();
        if node.wait_for(Option::is_some).await.is_ok() {
            self.report_in_use();
        }
    }

    async fn wait_for_unpublish(
        &self,
        volume: &CsiVolume,
        uid: &PodUid,
    ) -> Result<(), VolumeError> {
        let step = Step::Unpublish(uid.clone());
        let mut changes = volume.changes.subscribe();
        let before = volume.state.lock().machine.failure(&step).cloned();
        let deadline = clock::instant() + TEARDOWN_WAIT;
        loop {
            changes.borrow_and_update();
            let is_running = {
                let state = volume.state.lock();
                if !state.machine.is_held_by(uid) {
                    return Ok(());
                }
                let failure = state.machine.failure(&step).cloned();
                if let Some(failure) = failure.filter(|it| Some(it) != before.as_ref()) {
                    drop(state);
                    return Err(unpublish_error(volume, uid, Some(failure.error)));
                }
                state.machine.in_progress().is_some()
            };
            if is_running {
                // A call has a deadline of its own.
                if changes.changed().await.is_err() {
                    return Err(VolumeError::Cancelled);
                }
            } else if timeout_at(deadline, changes.changed()).await.is_err() {
                return Err(unpublish_error(volume, uid, None));
            }
        }
    }
}

/// The error of a pod's teardown.
fn unpublish_error(volume: &CsiVolume, uid: &PodUid, why: Option<String>) -> VolumeError {
    let state = volume.state.lock();
    let waits = || state.machine.waits_for(Some(uid), clock::instant());
    let name = state.pods.get(uid).map(|pod| pod.spec_name.clone());
    VolumeError::TearDown {
        volume: name.unwrap_or_else(|| state.spec_name.clone()),
        why: why.or_else(waits).unwrap_or_else(|| "it is still published".to_owned()),
    }
}
