//! A pod's volumes and its place on disk.
//!
//! * Owns: `pods/<uid>` below the kubelet's root directory and everything mounted there; what each
//!   pod has been given (emptyDir on disk, in memory and in huge pages, hostPath, volumes of files
//!   that the kubelet writes, sub-paths).
//! * Woken by its callers; no task of its own, nothing is polled. A pod that has its volumes costs
//!   one comparison per sync, and a look at the objects that its volumes show, if they show any.
//! * Publishes: [`VolumePaths`], where each volume is on the node.
//! * Must never delete through a mount or a link, nor unmount what it did not mount, nor remove a
//!   volume of another kind; never log what a volume says.
//! * Answers to upstream's `pkg/kubelet/volumemanager`, `pkg/volume/{emptydir,hostpath,configmap,
//!   secret,downwardapi,projected}`, `pkg/volume/util` and the directory half of
//!   `pkg/kubelet/kubelet_volumes.go`.

pub mod content;
mod empty_dir;
mod error;
mod host_path;
mod mounter;
mod paths;
pub mod plan;
pub mod pod_dirs;
mod record;
mod sub_path;
mod teardown;

pub use error::{SetUpError, VolumeError};
pub use mounter::{HostMounter, Mounter};
pub use paths::{KubeletRoot, Plugin, PodDir, UnsafeName, component};
pub use sub_path::{SubPathRequest, components};

use crate::base::with_own_files;
use crate::model::{Pod, PodExt, PodUid};
use crate::objects::{Found, Objects};
use crate::resources::NodeFacts;
use content::{ContentVolume, Digest};
use parking_lot::Mutex;
use plan::{PlannedVolume, VolumeKind};
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where one volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// On the node.
    pub host_path: PathBuf,
    /// The kubelet made it, so the runtime may give it the pod's SELinux label.
    pub managed: bool,
    /// Containers only read it, whatever their mounts say.
    pub read_only: bool,
}

/// A volume whose size can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurableVolume {
    /// Its name in the pod.
    pub name: String,
    /// Where it is on the node.
    pub path: PathBuf,
    /// It is a file system of its own, in memory.
    pub in_memory: bool,
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
    objects: Objects,
    mounter: Box<dyn Mounter>,
    prepared: Mutex<HashMap<PodUid, Known>>,
}

/// What a pod has been given, and for which wishes.
#[derive(Clone, Default)]
struct Known {
    plan: Arc<Vec<PlannedVolume>>,
    paths: Arc<VolumePaths>,
    /// What those volumes show that are made from objects.
    shown: Arc<BTreeMap<String, Digest>>,
    /// The immutable ones of those objects, as the pod has seen them; they are not looked up again.
    fixed: Arc<Found>,
}

/// A pod's volumes.
#[derive(Debug)]
pub struct Prepared {
    /// Where they are.
    pub paths: Arc<VolumePaths>,
    /// Volumes that are there and cannot be brought up to date: they show what they showed before.
    pub stale: Vec<VolumeError>,
}

impl VolumeManager {
    /// A manager that has given nothing yet (what is on disk is found when it is needed).
    pub fn new(
        root: KubeletRoot,
        node: Arc<NodeFacts>,
        objects: Objects,
        mounter: impl Mounter,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                root,
                node,
                objects,
                mounter: Box::new(mounter),
                prepared: Mutex::default(),
            }),
        }
    }

    /// How many pods are known to have what they want.
    pub fn len(&self) -> usize {
        self.shared.prepared.lock().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The volumes that a pod has been given and that are its own: paths of the node are not.
    pub fn measurable(&self, uid: &PodUid) -> Vec<MeasurableVolume> {
        let Some(known) = self.shared.prepared.lock().get(uid).cloned() else {
            return Vec::new();
        };
        let volumes = known.plan.iter().filter_map(|volume| {
            let in_memory = volume.kind.is_in_memory()?;
            let path = known.paths.get(&volume.name)?.host_path.clone();
            Some(MeasurableVolume {
                name: volume.name.clone(),
                path,
                in_memory,
            })
        });
        volumes.collect()
    }

    /// The root directory everything is below.
    pub fn root(&self) -> &KubeletRoot {
        &self.shared.root
    }

    /// Makes the pod's directory and all volumes its containers mount, and brings those up to date
    /// that show objects. A pod that already has what it wants costs nothing more than knowing so.
    /// Must not run beside [`Self::teardown`] of the same pod.
    ///
    /// # Errors
    /// The first volume that cannot be made. One that was made before and cannot be brought up to
    /// date is no error.
    pub async fn prepare(&self, pod: &Pod) -> Result<Prepared, VolumeError> {
        let plan = plan::plan(pod, &self.shared.node)?;
        let uid = pod.uid();
        let known = self.shared.prepared.lock().get(&uid).cloned();
        let known = known.filter(|known| *known.plan == plan);
        let mut keys = plan::object_keys(&plan);
        if let Some(known) = &known {
            keys.retain(|key| !known.fixed.contains_key(key));
            if keys.is_empty() {
                return Ok(Prepared {
                    paths: known.paths.clone(),
                    stale: Vec::new(),
                });
            }
        }
        if plan.is_empty() {
            // Nothing to make: the pod's directory comes with the first file in it.
            let known = Known::default();
            let paths = known.paths.clone();
            self.shared.prepared.lock().insert(uid, known);
            return Ok(Prepared {
                paths,
                stale: Vec::new(),
            });
        }
        let mut found = self.shared.objects.get(keys).await;
        if let Some(known) = &known {
            found.extend(
                known
                    .fixed
                    .iter()
                    .map(|(key, it)| (key.clone(), it.clone())),
            );
        }
        let shared = self.shared.clone();
        // What a host path leads to may hang.
        let foreign = plan
            .iter()
            .any(|volume| matches!(volume.kind, VolumeKind::HostPath { .. }));
        let prepare = move || match known {
            Some(known) => shared.refresh(uid, known, &found),
            None => shared.prepare(uid, plan, &found),
        };
        match foreign {
            true => tokio::task::spawn_blocking(prepare).await?,
            false => with_own_files(prepare).await?,
        }
    }

    /// Where the pod's volumes would be. Nothing is made or looked at.
    pub fn planned_paths(&self, pod: &Pod) -> Result<VolumePaths, VolumeError> {
        let directory = self.shared.root.pod(&pod.uid())?;
        let mut paths = VolumePaths::new();
        for volume in plan::plan(pod, &self.shared.node)? {
            let path = match &volume.kind {
                VolumeKind::EmptyDir { .. } => VolumePath {
                    host_path: directory.volume(Plugin::EmptyDir, &volume.name)?,
                    managed: true,
                    read_only: false,
                },
                VolumeKind::HostPath { path, .. } => VolumePath {
                    host_path: path.into(),
                    managed: false,
                    read_only: false,
                },
                VolumeKind::Content(content) => VolumePath {
                    host_path: directory.volume(content.plugin, &volume.name)?,
                    managed: true,
                    read_only: true,
                },
            };
            paths.insert(volume.name, path);
        }
        Ok(paths)
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
        found: &Found,
    ) -> Result<Prepared, VolumeError> {
        let pod = self.root.pod(&uid)?;
        pod_dirs::create(&pod)?;
        let records: Vec<_> = plan.iter().filter_map(PlannedVolume::record).collect();
        if !records.is_empty() {
            record::write(&pod, records)?;
        }
        let mut made = Making::default();
        for volume in &plan {
            let path = self.set_up(&pod, volume, found, &mut made);
            let path = path.map_err(|source| of_volume(&volume.name, source))?;
            made.paths.insert(volume.name.clone(), path);
        }
        let paths = Arc::new(made.paths);
        let known = Known {
            plan: Arc::new(plan),
            paths: paths.clone(),
            shown: Arc::new(made.shown),
            fixed: Arc::new(immutable(found)),
        };
        self.prepared.lock().insert(uid, known);
        let stale = made.stale;
        Ok(Prepared { paths, stale })
    }

    /// Brings volumes up to date whose objects changed.
    fn refresh(&self, uid: PodUid, known: Known, found: &Found) -> Result<Prepared, VolumeError> {
        let mut shown = known.shown.clone();
        let mut stale = Vec::new();
        for volume in known.plan.iter() {
            let (Some(content), Some(path)) = (volume.content(), known.paths.get(&volume.name))
            else {
                continue;
            };
            let mut keys = content::object_keys(&content.sources).into_iter();
            if keys.all(|key| known.fixed.contains_key(&key)) {
                continue;
            }
            let before = shown.get(&volume.name).copied();
            match update(&path.host_path, content, found, before) {
                Ok(now) if Some(now) == before => {}
                Ok(now) => {
                    Arc::make_mut(&mut shown).insert(volume.name.clone(), now);
                }
                Err(error) => stale.push(of_volume(&volume.name, error)),
            }
        }
        let paths = known.paths.clone();
        let mut fixed = known.fixed.clone();
        if immutable(found).len() > fixed.len() {
            fixed = Arc::new(immutable(found));
        }
        if !Arc::ptr_eq(&shown, &known.shown) || !Arc::ptr_eq(&fixed, &known.fixed) {
            let known = Known {
                shown,
                fixed,
                ..known
            };
            self.prepared.lock().insert(uid, known);
        }
        Ok(Prepared { paths, stale })
    }

    fn set_up(
        &self,
        pod: &PodDir,
        volume: &PlannedVolume,
        found: &Found,
        made: &mut Making,
    ) -> Result<VolumePath, SetUpError> {
        let (name, mounter) = (&volume.name, self.mounter.as_ref());
        match &volume.kind {
            VolumeKind::EmptyDir { medium, group } => {
                let host_path = empty_dir::set_up(pod, name, *medium, *group, mounter)?;
                Ok(VolumePath {
                    host_path,
                    managed: true,
                    read_only: false,
                })
            }
            VolumeKind::HostPath { path, check } => {
                let host_path = host_path::set_up(path, *check)?;
                Ok(VolumePath {
                    host_path,
                    managed: false,
                    read_only: false,
                })
            }
            VolumeKind::Content(content) => {
                let host_path = self.set_up_content(pod, name, content, found, made)?;
                Ok(VolumePath {
                    host_path,
                    managed: true,
                    read_only: true,
                })
            }
        }
    }

    /// One whose objects are missing now, or immutable, stays as an earlier kubelet left it: a restart
    /// of the kubelet is no event for its pods.
    fn set_up_content(
        &self,
        pod: &PodDir,
        name: &str,
        volume: &ContentVolume,
        found: &Found,
        made: &mut Making,
    ) -> Result<PathBuf, SetUpError> {
        let mounter = self.mounter.as_ref();
        if content::is_fixed(&volume.sources, found)
            && let Some(path) = content::made_before(pod, name, volume, mounter)
        {
            return Ok(path);
        }
        let payload = match content::content_of(volume, found) {
            Ok(payload) => payload,
            Err(error) => {
                let Some(path) = content::made_before(pod, name, volume, mounter) else {
                    return Err(error);
                };
                made.stale.push(of_volume(name, error));
                return Ok(path);
            }
        };
        let path = content::set_up(pod, name, volume, &payload, mounter)?;
        made.shown.insert(name.into(), content::digest(&payload));
        Ok(path)
    }
}

/// The objects that stay as they are.
fn immutable(found: &Found) -> Found {
    let fixed = found
        .iter()
        .filter(|(_, it)| it.as_ref().is_ok_and(|object| object.is_immutable()));
    fixed.map(|(key, it)| (key.clone(), it.clone())).collect()
}

/// What has been made of a pod's volumes.
#[derive(Default)]
struct Making {
    paths: VolumePaths,
    shown: BTreeMap<String, Digest>,
    stale: Vec<VolumeError>,
}

fn update(
    directory: &Path,
    volume: &ContentVolume,
    found: &Found,
    before: Option<Digest>,
) -> Result<Digest, SetUpError> {
    let payload = content::content_of(volume, found)?;
    let now = content::digest(&payload);
    if Some(now) != before {
        content::write(directory, volume, &payload)?;
    }
    Ok(now)
}

fn of_volume(name: &str, source: SetUpError) -> VolumeError {
    VolumeError::SetUp {
        volume: name.to_string(),
        source,
    }
}

#[cfg(test)]
mod tests;
