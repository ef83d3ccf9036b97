//! The volumes and the directory of a pod.
//!
//! Each sync calls `prepare`. The plan says which volumes the containers use, and of which kind each is (`kinds`). What
//! will be created below the pod's directory is recorded there first, so that a later kubelet can undo it. Each volume
//! that is not ready gets a task, which looks up the API objects that the volume needs and has its kind set it up. The
//! sync waits for all of them and gets their paths; the runtime mounts these into containers. Sub-paths are bound
//! before each start of a container. After the last container has ended, `teardown` ends what drivers and programs have
//! mounted, unmounts what the kernel still lists, and removes the directories.
//!
//! A setup that fails is an event, and the next sync tries again. A setup that hangs is left running: the sync gives up
//! after 123 s, and the pod is synced once the volume is ready. A file system that does not respond keeps only threads
//! of its own mount (`mount_threads`).
//!
//! * Owns: `pods/<uid>` below the kubelet's root directory and everything mounted there; the volumes of each pod
//!   (emptyDir on disk, in memory and in huge pages, hostPath, content volumes, sub-paths), and the mounted devices of
//!   `local` volumes and of iSCSI and Fibre Channel disks.
//! * Woken by its callers. Each setup or update of a volume is a task, which continues if the sync
//!   stops waiting for it. A sync of a pod whose volumes are set up only compares their plan, and the configmaps,
//!   secrets and tokens in them if there are any. Content volumes are also updated while a pod's containers are being
//!   started or stopped, which may take hours.
//! * Publishes: [`VolumePaths`], the path of each volume; the state of each volume, with what it waits for; the pods
//!   whose configmaps, secrets or tokens changed, or whose volumes became ready after a sync timed out.
//! * Must never delete through a mount or a link, nor unmount what it did not mount, nor remove a volume of another
//!   plugin, nor log the content of a volume.
//! * Upstream: `pkg/kubelet/volumemanager`,
//!   `pkg/volume/{emptydir,hostpath,local,configmap,secret,downwardapi,projected,iscsi,fc}`, `pkg/volume/util` and the
//!   directory half of `pkg/kubelet/kubelet_volumes.go`.

mod paths;
mod disk_dirs;
mod devices_in_use;
mod project_files;
mod project_quotas;
mod error;
mod mounter;
pub mod pod_dirs;
mod group;
mod ownership;
mod metrics;
pub mod csi;
mod prepared;
pub mod state;
mod mount_threads;
mod cluster;
mod pod_volumes;
pub mod kinds;
mod record;
mod sub_path;
mod container_start;
mod set_up;
mod refresh;
mod steps;
mod teardown;
mod totals;
mod repair;

pub use cluster::ClusterSources;
pub use error::{PathError, Unsupported, VolumeError, VolumesNotReady};
pub use group::VolumeGroup;
pub use metrics::VolumeMetrics;
pub use mounter::{HostMounter, Mounter};
use paths::FlexDevice;
pub use paths::{
    KubeletRoot, PodDir, UnsafeName, VolumePlugin, component, hosts_file, termination_logs,
};
pub use prepared::{HostPathCheck, PreparedVolumes, VolumePath, VolumePaths};
pub use project_quotas::ProjectQuotas;
pub use sub_path::{SubPathRequest, components};

use crate::apiserver::configmap_secret::{ConfigMapSecretReader, ConfigMapsAndSecrets, ObjectKey};
use crate::base::panics::PanicScope;
use crate::base::{DirtySet, KeyedLock, clock, spawn, spawn_blocking};
use crate::model::{
    ClaimRef, MeasurableVolume, NodeFacts, PendingVolume, Pod, PodExt, PodUid, UsageSource,
};
use csi::manager::CsiVolumes;
use csi::requests::MountingPod;
use kinds::flex::FlexDrivers;
use kinds::releases::Releases;
use kinds::{KINDS, plan};
use mount_threads::MountThreads;
use parking_lot::Mutex;
use pod_volumes::{PlannedVolume, PodVolumes, TIMEOUT, VolumePod};
use state::VolumeState;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Maximum number of `local` volumes that are set up concurrently, each on a thread that programs may keep for an hour: an
/// eighth of the threads for blocking work.
const MAX_LOCAL: usize = 64;

/// Sets up and tears down the volumes of pods; cheap to clone.
#[derive(Clone)]
pub struct VolumeManager {
    shared: Arc<VolumeManagerInner>,
}

struct VolumeManagerInner {
    root: KubeletRoot,
    node: Arc<NodeFacts>,
    configmaps_and_secrets: ConfigMapSecretReader,
    /// Pods whose configmaps, secrets or tokens changed, or whose volumes became ready after a sync timed out.
    pods_to_sync: Arc<DirtySet<PodUid>>,
    cluster: ClusterSources,
    /// Quota projects of emptyDir volumes, if their usage is monitored by them.
    quotas: Option<ProjectQuotas>,
    mounter: Arc<dyn Mounter>,
    /// One lock per mounted device, by the name of its PersistentVolume.
    locks: KeyedLock<String>,
    /// The volumes of each pod that mounts some.
    pods: Mutex<HashMap<PodUid, Arc<PodVolumes>>>,
    /// For work on paths of the node.
    threads: Arc<MountThreads>,
    /// For the setup of `local` volumes, once their paths respond.
    local_threads: Arc<Semaphore>,
    csi: CsiVolumes,
    /// The drivers of flexVolumes.
    flex: FlexDrivers,
    /// Mounted devices that are being released.
    releases: Releases,
    /// The devices of disks that are mapped into pods, by the files that they are bound onto: as long as one is open, no
    /// other device gets its number.
    open_devices: Mutex<BTreeMap<PathBuf, File>>,
    /// What an earlier kubelet left mounted for no pod has been released.
    leftovers_are_released: AtomicBool,
}

impl VolumeManagerInner {
    /// The volumes of a pod, if it has any.
    fn of(&self, uid: &PodUid) -> Option<Arc<PodVolumes>> {
        self.pods.lock().get(uid).cloned()
    }

    /// Releases the quota projects of volumes that no longer exist.
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
    /// Builds the manager. Volumes of an earlier kubelet are found on disk when they are needed. With `quotas`, the usage
    /// of emptyDir volumes is monitored by project quotas.
    pub fn new(
        root: KubeletRoot,
        node: Arc<NodeFacts>,
        configmaps_and_secrets: ConfigMapSecretReader,
        cluster: ClusterSources,
        quotas: Option<ProjectQuotas>,
        mounter: impl Mounter,
    ) -> Self {
        let mounter: Arc<dyn Mounter> = Arc::new(mounter);
        Self {
            shared: Arc::new(VolumeManagerInner {
                csi: CsiVolumes::new(
                    root.clone(),
                    mounter.clone(),
                    cluster.csi.clone(),
                    configmaps_and_secrets.pods_to_sync(),
                ),
                flex: FlexDrivers::new(node.volume_plugin_dir.clone(), mounter.clone()),
                releases: Releases::default(),
                root,
                node,
                pods_to_sync: configmaps_and_secrets.pods_to_sync(),
                configmaps_and_secrets,
                cluster,
                quotas,
                threads: Arc::new(MountThreads::new(mounter.clone())),
                leftovers_are_released: AtomicBool::default(),
                open_devices: Mutex::default(),
                mounter,
                locks: KeyedLock::default(),
                pods: Mutex::default(),
                local_threads: Arc::new(Semaphore::new(MAX_LOCAL)),
            }),
        }
    }

    /// Number of pods that mount volumes.
    pub fn count(&self) -> usize {
        self.shared.pods.lock().len()
    }

    /// The claims whose usage is reported, with the paths of their volumes.
    pub fn claims(&self) -> BTreeMap<ClaimRef, MeasurableVolume> {
        let pods: Vec<_> = self.shared.pods.lock().keys().cloned().collect();
        let volumes = pods.iter().flat_map(|uid| self.measurable(uid));
        let claims = volumes.filter_map(|volume| Some((volume.claim.clone()?, volume)));
        claims.collect()
    }

    /// The mounted volumes of a pod whose usage is measured: volumes in the pod's directory, volumes of CSI drivers, and
    /// `local` ones of its claims. Other paths of the node are not measured.
    pub fn measurable(&self, uid: &PodUid) -> Vec<MeasurableVolume> {
        let ready = self.shared.of(uid).map(|volumes| volumes.ready());
        let volumes = ready.into_iter().flatten().filter_map(|(volume, path)| {
            let is_mount = volume.kind.directory().map(|(_, is_mount)| is_mount);
            // What is created below the kubelet's own plugins is no driver's.
            let reported = match is_mount {
                Some(_) => None,
                None => self.shared.csi.usage(uid, &volume.name),
            };
            let is_measured = path.measured || reported.is_some();
            let claim = volume.kind.claim().filter(|_| is_measured);
            let claim = claim
                .map(|key| ClaimRef { namespace: key.namespace.clone(), name: key.name.clone() });
            let source = match reported {
                Some(reported) => UsageSource::Driver(reported),
                None if claim.is_some() || is_mount? => UsageSource::Filesystem,
                None => UsageSource::Files(path.project),
            };
            Some(MeasurableVolume {
                name: volume.name.clone(),
                path: path.host_path,
                source,
                claim,
            })
        });
        volumes.collect()
    }

    /// The volumes of a pod that are not ready.
    pub fn pending(&self, uid: &PodUid) -> Vec<PendingVolume> {
        let pending = |(name, state): (String, VolumeState)| {
            let reason = state.reason()?;
            let of_driver = self.shared.csi.waits_for(uid, &name);
            Some(PendingVolume {
                reason: of_driver.unwrap_or(reason),
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

    /// The root directory everything is below.
    pub fn root(&self) -> &KubeletRoot {
        &self.shared.root
    }

    /// Sets up the pod's directory and all volumes that its containers mount (upstream's `WaitForAttachAndMount`), several
    /// concurrently, and updates content volumes. Cheap if nothing changed. Must not run concurrently
    /// with [`Self::teardown`] of the same pod.
    ///
    /// # Errors
    /// The volumes that cannot be set up. A failed update of one that was set up before is no error.
    /// [`VolumeError::Cancelled`] if `cancel` fires first, and [`VolumeError::Unmounted`] after 123 s. Setups in progress
    /// continue then: the next call joins them, and a pod whose volume becomes ready is among the [`Self::changed`] ones.
    pub async fn prepare(
        &self,
        pod: &Pod,
        cancel: &CancellationToken,
    ) -> Result<PreparedVolumes, VolumesNotReady> {
        let shared = &self.shared;
        shared.configmaps_and_secrets.register(pod);
        let plan = self.plan(pod)?;
        let uid = pod.uid();
        shared.cluster.register(&uid, plan::keys(&plan));
        if plan.is_empty() {
            // No volumes. The pod's directory is created with the first file in it.
            return Ok(PreparedVolumes::default());
        }
        let plan: Vec<_> = plan.into_iter().map(Arc::new).collect();
        let pod = self.pod_with_volumes(pod)?;
        // Before anything is looked up, so that a change during the lookup counts.
        pod.volumes.set_outdated(false);
        tokio::select! {
            biased;
            prepared = shared.set_up_all(&pod, &plan) => prepared,
            () = cancel.cancelled() => Err(VolumeError::Cancelled.into()),
        }
    }

    fn plan(&self, pod: &Pod) -> Result<Vec<PlannedVolume>, VolumeError> {
        let certificates = self.shared.cluster.certificates.is_served();
        plan::plan(pod, &self.shared.node, certificates)
    }

    fn pod_with_volumes(&self, pod: &Pod) -> Result<VolumePod, VolumeError> {
        let (shared, uid) = (&self.shared, pod.uid());
        Ok(VolumePod {
            mounting: Arc::new(MountingPod::of(pod, shared.node.selinux_file_context.as_deref())),
            directory: shared.root.pod(&uid)?,
            configmaps_and_secrets: shared.configmaps_and_secrets.of(pod),
            volumes: shared.of_or_new(&uid),
            uid,
        })
    }

    /// Config maps and secrets that a pod refers to, within a bounded time. [`Self::prepare`] has to be called first.
    ///
    /// # Errors
    /// [`VolumeError::Cancelled`] when `cancel` fires first.
    pub async fn configmaps_and_secrets(
        &self,
        pod: &Pod,
        keys: BTreeSet<ObjectKey>,
        cancel: &CancellationToken,
    ) -> Result<ConfigMapsAndSecrets, VolumeError> {
        let reader = self.shared.configmaps_and_secrets.of(pod);
        tokio::select! {
            biased;
            found = reader.get(keys) => Ok(found),
            () = cancel.cancelled() => Err(VolumeError::Cancelled),
        }
    }

    /// Waits for pods whose configmaps, secrets or tokens changed, or whose volumes became ready, and takes them. Wakes
    /// [`Self::keep_current`] of these pods.
    pub async fn changed(&self) -> HashSet<PodUid> {
        let uids = self.shared.pods_to_sync.take().await;
        let pods = self.shared.pods.lock();
        let changed = uids.iter().filter_map(|uid| pods.get(uid));
        changed.for_each(|volumes| volumes.set_outdated(true));
        drop(pods);
        uids
    }

    /// Bind-mounts the sub-paths of one container and returns their paths by mount index. Called before every start of the
    /// container. A file system may hang: then the next call that needs that volume waits for it, and the state of the
    /// volume says so.
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
        let deadline = clock::instant() + TIMEOUT;
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

    /// Checks that the paths of the node that a container mounts still have the types that its volumes require, and creates
    /// those of the `…OrCreate` types. Called before every start of the container, because a runtime creates a directory
    /// where it finds nothing.
    ///
    /// # Errors
    /// A path has another type. [`VolumeError::Cancelled`] when `cancel` fires first, and [`VolumeError::Unmounted`] after
    /// 123 s.
    pub async fn check_host_paths(
        &self,
        uid: &PodUid,
        volumes: Vec<(String, VolumePath)>,
        cancel: &CancellationToken,
    ) -> Result<(), VolumeError> {
        let deadline = clock::instant() + TIMEOUT;
        for (volume, path) in volumes {
            if path.check == HostPathCheck::None {
                continue;
            }
            let checked = self.shared.check_host_path(uid, &volume, path);
            tokio::select! {
                biased;
                checked = checked => checked?,
                () = cancel.cancelled() => return Err(VolumeError::Cancelled),
                () = sleep_until(deadline) => return Err(VolumeError::Unmounted(vec![volume])),
            }
        }
        Ok(())
    }

    /// Unmounts the pod's volumes and deletes their data. Called after its last container has ended; may be repeated. Waits
    /// for setups in progress only while they create something below the pod's directory, and until the programs that mount
    /// something there have ended, which they do at once.
    ///
    /// # Errors
    /// The first one. What is mounted by programs and drivers is unmounted all the same, volume by volume; the other
    /// directories stay until the next call.
    pub async fn teardown(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.shared.configmaps_and_secrets.forget(uid);
        self.shared.cluster.forget(uid);
        if let Some(volumes) = self.shared.of(uid) {
            volumes.tear_down().await;
        }
        self.shared.pods.lock().remove(uid);
        let mut torn_down = Ok(());
        for kind in KINDS {
            let of_kind = (kind.tear_down)(self.shared.clone(), uid.clone()).await;
            torn_down = torn_down.and(of_kind);
        }
        // What a kind could not unmount may hang, and must not be touched.
        if torn_down.is_ok() {
            torn_down = self.tear_down_directories(uid).await;
        }
        // Also after an error: other volumes may have been unmounted.
        for kind in KINDS {
            (kind.release)(self.shared.clone()).await;
        }
        torn_down
    }

    async fn tear_down_directories(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let (shared, uid) = (self.shared.clone(), uid.clone());
        let tear_down = move || {
            let pod = shared.root.pod(&uid)?;
            let release = || shared.release_projects();
            teardown::tear_down_volumes(&pod, shared.mounter.as_ref(), release)
        };
        spawn_blocking(tear_down).await?
    }

    /// Releases what an earlier kubelet left mounted for no pod. Called once all pods are known; has an effect once.
    pub fn release_leftovers(&self) {
        let shared = self.shared.clone();
        if shared.leftovers_are_released.swap(true, Ordering::Relaxed) {
            return;
        }
        spawn(PanicScope::Housekeeping, async move {
            for kind in KINDS {
                (kind.release)(shared.clone()).await;
            }
        });
    }

    /// The volumes of CSI drivers.
    pub fn csi(&self) -> &CsiVolumes {
        &self.shared.csi
    }

    /// Removes the pod's directory with its termination messages. Called after [`Self::teardown`], once the messages are not
    /// needed any more.
    pub async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let shared = self.shared.clone();
        let uid = uid.clone();
        spawn_blocking(move || {
            let pod = shared.root.pod(&uid)?;
            teardown::remove_pod_directory(&pod, shared.mounter.as_ref())
        })
        .await?
    }
}

#[cfg(test)]
mod tests;
