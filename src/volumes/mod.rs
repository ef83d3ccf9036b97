//! A pod's volumes and its place on disk.
//!
//! * Owns: `pods/<uid>` below the kubelet's root directory and everything mounted there; what each
//!   pod has been given (emptyDir on disk, in memory and in huge pages, hostPath, volumes of files
//!   that the kubelet writes, sub-paths).
//! * Woken by its callers; no task of its own, nothing is polled. A pod that has its volumes costs
//!   one comparison per sync, and one of the objects and tokens in its volumes, if there are any.
//! * Publishes: [`VolumePaths`], where each volume is on the node; the pods whose objects or tokens changed.
//! * Must never delete through a mount or a link, nor unmount what it did not mount, nor remove a
//!   volume of another kind; never log what a volume says.
//! * Answers to upstream's `pkg/kubelet/volumemanager`, `pkg/volume/{emptydir,hostpath,configmap,
//!   secret,downwardapi,projected}`, `pkg/volume/util` and the directory half of
//!   `pkg/kubelet/kubelet_volumes.go`.

mod claim;
mod claim_note;
pub mod content;
mod detached;
mod empty_dir;
mod error;
mod host_path;
mod mounter;
mod ownership;
mod paths;
pub mod plan;
pub mod pod_dirs;
mod prepare;
mod record;
mod sub_path;
mod teardown;

pub use error::{SetUpError, VolumeError};
pub use mounter::{HostMounter, Mounter};
pub use paths::{KubeletRoot, Plugin, PodDir, UnsafeName, component};
pub use sub_path::{SubPathRequest, components};

use crate::apiserver::{
    claim::{ClaimKey, Claims},
    configmap_secret::{Found, ObjectKey, Objects},
    token::{TokenKey, Tokens},
    trust_bundle::TrustBundles,
};
use crate::model::{ClaimRef, MeasurableVolume, Pod, PodExt, PodUid};
use crate::resources::NodeFacts;
use content::{Digest, Inputs};
use detached::{DetachedWork, NotDone, Permit};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use plan::PlannedVolume;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a sync waits for files that may hang (upstream's `podAttachAndMountTimeout`).
const TIMEOUT: Duration = Duration::from_secs(123);

/// Where one volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// On the node.
    pub host_path: PathBuf,
    /// The kubelet made it, so the runtime may give it the pod's SELinux label.
    pub managed: bool,
    /// Containers only read it, whatever their mounts say.
    pub read_only: bool,
    /// It is a file system of the node that is measured for its claim.
    pub measured: bool,
}

/// Where a pod's volumes are, by volume name.
pub type VolumePaths = BTreeMap<String, VolumePath>;

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
    mounter: Box<dyn Mounter>,
    prepared: Mutex<HashMap<PodUid, KnownVolumes>>,
    detached: DetachedWork,
}

/// What pods of the API server mount besides objects.
pub struct Cluster {
    /// Tokens of service accounts.
    pub tokens: Tokens,
    /// ClusterTrustBundles.
    pub bundles: TrustBundles,
    /// Volumes of claims.
    pub claims: Claims,
    /// The Node object, whose labels say which volumes the node can have.
    pub node: watch::Receiver<Option<Arc<Node>>>,
}

impl Default for Cluster {
    /// No API server.
    fn default() -> Self {
        Self {
            tokens: Tokens::default(),
            bundles: TrustBundles::default(),
            claims: Claims::default(),
            node: watch::Sender::new(None).subscribe(),
        }
    }
}

/// What the volumes of one pod need of the cluster besides objects.
struct ClusterKeys {
    tokens: BTreeSet<TokenKey>,
    claims: BTreeSet<ClaimKey>,
    has_bundles: bool,
}

impl ClusterKeys {
    /// Whether volumes that are there may have to be written again.
    fn may_change(&self) -> bool {
        !self.tokens.is_empty() || self.has_bundles
    }
}

impl Cluster {
    /// What a pod uses from now on.
    fn register(&self, uid: &PodUid, plan: &[PlannedVolume]) -> ClusterKeys {
        let keys = ClusterKeys {
            tokens: plan::token_keys(plan),
            claims: plan::claim_keys(plan),
            has_bundles: plan::has_bundles(plan),
        };
        self.tokens.register(uid, keys.tokens.clone());
        self.claims.register(uid, keys.claims.clone());
        self.bundles.register(uid, keys.has_bundles);
        keys
    }

    fn forget(&self, uid: &PodUid) {
        self.tokens.forget(uid);
        self.claims.forget(uid);
        self.bundles.forget(uid);
    }

    /// All that is looked up for the volumes of a pod, at once.
    async fn inputs(
        &self,
        uid: &PodUid,
        keys: ClusterKeys,
        objects: impl Future<Output = Found>,
    ) -> Inputs {
        let bundles = async {
            if keys.has_bundles {
                Some(self.bundles.get().await)
            } else {
                None
            }
        };
        let tokens = self.tokens.get(keys.tokens);
        let claims = self.claims.get(uid, keys.claims);
        let (objects, tokens, claims, bundles) = tokio::join!(objects, tokens, claims, bundles);
        Inputs {
            objects,
            tokens,
            claims,
            bundles,
            node: self.node.borrow().clone(),
        }
    }
}

/// What a pod has been given, and from which specification.
#[derive(Clone, Default)]
struct KnownVolumes {
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
        Self::in_cluster(root, node, objects, Cluster::default(), mounter)
    }

    /// The same on a node of a cluster.
    pub fn in_cluster(
        root: KubeletRoot,
        node: Arc<NodeFacts>,
        objects: Objects,
        cluster: Cluster,
        mounter: impl Mounter,
    ) -> Self {
        Self {
            shared: Arc::new(VolumeManagerInner {
                root,
                node,
                objects,
                cluster,
                mounter: Box::new(mounter),
                prepared: Mutex::default(),
                detached: DetachedWork::default(),
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

    /// The volumes of claims that pods have been given and that are measured.
    pub fn claims(&self) -> BTreeMap<ClaimRef, PathBuf> {
        let pods: Vec<_> = self.shared.prepared.lock().keys().cloned().collect();
        let volumes = pods.iter().flat_map(|uid| self.measurable(uid));
        let claims = volumes.filter_map(|volume| Some((volume.claim?, volume.path)));
        claims.collect()
    }

    /// The volumes that a pod has been given and that are its own, and `local` ones of its claims: other paths of the
    /// node are not.
    pub fn measurable(&self, uid: &PodUid) -> Vec<MeasurableVolume> {
        let Some(known) = self.shared.prepared.lock().get(uid).cloned() else {
            return Vec::new();
        };
        let volumes = known.plan.iter().filter_map(|volume| {
            let path = known.paths.get(&volume.name)?;
            let claim = volume.claim().filter(|_| path.measured);
            Some(MeasurableVolume {
                name: volume.name.clone(),
                path: path.host_path.clone(),
                filesystem: claim.is_some() || volume.kind.is_in_memory()?,
                claim,
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
    /// date is no error. [`VolumeError::Cancelled`] when `cancel` fires first, and
    /// [`VolumeError::TimedOut`] after 123 s; what hangs is left behind then.
    pub async fn prepare(
        &self,
        pod: &Pod,
        cancel: &CancellationToken,
    ) -> Result<Prepared, VolumeError> {
        self.shared.objects.register(pod);
        let plan = plan::plan(pod, &self.shared.node)?;
        let uid = pod.uid();
        let in_cluster = self.shared.cluster.register(&uid, &plan);
        let known = self.shared.prepared.lock().get(&uid).cloned();
        let known = known.filter(|known| *known.plan == plan);
        let mut keys = plan::object_keys(&plan);
        if let Some(known) = &known {
            keys.retain(|key| !known.fixed.contains_key(key));
            if keys.is_empty() && !in_cluster.may_change() {
                return Ok(Prepared {
                    paths: known.paths.clone(),
                    stale: Vec::new(),
                });
            }
        }
        if plan.is_empty() {
            // Nothing to make: the pod's directory comes with the first file in it.
            let known = KnownVolumes::default();
            let paths = known.paths.clone();
            self.shared.prepared.lock().insert(uid, known);
            return Ok(Prepared {
                paths,
                stale: Vec::new(),
            });
        }
        let shared = self.shared.clone();
        let (of, objects) = (uid.clone(), self.shared.objects.of(pod));
        let work = |permit| async move {
            let objects = objects.get(keys);
            let inputs = shared.cluster.inputs(&of, in_cluster, objects).await;
            shared.make(of, plan, known, inputs, permit).await
        };
        self.detached(&uid, work, cancel).await?
    }

    /// Config maps and secrets that a pod refers to. They may be on a file system that hangs: errors are
    /// those of [`Self::prepare`], which has to be called first.
    pub async fn objects(
        &self,
        pod: &Pod,
        keys: BTreeSet<ObjectKey>,
        cancel: &CancellationToken,
    ) -> Result<Found, VolumeError> {
        if keys.is_empty() {
            return Ok(Found::new());
        }
        let objects = self.shared.objects.of(pod);
        let work = |_| async move { objects.get(keys).await };
        self.detached(&pod.uid(), work, cancel).await
    }

    /// Waits until objects or tokens of pods changed; takes these pods.
    pub async fn changed(&self) -> HashSet<PodUid> {
        self.shared.objects.changed().await
    }

    async fn detached<T, F>(
        &self,
        uid: &PodUid,
        work: impl FnOnce(Permit) -> F,
        cancel: &CancellationToken,
    ) -> Result<T, VolumeError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let done = self.shared.detached.run(uid, work, TIMEOUT, cancel).await;
        done.map_err(|why| match why {
            NotDone::Cancelled => VolumeError::Cancelled,
            NotDone::TimedOut => VolumeError::TimedOut(TIMEOUT.as_secs()),
        })
    }

    /// Binds the sub-paths one container wants; returns where each is, by mount index. To be done
    /// before every start of the container. What they lead to may hang: `cancel` and errors as with
    /// [`Self::prepare`].
    pub async fn prepare_sub_paths(
        &self,
        uid: &PodUid,
        container: &str,
        requests: Vec<SubPathRequest>,
        cancel: &CancellationToken,
    ) -> Result<BTreeMap<usize, PathBuf>, VolumeError> {
        if requests.is_empty() {
            return Ok(BTreeMap::new());
        }
        let shared = self.shared.clone();
        let pod = shared.root.pod(uid)?;
        let container = container.to_string();
        let work = |permit: Permit| async move {
            let bind = move || {
                requests
                    .iter()
                    .map(|request| shared.bind_sub_path(&pod, &container, request, &permit))
                    .collect()
            };
            tokio::task::spawn_blocking(bind).await?
        };
        self.detached(uid, work, cancel).await?
    }

    /// Unmounts the pod's volumes and deletes its scratch data. To be called when none of its
    /// containers runs any more; doing it again is fine. Waits for what a sync left behind, as long as
    /// that makes something.
    pub async fn teardown(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.shared.objects.forget(uid);
        self.shared.cluster.forget(uid);
        self.shared.detached.idle(uid).await;
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
