//! A pod's volumes and its place on disk.
//!
//! * Owns: `pods/<uid>` below the kubelet's root directory and everything mounted there; what each
//!   pod has been given (emptyDir on disk and in memory, hostPath, sub-paths).
//! * Woken by its callers; no task of its own, nothing is polled. A pod that has its volumes costs
//!   one comparison per sync.
//! * Publishes: [`VolumePaths`], where each volume is on the node.
//! * Must never delete through a mount or a link, nor unmount what it did not mount, nor remove a
//!   volume of another kind.
//! * Answers to upstream's `pkg/kubelet/volumemanager`, `pkg/volume/{emptydir,hostpath}`,
//!   `pkg/volume/util/subpath` and the directory half of `pkg/kubelet/kubelet_volumes.go`.

mod empty_dir;
mod error;
mod host_path;
mod mounter;
mod paths;
pub mod plan;
pub mod pod_dirs;
mod sub_path;
mod teardown;

pub use error::{SetUpError, VolumeError};
pub use mounter::{HostMounter, Mounter};
pub use paths::{KubeletRoot, PodDir, UnsafeName, component};
pub use sub_path::{SubPathRequest, components};

use crate::base::with_own_files;
use crate::model::{Pod, PodExt, PodUid};
use crate::resources::NodeFacts;
use parking_lot::Mutex;
use plan::{PlannedVolume, VolumeKind};
use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

/// Where one volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// On the node.
    pub host_path: PathBuf,
    /// The kubelet made it, so the runtime may give it the pod's SELinux label.
    pub managed: bool,
}

/// Where a pod's volumes are, by volume name.
pub type VolumePaths = BTreeMap<String, VolumePath>;

/// Gives pods their volumes and takes them back. Cheap to clone.
#[derive(Clone)]
pub struct VolumeManager {
    shared: Arc<Shared>,
}

struct Shared {
    root: KubeletRoot,
    node: Arc<NodeFacts>,
    mounter: Box<dyn Mounter>,
    prepared: Mutex<HashMap<PodUid, Prepared>>,
}

/// What a pod has been given, and for which wishes.
struct Prepared {
    plan: Vec<PlannedVolume>,
    paths: Arc<VolumePaths>,
}

impl VolumeManager {
    /// A manager that has given nothing yet (what is on disk is found when it is needed).
    pub fn new(root: KubeletRoot, node: Arc<NodeFacts>, mounter: impl Mounter) -> Self {
        Self {
            shared: Arc::new(Shared {
                root,
                node,
                mounter: Box::new(mounter),
                prepared: Mutex::default(),
            }),
        }
    }

    /// The root directory everything is below.
    pub fn root(&self) -> &KubeletRoot {
        &self.shared.root
    }

    /// Makes the pod's directory and all volumes its containers mount. A pod that already has what
    /// it wants costs nothing more than knowing so. Must not run beside [`Self::teardown`] of the
    /// same pod.
    pub async fn prepare(&self, pod: &Pod) -> Result<Arc<VolumePaths>, VolumeError> {
        let plan = plan::plan(pod, &self.shared.node)?;
        let uid = pod.uid();
        if let Some(known) = self.shared.prepared.lock().get(&uid)
            && known.plan == plan
        {
            return Ok(known.paths.clone());
        }
        let shared = self.shared.clone();
        // What a host path leads to may hang.
        let foreign = plan
            .iter()
            .any(|volume| matches!(volume.kind, VolumeKind::HostPath { .. }));
        let prepare = move || shared.prepare(uid, plan);
        match foreign {
            true => tokio::task::spawn_blocking(prepare).await?,
            false => with_own_files(prepare).await?,
        }
    }

    /// Binds the sub-paths one container wants; returns where each is, by mount index. To be done
    /// before every start of the container.
    pub async fn prepare_sub_paths(
        &self,
        uid: &PodUid,
        container: &str,
        requests: Vec<SubPathRequest>,
    ) -> Result<BTreeMap<usize, PathBuf>, VolumeError> {
        if requests.is_empty() {
            return Ok(BTreeMap::new());
        }
        let shared = self.shared.clone();
        let pod = shared.root.pod(uid)?;
        let container = container.to_string();
        let bind = move || {
            requests
                .iter()
                .map(|request| {
                    let target = pod.sub_path(&request.volume, &container, request.mount_index)?;
                    match sub_path::set_up(request, &target, shared.mounter.as_ref()) {
                        Ok(()) => Ok((request.mount_index, target)),
                        Err(source) => Err(VolumeError::SubPath {
                            volume: request.volume.clone(),
                            container: container.clone(),
                            source,
                        }),
                    }
                })
                .collect()
        };
        tokio::task::spawn_blocking(bind).await?
    }

    /// Unmounts the pod's volumes and deletes its scratch data. To be called when none of its
    /// containers runs any more; doing it again is fine.
    pub async fn teardown(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let shared = self.shared.clone();
        let uid = uid.clone();
        tokio::task::spawn_blocking(move || {
            let pod = shared.root.pod(&uid)?;
            shared.prepared.lock().remove(&uid);
            teardown::volumes(&pod, shared.mounter.as_ref())
        })
        .await?
    }

    /// Removes the pod's directory, termination messages included. To be called after
    /// [`Self::teardown`], when nobody asks for the pod's last words any more.
    pub async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let shared = self.shared.clone();
        let uid = uid.clone();
        tokio::task::spawn_blocking(move || {
            let pod = shared.root.pod(&uid)?;
            teardown::directory(&pod, shared.mounter.as_ref())
        })
        .await?
    }

    /// UIDs of all pods that have a directory on disk.
    pub async fn pods_on_disk(&self) -> Result<Vec<PodUid>, VolumeError> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || pod_dirs::list(&shared.root)).await?
    }
}

impl Shared {
    fn prepare(
        &self,
        uid: PodUid,
        plan: Vec<PlannedVolume>,
    ) -> Result<Arc<VolumePaths>, VolumeError> {
        let pod = self.root.pod(&uid)?;
        pod_dirs::create(&pod)?;
        let mut paths = VolumePaths::new();
        for volume in &plan {
            let path = self
                .set_up(&pod, volume)
                .map_err(|source| VolumeError::SetUp {
                    volume: volume.name.clone(),
                    source,
                })?;
            paths.insert(volume.name.clone(), path);
        }
        let paths = Arc::new(paths);
        let prepared = Prepared {
            plan,
            paths: paths.clone(),
        };
        self.prepared.lock().insert(uid, prepared);
        Ok(paths)
    }

    fn set_up(&self, pod: &PodDir, volume: &PlannedVolume) -> Result<VolumePath, SetUpError> {
        match &volume.kind {
            VolumeKind::EmptyDir { medium, group } => {
                let mounter = self.mounter.as_ref();
                empty_dir::set_up(pod, &volume.name, *medium, *group, mounter).map(|host_path| {
                    VolumePath {
                        host_path,
                        managed: true,
                    }
                })
            }
            VolumeKind::HostPath { path, check } => {
                host_path::set_up(path, *check).map(|host_path| VolumePath {
                    host_path,
                    managed: false,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
