//! Volumes of CSI drivers: a pod's setup waits until they are published.

use super::{
    KindRow,
    claim::{ClaimAttempt, NodePath, PersistentSource},
    plan::Planning,
};
use crate::apiserver::claim::ClaimError;
use crate::base::run_file_io;
use crate::model::{PodExt as _, PodUid};
use crate::volumes::{
    HostPathCheck, Mounter, PodDir, VolumeError, VolumeGroup, VolumeManagerInner, VolumePath,
    csi::{identity::VolumeIdentity, spec::CsiVolumeSpec, volume::PublishRequest},
    error::io_error,
    ownership::ChangePolicy,
    pod_volumes::{Attempt, Kind, ReadyVolume, SetUp},
};
use serde::Deserialize;
use serde_json::json;
use std::{borrow::Cow, path::PathBuf, sync::Arc};
use tokio::task::spawn_blocking;

const KEY: &str = "csi";

pub(super) const KIND: KindRow = KindRow {
    plan,
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    tear_down: |manager, uid| Box::pin(tear_down(manager, uid)),
    ..KindRow::NONE
};

/// A volume of a CSI driver that a pod defines inline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InlineCsiVolume {
    spec: Arc<CsiVolumeSpec>,
    /// The pod's `fsGroup` and `fsGroupChangePolicy`.
    owner: (VolumeGroup, ChangePolicy),
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<Option<Arc<dyn Kind>>> {
    let (pod, volume) = (planning.pod, planning.volume);
    let Some(source) = &volume.csi else {
        return Ok(None);
    };
    let spec = CsiVolumeSpec::from_inline(source, &volume.name, &pod.uid(), pod.namespace())?;
    Ok(Some(Arc::new(InlineCsiVolume {
        spec: Arc::new(spec),
        owner: planning.owner()?,
    })))
}

impl Kind for InlineCsiVolume {
    fn waits_for(&self) -> Cow<'static, str> {
        format!("CSI driver {}", self.spec.driver()).into()
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move {
            let (spec, read_only) = (self.spec.clone(), self.spec.read_only);
            let path = publish(&attempt, spec, read_only, self.owner).await?;
            let path = VolumePath {
                managed: !read_only,
                read_only,
                ..VolumePath::of(path)
            };
            Ok(path.into())
        })
    }
}

/// The recorded volume of a claim. Its path is empty until it is published.
#[derive(Deserialize)]
struct CsiOfClaim {
    driver: String,
    handle: String,
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(csi) = &source.spec.csi else {
        return Ok(None);
    };
    if source.is_device {
        return source.unsupported("spec.volumeMode \"Block\" beside spec.csi");
    }
    let recorded = json!({"driver": csi.driver, "handle": csi.volume_handle});
    Ok(Some(NodePath {
        managed: !source.claim.read_only,
        ..source.path_of_kind(KEY, recorded)
    }))
}

/// Sets up the volume of a claim. While the API server has returned no PersistentVolume, the pod keeps what an earlier
/// kubelet has published for it.
async fn set_up_claim(mut claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let (of_pod, attempt) = (&claim.claim, &claim.attempt);
    let found = match attempt.inputs.claims.get(&of_pod.key) {
        Some(Ok(volume)) => {
            let spec = CsiVolumeSpec::from_persistent_volume(volume);
            spec.map_err(|error| claim.fail(error.into()))?
        }
        _ => None,
    };
    let path = match found {
        Some(spec) => publish(attempt, Arc::new(spec), of_pod.read_only, of_pod.owner).await?,
        None => {
            let earlier = published_earlier(&claim).await;
            earlier.ok_or_else(|| VolumeError::Claim {
                volume: attempt.name.clone(),
                key: of_pod.key.clone(),
                source: Box::new(ClaimError::Unsynced(
                    "the API server has not returned the PersistentVolume yet".to_owned(),
                )),
            })?
        }
    };
    claim.resolved.at.path = path.to_string_lossy().into_owned();
    run_file_io(move || claim.finish(path, HostPathCheck::None)).await?
}

async fn publish(
    attempt: &Attempt,
    spec: Arc<CsiVolumeSpec>,
    read_only: bool,
    (group, change_policy): (VolumeGroup, ChangePolicy),
) -> Result<PathBuf, VolumeError> {
    let pod = &attempt.pod;
    let request = PublishRequest {
        volume: attempt.name.clone(),
        spec,
        pod: (*pod.mounting).clone(),
        directory: pod.directory.clone(),
        read_only,
        group,
        change_policy,
    };
    // Held until the wish is recorded: a pod that is being torn down wants nothing any more.
    let publish = {
        let _creating = pod.volumes.creation_guard()?;
        attempt.manager.csi.begin_publish(request)
    };
    let published = pod.volumes.ended.run_until_cancelled(publish.finish());
    published.await.ok_or(VolumeError::Cancelled)?
}

async fn published_earlier(claim: &ClaimAttempt) -> Option<PathBuf> {
    let CsiOfClaim { driver, handle } = claim.resolved.at.of_kind(KEY).ok()?;
    let identity = VolumeIdentity::persistent(&driver, &handle).ok()?;
    let (csi, uid) = (
        claim.attempt.manager.csi.clone(),
        claim.attempt.pod.uid.clone(),
    );
    let find = move || csi.published_earlier(&uid, &identity);
    spawn_blocking(find).await.ok()?
}

/// Unpublishes the pod's volumes. Their sub-paths are unmounted before, because a driver may refuse to unmount what is
/// mounted elsewhere as well.
async fn tear_down(manager: Arc<VolumeManagerInner>, uid: PodUid) -> Result<(), VolumeError> {
    let pod = manager.root.pod(&uid)?;
    if manager.csi.has_volumes_of(&uid) {
        let (mounter, pod) = (manager.mounter.clone(), pod.clone());
        let unmount = move || unmount_sub_paths(&pod, mounter.as_ref());
        spawn_blocking(unmount).await??;
        manager.csi.unpublish(&uid).await?;
    }
    spawn_blocking(move || manager.csi.remove_leftovers(&pod)).await?;
    Ok(())
}

/// Unmounts the sub-paths of a pod's volumes, the newest one first.
fn unmount_sub_paths(pod: &PodDir, mounter: &dyn Mounter) -> Result<(), VolumeError> {
    let directory = pod.sub_paths();
    let mounts = mounter
        .list()
        .map_err(io_error("list the mounts below", &directory))?;
    let beneath = mounts
        .iter()
        .rev()
        .filter(|mount| mount.is_beneath(&directory));
    for mount in beneath {
        let path = &mount.mount_point;
        mounter.unmount(path).map_err(io_error("unmount", path))?;
    }
    Ok(())
}
