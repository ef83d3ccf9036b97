//! Volumes of CSI drivers: a pod's setup waits until they are published.

use super::KindRow;
use super::claim::{ClaimAttempt, NodePath, PersistentSource, ResolvedClaim};
use super::plan::Planning;
use crate::apiserver::claim::ClaimError;
use crate::base::{run_file_io, spawn_blocking};
use crate::model::{PodExt as _, PodUid};
use crate::volumes::csi::identity::VolumeIdentity;
use crate::volumes::csi::migration;
use crate::volumes::csi::spec::CsiVolumeSpec;
use crate::volumes::csi::volume::PublishRequest;
use crate::volumes::mounter::unmount_beneath;
use crate::volumes::ownership::ChangePolicy;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{HostPathCheck, VolumeError, VolumeGroup, VolumeManagerInner, VolumePath};
use anyhow::anyhow;
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

const KEY: &str = "csi";

pub(super) const KIND: KindRow = KindRow {
    plan,
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    tear_down: |manager, uid| Box::pin(tear_down(manager, uid)),
    ..KindRow::NONE
};

/// A volume of a CSI driver that a pod defines inline, also by a former in-tree plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InlineCsiVolume {
    spec: Arc<CsiVolumeSpec>,
    /// The pod's `fsGroup` and `fsGroupChangePolicy`.
    owner: (VolumeGroup, ChangePolicy),
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let (pod, volume) = (planning.pod, planning.volume);
    let spec = match &volume.csi {
        Some(csi) => CsiVolumeSpec::from_inline(csi, &volume.name, &pod.uid(), pod.namespace())?,
        None => match migration::inline_volume(volume, pod.namespace())? {
            Some(spec) => spec,
            None => return Ok(None),
        },
    };
    Ok(Some(Arc::new(InlineCsiVolume { spec: Arc::new(spec), owner: planning.owner()? })))
}

impl Kind for InlineCsiVolume {
    fn metric_plugin(&self, _path: Option<&VolumePath>) -> Option<&'static str> {
        None
    }

    fn waits_for(&self) -> Cow<'static, str> {
        format!("CSI driver {}", self.spec.driver()).into()
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move {
            let (spec, read_only) = (self.spec.clone(), self.spec.read_only);
            let path = publish(&attempt, spec, read_only, self.owner).await?;
            let path = VolumePath { managed: !read_only, read_only, ..VolumePath::of(path) };
            Ok(path.into())
        })
    }
}

/// The recorded volume of a claim. Its path is empty until it is published.
#[derive(PartialEq, Eq, Deserialize)]
struct CsiOfClaim {
    driver: String,
    handle: String,
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(csi) = &source.spec.csi else {
        return Ok(None);
    };
    let recorded = json!({"driver": csi.driver, "handle": csi.volume_handle});
    Ok(Some(NodePath {
        managed: !source.claim.read_only && !source.is_device,
        ..source.path_of_kind(KEY, recorded)
    }))
}

/// Sets up the volume of a claim. While the API server has returned no PersistentVolume, the pod keeps what an earlier
/// kubelet has published for it.
async fn set_up_claim(mut claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let kept = keep_earlier(&claim).await;
    let (of_pod, attempt) = (&claim.claim, &claim.attempt);
    let found = match attempt.inputs.claims.get(&of_pod.key) {
        Some(Ok(volume)) if kept.is_none() => {
            migration::spec_of(volume).map_err(|error| claim.fail(error))?
        }
        _ => None,
    };
    let path = match (kept, found) {
        (Some((recorded, path)), _) => {
            claim.resolved = recorded;
            path
        }
        (None, Some(spec)) => {
            publish(attempt, Arc::new(spec), of_pod.read_only, of_pod.owner).await?
        }
        (None, None) => {
            let earlier = published_earlier(attempt, &claim.resolved).await;
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
    // Files that have the pod's label from the mount are not relabelled.
    let (csi, uid) = (&attempt.manager.csi, &attempt.pod.uid);
    let has_label = csi.mounts_with_label(uid, &attempt.name);
    let mut ready = run_file_io(move || claim.finish(path, HostPathCheck::None)).await??;
    ready.path.managed &= !has_label;
    Ok(ready)
}

/// What an earlier kubelet has published for the pod, if the claim's name stands for another volume now: a claim stays
/// bound to its volume, so the object was edited, or the claim was deleted by force and made anew.
async fn keep_earlier(claim: &ClaimAttempt) -> Option<(ResolvedClaim, PathBuf)> {
    let recorded = claim.recorded.clone()?;
    let is_other = |recorded: &CsiOfClaim| {
        let now = claim.resolved.at.of_kind(KEY);
        !now.is_ok_and(|now: CsiOfClaim| now == *recorded)
    };
    let of_kind = recorded.at.of_kind(KEY).ok();
    if recorded.claim != claim.resolved.claim || !of_kind.as_ref().is_some_and(is_other) {
        return None;
    }
    let path = published_earlier(&claim.attempt, &recorded).await?;
    let (uid, claim, volume) = (&claim.attempt.pod.uid, &recorded.claim, &recorded.volume);
    tracing::warn!(podUID = %uid, claim, volume, "The claim names another volume now; the pod keeps the one that is mounted");
    Some((recorded, path))
}

async fn publish(
    attempt: &Attempt,
    spec: Arc<CsiVolumeSpec>,
    read_only: bool,
    (group, change_policy): (VolumeGroup, ChangePolicy),
) -> Result<PathBuf, VolumeError> {
    let pod = &attempt.pod;
    // What a pod has been given is what is undone; a PersistentVolume that was replaced is for the next pod.
    if let Some(handle) = attempt.manager.csi.replaced_handle(&pod.uid, &spec) {
        let why = anyhow!(
            "the pod has the volume {handle:?}, and the PersistentVolume has another one now"
        );
        return Err(VolumeError::set_up(&spec.spec_name, why));
    }
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

async fn published_earlier(attempt: &Attempt, resolved: &ResolvedClaim) -> Option<PathBuf> {
    let CsiOfClaim { driver, handle } = resolved.at.of_kind(KEY).ok()?;
    let identity = if resolved.at.is_device {
        VolumeIdentity::block(&driver, &handle, &resolved.volume)
    } else {
        VolumeIdentity::persistent(&driver, &handle)
    };
    let identity = identity.ok()?;
    let (csi, uid) = (attempt.manager.csi.clone(), attempt.pod.uid.clone());
    let find = move || csi.published_earlier(&uid, &identity);
    spawn_blocking(find).await.ok()?
}

/// Unpublishes the pod's volumes. Their sub-paths are unmounted before, because a driver may refuse to unmount what is
/// mounted elsewhere as well.
async fn tear_down(manager: Arc<VolumeManagerInner>, uid: PodUid) -> Result<(), VolumeError> {
    let pod = manager.root.pod(&uid)?;
    if manager.csi.has_volumes_of(&uid) {
        let (mounter, directory) = (manager.mounter.clone(), pod.sub_paths());
        let unmount = move || unmount_beneath(&directory, mounter.as_ref());
        spawn_blocking(unmount).await??;
        manager.csi.unpublish(&uid).await?;
    }
    spawn_blocking(move || manager.csi.remove_leftovers(&pod)).await?;
    Ok(())
}
