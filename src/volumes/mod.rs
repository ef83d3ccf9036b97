//! A pod's volumes and its place on disk.
//!
//! * Owns: `pods/<uid>` below the kubelet's root directory and everything mounted there; what each
//!   pod has been given (emptyDir on disk, in memory and in huge pages, hostPath, volumes of files
//!   that the kubelet writes, sub-paths), and the devices of `local` volumes that are mounted for them.
//! * Woken by its callers; nothing is polled. Each volume that is set up or brought up to date is a task of its own,
//!   which outlives a sync that no longer waits for it. A pod that has its volumes costs
//!   one comparison per sync, and one of the objects and tokens in its volumes, if there are any.
//! * Publishes: [`VolumePaths`], where each volume is on the node; the state of each volume, with what it waits for; the
//!   pods whose objects or tokens changed, or whose volumes became ready after a sync gave up.
//! * Must never delete through a mount or a link, nor unmount what it did not mount, nor remove a
//!   volume of another kind; never log what a volume says.
//! * Answers to upstream's `pkg/kubelet/volumemanager`, `pkg/volume/{emptydir,hostpath,local,configmap,
//!   secret,downwardapi,projected}`, `pkg/volume/util` and the directory half of
//!   `pkg/kubelet/kubelet_volumes.go`.

mod paths;
mod project_files;
mod project_quotas;
mod mounter;
mod error;
pub mod pod_dirs;
mod prepared;
pub mod content;
mod ownership;
mod record;
pub mod plan;
pub mod state;
mod pod_volumes;
mod local;
mod claim;
mod claim_note;
mod cluster;
mod empty_dir;
mod host_path;
mod sub_path;
mod set_up;
mod steps;
mod teardown;

pub use cluster::Cluster;
pub use error::{NotPrepared, PathError, SetUpError, VolumeError};
pub use mounter::{HostMounter, Mounter};
pub use paths::{KubeletRoot, PodDir, UnsafeName, VolumePlugin, component, hosts_file};
pub use prepared::{Prepared, VolumePath, VolumePaths};
pub use project_quotas::ProjectQuotas;
pub use sub_path::{SubPathRequest, components};

use crate::apiserver::configmap_secret::{ObjectKey, Objects, ObjectsByKey};
use crate::base::{panics::PanicScope, spawn};
use crate::model::{ClaimRef, MeasurableVolume, NodeFacts, PendingVolume, Pod, PodExt, PodUid};
use parking_lot::Mutex;
use pod_volumes::{PodVolumes, TIMEOUT};
use set_up::VolumePod;
use state::VolumeState;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// The most threads that volumes may hold: an eighth of those that the process may have.
const MAX_BLOCKED: usize = 64;

/// How long the end of a pod waits for devices that it was the last to have.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Gives pods their volumes and takes them back. Cheap to clone.
#[derive(Clone)]
pub struct VolumeManager {
    shared: Arc<VolumeManagerInner>,
}

struct VolumeManagerInner {
    root: KubeletRoot,
    node: Arc<NodeFacts>,
    objects: Objects,
    cluster: Cluster,
    /// Of emptyDir volumes, if they are to be monitored so.
    quotas: Option<ProjectQuotas>,
    mounter: Box<dyn Mounter>,
    /// Of devices that are mounted for claims.
    locks: local::VolumeLocks,
    /// Of pods that mount volumes.
    pods: Mutex<HashMap<PodUid, Arc<PodVolumes>>>,
    /// Threads for volumes of all pods that may hang.
    blocking: Arc<Semaphore>,
}

impl VolumeManagerInner {
    /// The volumes of a pod, if it has been given any.
    fn of(&self, uid: &PodUid) -> Option<Arc<PodVolumes>> {
        self.pods.lock().get(uid).cloned()
    }

    /// Gives back the projects of volumes that are gone.
    fn release_projects(&self) {
        if let Some(quotas) = &self.quotas {
            quotas.release(&self.root.pods_dir());
        }
    }

    fn of_or_new(&self, uid: &PodUid) -> Arc<PodVolumes> {
        self.pods.lock().entry(uid.clone()).or_default().clone()
    }
}

impl VolumeManager {
    /// A manager that has given nothing yet (what is on disk is found when it is needed).
    pub fn new(
        root: KubeletRoot,
        node: Arc<NodeFacts>,
        objects: Objects,
        mounter: impl Mounter,
    ) -> Self {
        Self::in_cluster(root, node, objects, Cluster::default(), None, mounter)
    }

    /// The same on a node of a cluster, and with project quotas for emptyDir volumes if they are to be monitored so.
    pub fn in_cluster(
        root: KubeletRoot,
        node: Arc<NodeFacts>,
        objects: Objects,
        cluster: Cluster,
        quotas: Option<ProjectQuotas>,
        mounter: impl Mounter,
    ) -> Self {
        Self {
            shared: Arc::new(VolumeManagerInner {
                root,
                node,
                objects,
                cluster,
                quotas,
                mounter: Box::new(mounter),
                locks: local::VolumeLocks::default(),
                pods: Mutex::default(),
                blocking: Arc::new(Semaphore::new(MAX_BLOCKED)),
            }),
        }
    }

    /// How many pods are known that mount volumes.
    pub fn len(&self) -> usize {
        self.shared.pods.lock().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The volumes of claims that pods have been given and that are measured.
    pub fn claims(&self) -> BTreeMap<ClaimRef, PathBuf> {
        let pods: Vec<_> = self.shared.pods.lock().keys().cloned().collect();
        let volumes = pods.iter().flat_map(|uid| self.measurable(uid));
        let claims = volumes.filter_map(|volume| Some((volume.claim?, volume.path)));
        claims.collect()
    }

    /// The volumes that a pod has been given and that are its own, and `local` ones of its claims: other paths of the
    /// node are not.
    pub fn measurable(&self, uid: &PodUid) -> Vec<MeasurableVolume> {
        let made = self.shared.of(uid).map(|volumes| volumes.made());
        let volumes = made.into_iter().flatten().filter_map(|(volume, path)| {
            let claim = volume.claim().filter(|_| path.measured);
            Some(MeasurableVolume {
                name: volume.name.clone(),
                path: path.host_path,
                project: path.project,
                filesystem: claim.is_some() || volume.kind.is_in_memory()?,
                claim,
            })
        });
        volumes.collect()
    }

    /// The volumes of a pod that are not ready.
    pub fn pending(&self, uid: &PodUid) -> Vec<PendingVolume> {
        let pending = |(name, state): (String, VolumeState)| {
            Some(PendingVolume {
                reason: state.reason()?,
                error: state.last_error.filter(|_| state.waits_for.is_none()),
                name,
            })
        };
        let states = self.states(uid).into_iter();
        states.filter_map(pending).collect()
    }

    /// The state of each volume of a pod, by its name.
    fn states(&self, uid: &PodUid) -> Vec<(String, VolumeState)> {
        let volumes = self.shared.of(uid);
        volumes.map(|volumes| volumes.states()).unwrap_or_default()
    }

    /// Whether pods can have certificates in their volumes.
    pub fn serves_certificates(&self) -> bool {
        self.shared.cluster.certificates.is_served()
    }

    /// The root directory everything is below.
    pub fn root(&self) -> &KubeletRoot {
        &self.shared.root
    }

    /// Makes the pod's directory and all volumes its containers mount, several at the same time, and brings those up to
    /// date that show objects. A pod that already has what it wants costs nothing more than knowing so.
    /// Must not run beside [`Self::teardown`] of the same pod.
    ///
    /// # Errors
    /// The volumes that cannot be made. One that was made before and cannot be brought up to date is no error.
    /// [`VolumeError::Cancelled`] when `cancel` fires first, and [`VolumeError::Unmounted`] after 123 s. What is under
    /// way then goes on: the next call finds it, and a pod whose volume becomes ready meanwhile is among the
    /// [`Self::changed`] ones.
    pub async fn prepare(
        &self,
        pod: &Pod,
        cancel: &CancellationToken,
    ) -> Result<Prepared, NotPrepared> {
        let shared = &self.shared;
        shared.objects.register(pod);
        let plan = plan::plan(pod, &shared.node)?;
        let uid = pod.uid();
        shared.cluster.register(&uid, &plan);
        if plan.is_empty() {
            // Nothing to make: the pod's directory comes with the first file in it.
            return Ok(Prepared::default());
        }
        let pod = VolumePod {
            directory: shared.root.pod(&uid).map_err(VolumeError::from)?,
            objects: shared.objects.of(pod),
            volumes: shared.of_or_new(&uid),
            uid,
        };
        tokio::select! {
            biased;
            prepared = shared.set_up_all(&pod, plan) => prepared,
            () = cancel.cancelled() => Err(VolumeError::Cancelled.into()),
        }
    }

    /// Config maps and secrets that a pod refers to, within a bounded time. [`Self::prepare`] has to be called first.
    ///
    /// # Errors
    /// [`VolumeError::Cancelled`] when `cancel` fires first.
    pub async fn objects(
        &self,
        pod: &Pod,
        keys: BTreeSet<ObjectKey>,
        cancel: &CancellationToken,
    ) -> Result<ObjectsByKey, VolumeError> {
        let objects = self.shared.objects.of(pod);
        tokio::select! {
            biased;
            found = objects.get(keys) => Ok(found),
            () = cancel.cancelled() => Err(VolumeError::Cancelled),
        }
    }

    /// Waits until objects or tokens of pods changed; takes these pods.
    pub async fn changed(&self) -> HashSet<PodUid> {
        self.shared.objects.changed().await
    }

    /// Binds the sub-paths one container wants; returns where each is, by mount index. To be done
    /// before every start of the container. What they lead to may hang: then the next call that needs that volume waits
    /// for it, and the state of the volume says so.
    ///
    /// # Errors
    /// [`VolumeError::Cancelled`] when `cancel` fires first, and [`VolumeError::TimedOut`] after 123 s.
    pub async fn prepare_sub_paths(
        &self,
        uid: &PodUid,
        container: &str,
        requests: Vec<SubPathRequest>,
        cancel: &CancellationToken,
    ) -> Result<BTreeMap<usize, PathBuf>, VolumeError> {
        let mut by_volume = BTreeMap::<String, Vec<SubPathRequest>>::new();
        for request in requests {
            let of_volume = by_volume.entry(request.volume.clone()).or_default();
            of_volume.push(request);
        }
        let mut found = BTreeMap::new();
        let deadline = Instant::now() + TIMEOUT;
        for (volume, requests) in by_volume {
            let bound = self.shared.bind_sub_paths(uid, container, requests);
            tokio::select! {
                biased;
                bound = bound => found.extend(bound?),
                () = cancel.cancelled() => return Err(VolumeError::Cancelled),
                () = sleep_until(deadline) => {
                    let seconds = TIMEOUT.as_secs();
                    return Err(VolumeError::TimedOut { volume, seconds });
                }
            }
        }
        Ok(found)
    }

    /// Unmounts the pod's volumes and deletes its scratch data. To be called when none of its
    /// containers runs any more; doing it again is fine. Waits for what is still under way only as long as
    /// that creates something.
    pub async fn teardown(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.shared.objects.forget(uid);
        self.shared.cluster.forget(uid);
        if let Some(volumes) = self.shared.of(uid) {
            volumes.tear_down().await;
        }
        self.shared.pods.lock().remove(uid);
        let shared = self.shared.clone();
        let uid = uid.clone();
        let tear_down = move || {
            let mounter = shared.mounter.as_ref();
            let pod = shared.root.pod(&uid).map_err(VolumeError::from);
            let torn_down =
                pod.and_then(|pod| teardown::volumes(&pod, mounter, || shared.release_projects()));
            (torn_down, local::has_devices(&shared.root))
        };
        let (torn_down, has_devices) = tokio::task::spawn_blocking(tear_down).await?;
        // Also after an error: other volumes may have been unmounted.
        if has_devices {
            self.release_devices().await;
        }
        torn_down
    }

    /// Unmounts devices that no pod has any more. One that takes long goes on by itself.
    async fn release_devices(&self) {
        let shared = self.shared.clone();
        let release = async move {
            let Ok(permit) = shared.blocking.clone().acquire_owned().await else {
                return;
            };
            let release = move || {
                let _permit = permit;
                local::release_unused(&shared.root, shared.mounter.as_ref(), &shared.locks);
            };
            let _ = tokio::task::spawn_blocking(release).await;
        };
        let _ = timeout(RELEASE_TIMEOUT, spawn(PanicScope::Sync, release)).await;
    }

    /// Removes the pod's directory, termination messages included. To be called after
    /// [`Self::teardown`], when the pod's termination messages are not needed any more.
    pub async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let shared = self.shared.clone();
        let uid = uid.clone();
        tokio::task::spawn_blocking(move || {
            let pod = shared.root.pod(&uid)?;
            teardown::directory(&pod, shared.mounter.as_ref())
        })
        .await?
    }
}

#[cfg(test)]
mod tests;
