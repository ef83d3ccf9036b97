//! What a kind of volumes does for one volume of a pod.

use super::PodVolumes;
use crate::apiserver::claim::PersistentVolumeClaimKey;
use crate::apiserver::configmap_secret::{ConfigMapsAndSecrets, PodConfigMapSecretReader};
use crate::base::run_file_io;
use crate::model::PodUid;
use crate::volumes::cluster::{VolumeInputs, VolumeKeys};
use crate::volumes::csi::requests::MountingPod;
use crate::volumes::metrics::NO_PLUGIN;
use crate::volumes::mount_threads::MountThreads;
use crate::volumes::{
    Mounter, PodDir, VolumeError, VolumeManagerInner, VolumePath, VolumePlugin, state,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A setup in progress.
pub(in crate::volumes) type SetUp = BoxFuture<'static, Result<ReadyVolume, VolumeError>>;

/// A volume as its kind has planned it.
pub(in crate::volumes) trait Kind: Any + Debug + Send + Sync + SameKind {
    /// Sets the volume up, or updates it if the attempt has it ready. Must be repeatable, also after a crash at any step.
    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp;

    /// What its setup waits for, once everything is looked up.
    fn waits_for(&self) -> Cow<'static, str> {
        state::FILES.into()
    }

    /// The plugin below whose directory the volume is created, and whether it is a mount. Such a volume is recorded before
    /// it is created, and its usage is measured: a mount's as its file system, others' as a directory.
    fn directory(&self) -> Option<(VolumePlugin, bool)> {
        None
    }

    /// The claim, if it is the volume of one: its usage may be the claim's.
    fn claim(&self) -> Option<&PersistentVolumeClaimKey> {
        None
    }

    /// Adds what has to be looked up for a setup.
    fn add_keys(&self, _keys: &mut VolumeKeys) {}

    /// Whether the kubelet updates the volume while containers use it.
    fn has_content(&self) -> bool {
        false
    }

    /// Whether the content may have changed, if the volume was set up with these immutable configmaps and secrets.
    fn may_change(&self, _immutable: &ConfigMapsAndSecrets) -> bool {
        false
    }

    /// Whether an earlier kubelet set up the content. Blocking.
    fn is_on_disk(&self, _pod: &PodDir, _name: &str, _mounter: &dyn Mounter) -> bool {
        false
    }

    /// Its plugin in metrics, once it is set up at this path; `None` if it counts itself.
    fn metric_plugin(&self, _path: Option<&VolumePath>) -> Option<&'static str> {
        Some(self.directory().map_or(NO_PLUGIN, |(plugin, _)| plugin.0))
    }

    /// Why the volume of the claim cannot be set up on this node, if it is one.
    fn check_claim(
        &self,
        _name: &str,
        _volume: &PersistentVolume,
        _node: Option<&Node>,
    ) -> Result<(), VolumeError> {
        Ok(())
    }

    /// False if each attempt fails, because this kubelet lacks something.
    fn is_supported(&self) -> bool {
        true
    }
}

/// A volume as its kind has planned it; `None` if it is of another kind.
pub(in crate::volumes) type PlannedKind = Option<Arc<dyn Kind>>;

/// Compares planned volumes of any kind.
pub(in crate::volumes) trait SameKind {
    fn is_same(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> SameKind for T {
    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// One volume to set up.
#[derive(Clone, Debug)]
pub struct PlannedVolume {
    /// Its name in the pod.
    pub name: String,
    pub(in crate::volumes) kind: Arc<dyn Kind>,
}

impl PlannedVolume {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && (*self.kind).is_same(&*other.kind as &dyn Any)
    }

    /// Whether this kubelet can set it up.
    pub fn is_supported(&self) -> bool {
        self.kind.is_supported()
    }
}

/// A volume that is set up.
#[derive(Debug, Default)]
pub(in crate::volumes) struct ReadyVolume {
    pub(in crate::volumes) path: VolumePath,
    /// The digest of its content, if it was written.
    pub(in crate::volumes) content_digest: Option<[u8; 32]>,
    /// Its immutable configmaps and secrets, as first used for the pod; they are not looked up again.
    pub(in crate::volumes) immutable: ConfigMapsAndSecrets,
    /// Why its content is not up to date, until that is recorded.
    pub(in crate::volumes) update_error: Option<VolumeError>,
}

impl From<VolumePath> for ReadyVolume {
    fn from(path: VolumePath) -> Self {
        Self { path, ..Self::default() }
    }
}

/// The pod whose volumes are set up.
#[derive(Clone)]
pub(in crate::volumes) struct VolumePod {
    pub(in crate::volumes) uid: PodUid,
    /// How calls of CSI drivers name it.
    pub(in crate::volumes) mounting: Arc<MountingPod>,
    pub(in crate::volumes) directory: PodDir,
    pub(in crate::volumes) configmaps_and_secrets: PodConfigMapSecretReader,
    pub(in crate::volumes) volumes: Arc<PodVolumes>,
}

/// One attempt to set up or update a volume.
pub(in crate::volumes) struct Attempt {
    pub(in crate::volumes) manager: Arc<VolumeManagerInner>,
    pub(in crate::volumes) pod: VolumePod,
    /// The volume's name in the pod.
    pub(in crate::volumes) name: String,
    pub(in crate::volumes) inputs: VolumeInputs,
    /// The volume to update; `None` if it is to be set up.
    pub(in crate::volumes) ready: Option<Arc<ReadyVolume>>,
}

impl Attempt {
    /// The threads for work on paths of the node, and what ends the wait for one.
    pub(in crate::volumes) fn threads(&self) -> (Arc<MountThreads>, CancellationToken) {
        let ended = self.pod.volumes.ended.clone();
        (self.manager.threads.clone(), ended)
    }

    /// Runs file operations below the pod's directory, unless the pod is being torn down.
    pub(in crate::volumes) fn create(
        self,
        work: impl FnOnce(&Self) -> anyhow::Result<ReadyVolume> + Send + 'static,
    ) -> SetUp {
        let create = move || {
            let _creating = self.pod.volumes.creation_guard()?;
            work(&self).map_err(|source| VolumeError::set_up(&self.name, source))
        };
        Box::pin(async move { run_file_io(create).await? })
    }
}
