//! Sets up volumes of CSI drivers for a pod: waits until they are published.

use super::{
    VolumeError, VolumeManagerInner, VolumePath,
    claim::ResolvedClaim,
    claim_marker,
    content::{VolumeGroup, VolumeInputs},
    csi::{identity::VolumeIdentity, spec::CsiVolumeSpec, volume::PublishRequest},
    ownership::ChangePolicy,
    plan::InlineCsiVolume,
    pod_volumes::SetUpResult,
    set_up::{Attempt, ClaimAttempt, VolumePod},
};
use crate::{apiserver::claim::ClaimError, base::run_file_io};
use std::{path::PathBuf, sync::Arc};

impl VolumeManagerInner {
    /// Sets up a volume that the pod defines inline.
    pub(super) async fn attempt_inline_csi(
        &self,
        attempt: &Attempt,
        volume: &InlineCsiVolume,
    ) -> Result<SetUpResult, VolumeError> {
        let read_only = volume.spec.read_only;
        let owner = (volume.group, volume.change_policy);
        let name = &attempt.planned.name;
        let pod = &attempt.pod;
        let path = self.publish_csi(pod, name, volume.spec.clone(), read_only, owner);
        let path = path.await?;
        Ok(SetUpResult::of(VolumePath {
            managed: !read_only,
            read_only,
            ..VolumePath::of(path)
        }))
    }

    /// Sets up the volume of a claim. While the API server has returned no PersistentVolume, the pod keeps what an earlier
    /// kubelet has published for it.
    pub(super) async fn attempt_csi_claim(
        self: Arc<Self>,
        attempt: ClaimAttempt,
        mut resolved: ResolvedClaim,
        inputs: &VolumeInputs,
    ) -> Result<SetUpResult, VolumeError> {
        let (claim, pod) = (&attempt.claim, &attempt.pod);
        let found = match inputs.claims.get(&claim.key) {
            Some(Ok(volume)) => {
                let spec = CsiVolumeSpec::from_persistent_volume(volume);
                spec.map_err(|error| VolumeError::set_up(&resolved.volume, error.into()))?
            }
            _ => None,
        };
        let path = match found {
            Some(spec) => {
                let owner = (claim.group, claim.change_policy);
                let spec = Arc::new(spec);
                self.publish_csi(pod, &attempt.name, spec, claim.read_only, owner)
                    .await?
            }
            None => {
                let earlier = self.clone().published_earlier(pod, &resolved).await;
                earlier.ok_or_else(|| VolumeError::Claim {
                    volume: attempt.name.clone(),
                    key: claim.key.clone(),
                    source: Box::new(ClaimError::Unsynced(
                        "the API server has not returned the PersistentVolume yet".to_owned(),
                    )),
                })?
            }
        };
        resolved.at.path = path.to_string_lossy().into_owned();
        let at = &resolved.at;
        let volume_path = VolumePath {
            managed: at.managed,
            read_only: claim.read_only,
            group: at.group,
            ..VolumePath::of(path)
        };
        let (pod, name) = (attempt.pod.clone(), attempt.name.clone());
        let write = move || {
            let _creating = pod.volumes.creation_guard().ok_or(VolumeError::Cancelled)?;
            claim_marker::write(&pod.directory, &name, &resolved)
                .map_err(|source| VolumeError::set_up(&resolved.volume, source))
        };
        run_file_io(write).await??;
        Ok(SetUpResult::of(volume_path))
    }

    async fn publish_csi(
        &self,
        pod: &VolumePod,
        name: &str,
        spec: Arc<CsiVolumeSpec>,
        read_only: bool,
        (group, change_policy): (VolumeGroup, ChangePolicy),
    ) -> Result<PathBuf, VolumeError> {
        let request = PublishRequest {
            volume: name.to_owned(),
            spec,
            pod: (*pod.mounting).clone(),
            directory: pod.directory.clone(),
            read_only,
            group,
            change_policy,
        };
        // Held until the wish is recorded: a pod that is being torn down wants nothing any more.
        let publish = {
            let _creating = pod.volumes.creation_guard().ok_or(VolumeError::Cancelled)?;
            self.csi.begin_publish(request)
        };
        let published = pod.volumes.ended.run_until_cancelled(publish.finish());
        published.await.ok_or(VolumeError::Cancelled)?
    }

    async fn published_earlier(
        self: Arc<Self>,
        pod: &VolumePod,
        resolved: &ResolvedClaim,
    ) -> Option<PathBuf> {
        let csi = resolved.at.csi.as_ref()?;
        let identity = VolumeIdentity::persistent(&csi.driver, &csi.handle).ok()?;
        let uid = pod.uid.clone();
        let find = move || self.csi.published_earlier(&uid, &identity);
        tokio::task::spawn_blocking(find).await.ok()?
    }
}
