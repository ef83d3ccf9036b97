//! Which volumes a pod needs, and how each is set up. Pure.

use super::KINDS;
use crate::apiserver::claim::PersistentVolumeClaimKey;
use crate::base::error_chain;
use crate::model::{NodeFacts, Pod, PodExt, Quantity, requests};
use crate::volumes::cluster::VolumeKeys;
use crate::volumes::ownership::ChangePolicy;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedVolume, SetUp};
use crate::volumes::{Unsupported, VolumeError, VolumeGroup};
use anyhow::Context as _;
use futures::future::ready;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::sync::Arc;

/// The volumes that a container of the pod mounts or uses as device, in spec order; as upstream, others are not set
/// up. `certificates` is whether pods can have certificates.
pub fn plan(
    pod: &Pod,
    node: &NodeFacts,
    certificates: bool,
) -> Result<Vec<PlannedVolume>, VolumeError> {
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref());
    // The runtime mounts image volumes.
    let volumes = volumes.unwrap_or_default().iter();
    let volumes = volumes.filter(|volume| volume.image.is_none());
    let planned = volumes.filter_map(|volume| {
        let (is_mounted, is_mapped) = uses(pod, &volume.name);
        let planning = Planning { pod, volume, node, certificates, is_mounted, is_mapped };
        let kind = (is_mounted || is_mapped).then(|| planning.kind())?;
        let kind = kind.map_err(|error| VolumeError::set_up(&volume.name, error));
        let name = volume.name.clone();
        Some(kind.map(|kind| PlannedVolume { name, kind }))
    });
    planned.collect()
}

/// The claims that a pod mounts, and why volumes of it cannot be set up on this node.
#[derive(Debug, Default)]
pub struct VolumeCheck {
    /// The claims, by the name of the volume in the pod.
    pub claims: Vec<(String, PersistentVolumeClaimKey)>,
    /// The errors that every attempt to set up the volumes has, which name the volume.
    pub errors: Vec<String>,
}

/// Checks the volumes of a pod without setting them up. `bound` is the PersistentVolume of a claim, if it is known.
pub fn check(
    pod: &Pod,
    facts: &NodeFacts,
    node: Option<&Node>,
    bound: &dyn Fn(&PersistentVolumeClaimKey) -> Option<Arc<PersistentVolume>>,
) -> VolumeCheck {
    let mut check = VolumeCheck::default();
    let planned = match plan(pod, facts, true) {
        Ok(planned) => planned,
        Err(error) => {
            check.errors.push(error_chain(&error));
            return check;
        }
    };
    for PlannedVolume { name, kind } in planned {
        if !kind.is_supported() {
            check.errors.push(format!("volume {name}: its kind is not supported by this kubelet"));
        }
        let Some(key) = kind.claim() else { continue };
        if let Some(volume) = bound(key)
            && let Err(error) = kind.check_claim(&name, &volume, node)
        {
            check.errors.push(format!("volume {name}: {}", error_chain(&error)));
        }
        check.claims.push((name, key.clone()));
    }
    check
}

/// What has to be looked up for these volumes.
pub(in crate::volumes) fn keys(plan: &[PlannedVolume]) -> VolumeKeys {
    let mut keys = VolumeKeys::default();
    plan.iter().for_each(|volume| volume.kind.add_keys(&mut keys));
    keys
}

/// Whether containers of the pod name a volume in `volumeMounts`, and in `volumeDevices`.
fn uses(pod: &Pod, volume: &str) -> (bool, bool) {
    let containers = pod.containers().iter().chain(pod.init_containers());
    let containers = containers.map(|one| (&one.volume_mounts, &one.volume_devices));
    let ephemeral = pod.ephemeral_containers().iter();
    let ephemeral = ephemeral.map(|one| (&one.volume_mounts, &one.volume_devices));
    let (mut is_mounted, mut is_mapped) = (false, false);
    for (mounts, devices) in containers.chain(ephemeral) {
        is_mounted |= mounts.iter().flatten().any(|mount| mount.name == volume);
        is_mapped |= devices.iter().flatten().any(|device| device.name == volume);
    }
    (is_mounted, is_mapped)
}

/// What a kind plans a pod's volume from.
pub(super) struct Planning<'a> {
    pub(super) pod: &'a Pod,
    pub(super) volume: &'a Volume,
    pub(super) node: &'a NodeFacts,
    /// Whether pods can have certificates.
    pub(super) certificates: bool,
    /// A container names the volume in `volumeMounts`.
    pub(super) is_mounted: bool,
    /// A container names it in `volumeDevices`.
    pub(super) is_mapped: bool,
}

impl Planning<'_> {
    fn kind(&self) -> anyhow::Result<Arc<dyn Kind>> {
        let volume = self.volume;
        let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
        if self.is_mapped && !is_claim {
            let source = source_name(volume);
            let what = format!("volumeDevices of a volume with {source}");
            return Ok(Arc::new(Unsupported(what)));
        }
        for kind in KINDS {
            if let Some(planned) = (kind.plan)(self)? {
                return Ok(planned);
            }
        }
        Ok(Arc::new(Unsupported(source_name(volume))))
    }

    /// The pod's `fsGroup`.
    pub(super) fn group(&self) -> anyhow::Result<VolumeGroup> {
        let security = self.pod.spec().and_then(|spec| spec.security_context.as_ref());
        match security.and_then(|context| context.fs_group) {
            None => Ok(VolumeGroup(None)),
            Some(group) => u32::try_from(group)
                .map(|group| VolumeGroup(Some(group)))
                .map_err(|_| Unsupported(format!("fsGroup {group}")).into()),
        }
    }

    /// The pod's `fsGroup` and `fsGroupChangePolicy`.
    pub(super) fn owner(&self) -> anyhow::Result<(VolumeGroup, ChangePolicy)> {
        let security = self.pod.spec().and_then(|spec| spec.security_context.as_ref());
        let policy = security.and_then(|context| context.fs_group_change_policy.as_deref());
        let policy = match policy {
            Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
            _ => ChangePolicy::Always,
        };
        Ok((self.group()?, policy))
    }

    /// The size limit of a volume in memory in bytes: the minimum of its `sizeLimit`, the pod's memory limit and the
    /// node's allocatable memory.
    pub(super) fn memory_size(&self, limit: Option<&ApiQuantity>) -> anyhow::Result<u64> {
        let own = limit.map(Quantity::from_api).transpose();
        let own = own.context("sizeLimit")?.map(Quantity::value);
        let of_pod = requests::pod_memory_bound(self.pod).map_err(VolumeError::from)?;
        let size = [own, of_pod]
            .into_iter()
            .flatten()
            .filter(|bytes| *bytes > 0)
            .fold(self.node.allocatable_memory_bytes, i64::min);
        Ok(u64::try_from(size).unwrap_or(0))
    }
}

/// A volume that this kubelet cannot set up. Every attempt fails, so the pod waits as it does with upstream for a volume
/// that cannot be mounted: nothing that is only missing here may fail a pod.
impl Kind for Unsupported {
    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        let error = VolumeError::set_up(&attempt.name, (*self).clone().into());
        Box::pin(ready(Err(error)))
    }

    fn is_supported(&self) -> bool {
        false
    }
}

/// The volume's source, by its name in the API: the only key besides `name`.
fn source_name(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object();
    let source = fields.and_then(|fields| fields.keys().find(|key| *key != "name"));
    match source {
        Some(source) => format!("source {source}"),
        None => "no source".to_owned(),
    }
}
