//! Volumes of claims: a claim is resolved to a PersistentVolume, whose kind sets it up. Which volume it is is recorded on
//! disk.

mod marker;
mod resolve;
#[cfg(test)]
mod tests;

pub(super) use resolve::{NodePath, PersistentSource, ResolvedClaim};

use super::KindRow;
use super::plan::Planning;
use crate::apiserver::claim::{ClaimError, PersistentVolumeClaimKey};
use crate::base::run_file_io;
use crate::model::PodExt as _;
use crate::volumes::cluster::VolumeKeys;
use crate::volumes::metrics::{HOST_PATH, NO_PLUGIN};
use crate::volumes::ownership::ChangePolicy;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{HostPathCheck, VolumeError, VolumeGroup, VolumePath, VolumePlugin, pod_dirs};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) const KIND: KindRow = KindRow { plan, ..KindRow::NONE };

/// A volume that a pod mounts by its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimVolume {
    /// The claim.
    pub(super) key: PersistentVolumeClaimKey,
    /// A container names it in `volumeMounts`.
    pub(super) is_mounted: bool,
    /// A container names it in `volumeDevices`.
    pub(super) is_mapped: bool,
    /// The pod mounts it read-only.
    pub(super) read_only: bool,
    /// The pod's `fsGroup` and `fsGroupChangePolicy`.
    pub(super) owner: (VolumeGroup, ChangePolicy),
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some((key, read_only)) = claim_of(planning) else {
        return Ok(None);
    };
    Ok(Some(Arc::new(ClaimVolume {
        key,
        is_mounted: planning.is_mounted,
        is_mapped: planning.is_mapped,
        read_only,
        owner: planning.owner()?,
    })))
}

/// The claim of a volume, if it has one: the claim that it names, or the one that is generated for it; and whether the pod
/// mounts it read-only.
fn claim_of(planning: &Planning<'_>) -> Option<(PersistentVolumeClaimKey, bool)> {
    let (pod, volume) = (planning.pod, planning.volume);
    let key = |name, generated_for| PersistentVolumeClaimKey {
        namespace: pod.namespace().to_owned(),
        name,
        generated_for,
    };
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only.unwrap_or(false);
        return Some((key(claim.claim_name.clone(), None), read_only));
    }
    volume.ephemeral.as_ref()?;
    let name = format!("{}-{}", pod.name(), volume.name);
    Some((key(name, Some(pod.name().to_owned())), false))
}

impl Kind for ClaimVolume {
    fn waits_for(&self) -> Cow<'static, str> {
        format!("the volume of claim {}", self.key.name).into()
    }

    fn metric_plugin(&self, path: Option<&VolumePath>) -> Option<&'static str> {
        Some(match path {
            Some(VolumePath { plugin: Some(plugin), .. }) => plugin,
            Some(path) if path.is_device => VolumePlugin::LOCAL.0,
            Some(_) => HOST_PATH,
            None => NO_PLUGIN,
        })
    }

    fn claim(&self) -> Option<&PersistentVolumeClaimKey> {
        Some(&self.key)
    }

    fn check_claim(
        &self,
        name: &str,
        volume: &PersistentVolume,
        node: Option<&Node>,
    ) -> Result<(), VolumeError> {
        resolve::resolve(name, self, Ok(volume), node, None).map(drop)
    }

    fn add_keys(&self, keys: &mut VolumeKeys) {
        keys.claims.insert(self.key.clone());
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move {
            let (pod, name) = (attempt.pod.directory.clone(), attempt.name.clone());
            let recorded = run_file_io(move || marker::read(&pod, &name)).await?;
            let (name, inputs) = (&attempt.name, &attempt.inputs);
            let found = match inputs.claims.get(&self.key) {
                Some(found) => found.as_deref().map_err(Clone::clone),
                None => Err(ClaimError::Claim("it was not looked up".into())),
            };
            let node = inputs.node.as_deref();
            let resolved = resolve::resolve(name, &self, found, node, recorded.clone())?;
            let kind = KindRow::of(&resolved.at);
            let claim = ClaimAttempt { claim: self, recorded, resolved, attempt };
            (kind.set_up_claim)(claim).await
        })
    }
}

/// One attempt to set up the volume of a claim.
pub(super) struct ClaimAttempt {
    pub(super) attempt: Attempt,
    pub(super) claim: Arc<ClaimVolume>,
    pub(super) resolved: ResolvedClaim,
    /// The volume that an earlier successful attempt recorded.
    pub(super) recorded: Option<ResolvedClaim>,
}

impl ClaimAttempt {
    /// Whether an earlier attempt for this volume succeeded.
    pub(super) fn was_made(&self) -> bool {
        self.recorded.as_ref() == Some(&self.resolved)
    }

    pub(super) fn fail(&self, source: anyhow::Error) -> VolumeError {
        VolumeError::set_up(&self.resolved.volume, source)
    }

    /// The pod's `fsGroup` and its change policy, if they apply to a volume on a path of the node.
    pub(super) fn owner(&self) -> Option<(VolumeGroup, ChangePolicy)> {
        self.resolved.at.owned.then_some(self.claim.owner)
    }

    /// Whether another pod uses this path of the node by a claim, also one that this process has not synced yet. Blocking.
    pub(super) fn is_in_use(&self) -> bool {
        let (root, own) = (&self.attempt.manager.root, &self.attempt.pod.directory);
        let pods = pod_dirs::list(root).unwrap_or_default();
        let mut pods = pods.iter().filter_map(|uid| root.pod(uid).ok());
        pods.any(|other| other != *own && marker::resolved_to(&other, &self.resolved.at.path))
    }

    /// Records the volume, which is set up at this path. Blocking.
    pub(super) fn finish(
        self,
        host_path: PathBuf,
        check: HostPathCheck,
    ) -> Result<ReadyVolume, VolumeError> {
        let pod = &self.attempt.pod;
        let _creating = pod.volumes.creation_guard()?;
        let written = marker::write(&pod.directory, &self.attempt.name, &self.resolved);
        written.map_err(|error| self.fail(error))?;
        let at = &self.resolved.at;
        let path = VolumePath {
            persistent_volume: Some(self.resolved.volume.clone()),
            check,
            managed: at.managed,
            read_only: self.claim.read_only,
            plugin: KindRow::of(at).plugins.first().map(|plugin| plugin.0),
            measured: at.measured,
            is_device: at.is_device,
            group: at.group,
            ..VolumePath::of(host_path)
        };
        Ok(path.into())
    }
}
