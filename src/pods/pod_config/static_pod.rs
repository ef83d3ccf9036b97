//! From the pod of a file or URL to the static pod that is delivered: UID, name, annotations, defaults and validation
//! (upstream's `applyDefaults`, `pkg/kubelet/config/common.go`). Pure.

use crate::base::hex;
use crate::model::validation::{
    FieldError, LocalConfigMapsAndSecrets, set_pod_defaults, unsupported_fields,
    validate_kubelet_annotations, validate_pod, validate_static_pod_references,
};
use crate::model::{Pod, PodSource, keys};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodStatus, Toleration};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::{self, Write as _};

/// Version of the canonical encoding, part of digests and of generated UIDs. It changes with the encoding. An upgrade still
/// restarts nothing: digests of different versions are not compared (`is_other_manifest`), and running pods keep their
/// UIDs (`AdoptedUids`).
const DIGEST_VERSION: &str = "v1";

/// Where a pod was found.
#[derive(Clone, Copy, Debug)]
pub struct ManifestOrigin<'a> {
    /// Name of this node.
    pub node_name: &'a str,
    /// The source of the manifest: file, URL or posted.
    pub source: PodSource,
    /// Path of the file, or the URL.
    pub location: &'a str,
    /// Which config maps and secrets its pods may refer to.
    pub config_maps_and_secrets: LocalConfigMapsAndSecrets,
}

/// The validation errors of a pod. Displays on one line.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidPod(pub Vec<FieldError>);

impl fmt::Display for InvalidPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidPod {}

/// Makes a static pod from the pod that the user wrote: sets the node's name as a suffix of the name, the UID, the
/// annotations and the API's defaults, and validates the result. `seen` is when this kubelet first read it.
///
/// # Errors
/// Every field that breaks a rule of the API, refers to an API object, or is not supported by this kubelet yet.
pub fn static_pod(
    manifest: Pod,
    origin: ManifestOrigin<'_>,
    seen: Timestamp,
) -> Result<Pod, InvalidPod> {
    let mut pod = manifest;
    let canonical = canonical_json(&pod);
    apply_defaults(&mut pod, &canonical, origin, seen);
    set_pod_defaults(&mut pod);
    let mut errors = validate_pod(&pod);
    errors.extend(validate_static_pod_references(&pod, origin.config_maps_and_secrets));
    errors.extend(validate_kubelet_annotations(&pod));
    errors.extend(unsupported_fields(&pod));
    if errors.is_empty() { Ok(pod) } else { Err(InvalidPod(errors)) }
}

fn apply_defaults(pod: &mut Pod, canonical: &str, origin: ManifestOrigin<'_>, seen: Timestamp) {
    let node = origin.node_name.to_lowercase();
    let meta = &mut pod.metadata;
    if meta.uid.as_deref().is_none_or(str::is_empty) {
        meta.uid = Some(generated_uid(canonical, origin));
    }
    let uid = meta.uid.clone().unwrap_or_default();
    // An empty name stays empty, so that validation names the field.
    if let Some(name) = meta.name.as_mut().filter(|name| !name.is_empty()) {
        let _ = write!(name, "-{node}");
    }
    let annotations = meta.annotations.get_or_insert_default();
    for (key, value) in [
        (keys::CONFIG_HASH, uid),
        (keys::CONFIG_SEEN, seen.to_string()),
        (keys::CONFIG_SOURCE, origin.source.as_str().to_string()),
        (keys::MANIFEST_DIGEST, manifest_digest(canonical)),
    ] {
        annotations.insert(key.into(), value);
    }
    annotations.remove(keys::CONFIG_MIRROR);
    match origin.source {
        PodSource::File | PodSource::Posted => {
            annotations.insert(keys::MANIFEST.into(), origin.location.into());
        }
        // A URL may have secrets in it.
        PodSource::Http | PodSource::Api => {
            annotations.remove(keys::MANIFEST);
        }
    }
    // Fields that only an API server sets are cleared. A manifest from `kubectl get -o yaml` contains them, and a pod
    // with a deletion timestamp would count as terminating.
    meta.creation_timestamp = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.resource_version = None;
    meta.generation = None;
    meta.managed_fields = None;
    meta.owner_references = None;
    meta.finalizers = None;
    meta.self_link = None;
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(origin.node_name.into());
    if origin.source != PodSource::Http {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
}

/// A pod from a file, or posted, is never evicted by a taint (URL pods are, as upstream has it).
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let all = Toleration {
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Toleration::default()
    };
    if !tolerations.contains(&all) {
        tolerations.reserve_exact(1);
        tolerations.push(all);
    }
}

/// The value of the digest annotation: `v1:` and 32 hex digits.
fn manifest_digest(canonical: &str) -> String {
    format!("{DIGEST_VERSION}:{}", hex128(&[canonical]))
}

/// 32 hex digits from the manifest and its location: an edit gives another UID, an upgrade of the kubelet does not.
fn generated_uid(canonical: &str, origin: ManifestOrigin<'_>) -> String {
    let location = origin.location;
    match origin.source {
        PodSource::File | PodSource::Posted => hex128(&[
            DIGEST_VERSION,
            canonical,
            &format!("host:{}", origin.node_name),
            &format!("file:{location}"),
        ]),
        _ => hex128(&[DIGEST_VERSION, canonical, &format!("url:{location}")]),
    }
}

fn hex128(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    hex(hasher.finalize().iter().take(16))
}

/// What the user wrote, as JSON with sorted keys: metadata and spec before any defaulting, without nulls and empty
/// lists, so that a field which a later version of the API adds does not change the digest of manifests that do not set
/// it. The status is not part of what is desired.
fn canonical_json(pod: &Pod) -> String {
    let mut out = String::with_capacity(1024);
    for part in [serde_json::to_value(&pod.metadata), serde_json::to_value(&pod.spec)] {
        // The API's types have string keys and no NaN, so they always convert to JSON.
        write_canonical(&part.unwrap_or_default(), &mut out);
        out.push('\n');
    }
    out
}

fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, v)| !is_absent(v)).collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                let _ = write!(out, "{}:", Value::from(key.as_str()));
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, value) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(value, out);
            }
            out.push(']');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

#[cfg(test)]
mod tests;
