//! Resolves a claim to a volume on this node. Pure.

use super::ClaimVolume;
use crate::apiserver::claim::ClaimError;
use crate::model::node_selector;
use crate::volumes::csi::migration;
use crate::volumes::kinds::KINDS;
use crate::volumes::{HostPathCheck, Unsupported, VolumeError};
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The fields of a PersistentVolume's spec besides its source.
const COMMON_FIELDS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];
/// Annotation with a supplemental group for containers.
pub(super) const GROUP: &str = "pv.beta.kubernetes.io/gid";
/// The former place of `spec.mountOptions`, which takes precedence.
pub(super) const OPTIONS_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

/// The resolved volume of a pod's claim; recorded on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::volumes::kinds) struct ResolvedClaim {
    /// Name of the claim, in the pod's namespace.
    pub(in crate::volumes::kinds) claim: String,
    /// Name of the PersistentVolume.
    pub(in crate::volumes::kinds) volume: String,
    /// The path of its data.
    pub(in crate::volumes::kinds) at: NodePath,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::volumes::kinds) struct NodePath {
    pub(in crate::volumes::kinds) path: String,
    /// The required type of the path.
    pub(in crate::volumes::kinds) check: HostPathCheck,
    /// The runtime may relabel it for SELinux.
    pub(in crate::volumes::kinds) managed: bool,
    /// `fsGroup` applies to it.
    pub(in crate::volumes::kinds) owned: bool,
    /// Its usage is reported; as upstream, for `local` and not for `hostPath`.
    pub(in crate::volumes::kinds) measured: bool,
    pub(in crate::volumes::kinds) is_device: bool,
    /// A supplemental group for containers.
    pub(in crate::volumes::kinds) group: Option<i64>,
    /// What only its kind knows, under the kind's key. Without a key it is used at its path.
    #[serde(flatten)]
    pub(in crate::volumes::kinds) of_kind: Map<String, Value>,
}

impl NodePath {
    /// What its kind recorded.
    ///
    /// # Errors
    /// It cannot be read.
    pub(in crate::volumes::kinds) fn of_kind<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> anyhow::Result<T> {
        let value = self.of_kind.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value)
            .with_context(|| format!("cannot read the recorded {key} volume"))
    }
}

/// The PersistentVolume of a claim.
pub(in crate::volumes::kinds) struct PersistentSource<'a> {
    pub(in crate::volumes::kinds) claim: &'a ClaimVolume,
    /// Its name.
    pub(in crate::volumes::kinds) name: &'a str,
    pub(in crate::volumes::kinds) spec: &'a PersistentVolumeSpec,
    /// Its mount options.
    pub(in crate::volumes::kinds) options: Vec<String>,
    /// It has `volumeMode: Block`.
    pub(in crate::volumes::kinds) is_device: bool,
    /// A supplemental group for containers.
    group: Option<i64>,
}

impl PersistentSource<'_> {
    /// A path that the kubelet does not manage.
    pub(in crate::volumes::kinds) fn path(&self) -> NodePath {
        NodePath { is_device: self.is_device, group: self.group, ..NodePath::default() }
    }

    /// The same, with what its kind records.
    pub(in crate::volumes::kinds) fn path_of_kind(&self, key: &str, recorded: Value) -> NodePath {
        NodePath { of_kind: Map::from_iter([(key.to_owned(), recorded)]), ..self.path() }
    }

    /// # Errors
    /// This kubelet does not support it.
    pub(in crate::volumes::kinds) fn unsupported<T>(&self, what: &str) -> Result<T, VolumeError> {
        unsupported(self.name, what)
    }
}

/// Resolves a claim. While the API server has returned no claim or no node, the volume that an earlier sync of the pod
/// recorded (`recorded`) is used, because a claim stays bound to its volume. `name` is the volume's name in the pod.
pub(super) fn resolve(
    name: &str,
    claim: &ClaimVolume,
    found: Result<&PersistentVolume, ClaimError>,
    node: Option<&Node>,
    recorded: Option<ResolvedClaim>,
) -> Result<ResolvedClaim, VolumeError> {
    let recorded = recorded.filter(|recorded| recorded.claim == claim.key.name);
    let volume = match (found, recorded) {
        (Err(ClaimError::Unsynced(_)), Some(recorded)) => return Ok(recorded),
        (Ok(volume), Some(recorded))
            if node.is_none() && volume.metadata.name.as_ref() == Some(&recorded.volume) =>
        {
            return Ok(recorded);
        }
        (found, _) => found.map_err(|source| VolumeError::Claim {
            volume: name.to_owned(),
            key: claim.key.clone(),
            source: Box::new(source),
        })?,
    };
    Ok(ResolvedClaim {
        claim: claim.key.name.clone(),
        volume: volume.metadata.name.clone().unwrap_or_default(),
        at: node_path(name, claim, volume, node)?,
    })
}

/// The path of a volume's data, if the volume is supported and its node affinity matches. `name` is the volume's name
/// in the pod.
pub(super) fn node_path(
    name: &str,
    claim: &ClaimVolume,
    volume: &PersistentVolume,
    node: Option<&Node>,
) -> Result<NodePath, VolumeError> {
    let own_name = volume.metadata.name.as_deref().unwrap_or_default();
    let translated = migration::persistent_volume(volume);
    let translated = translated.map_err(|error| VolumeError::set_up(own_name, error))?;
    let volume = translated.as_ref().unwrap_or(volume);
    let Some(spec) = &volume.spec else {
        return unsupported(own_name, "an empty spec");
    };
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    let is_device = match mode {
        "Filesystem" => false,
        "Block" => true,
        _ => return unsupported(own_name, &format!("spec.volumeMode {mode:?}")),
    };
    let misused = if is_device {
        claim.is_mounted.then_some("volumeMounts")
    } else {
        claim.is_mapped.then_some("volumeDevices")
    };
    if let Some(field) = misused {
        let why = anyhow!("volume {name} has volumeMode {mode}, but is specified in {field}");
        return Err(VolumeError::set_up(own_name, why));
    }
    check_affinity(spec, node)
        .map_err(|why| VolumeError::NodeAffinity { volume: own_name.to_owned(), why })?;
    let annotations = volume.metadata.annotations.as_ref();
    let source = PersistentSource {
        claim,
        name: own_name,
        spec,
        options: mount_options(volume),
        is_device,
        group: annotations.and_then(|all| all.get(GROUP)?.parse().ok()),
    };
    for kind in KINDS {
        if let Some(found) = (kind.resolve)(&source)? {
            return Ok(found);
        }
    }
    source.unsupported(&format!("spec.{}", source_name(spec)))
}

/// # Errors
/// Always.
fn unsupported<T>(volume: &str, what: &str) -> Result<T, VolumeError> {
    let what = format!("{what} of PersistentVolume {volume:?}");
    Err(VolumeError::set_up(volume, Unsupported(what).into()))
}

/// The mount options of a volume, sorted and without duplicates.
pub(super) fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let annotations = volume.metadata.annotations.as_ref();
    let spec = volume.spec.as_ref();
    let options: BTreeSet<String> = match annotations.and_then(|all| all.get(OPTIONS_ANNOTATION)) {
        Some(listed) => listed.split(',').map(str::to_owned).collect(),
        None => {
            let options = spec.and_then(|spec| spec.mount_options.clone());
            options.into_iter().flatten().collect()
        }
    };
    options.into_iter().filter(|it| !it.is_empty()).collect()
}

fn check_affinity(spec: &PersistentVolumeSpec, node: Option<&Node>) -> Result<(), &'static str> {
    let affinity = spec.node_affinity.as_ref();
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return Ok(());
    };
    match node {
        None => Err("the Node object is not known yet"),
        Some(node) if node_selector::selects(required, node) => Ok(()),
        Some(_) => Err("no matching NodeSelectorTerms"),
    }
}

/// The API's name of the volume's source.
fn source_name(spec: &PersistentVolumeSpec) -> String {
    let value = serde_json::to_value(spec).unwrap_or_default();
    let fields = value.as_object();
    let mut names = fields.into_iter().flat_map(|fields| fields.keys());
    let kind = names.find(|name| !COMMON_FIELDS.contains(&name.as_str()));
    kind.cloned().unwrap_or_else(|| "(no source)".to_owned())
}
