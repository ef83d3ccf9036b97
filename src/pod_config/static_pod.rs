//! What becomes of a pod that a file or URL holds before anyone else sees it: identity, defaults,
//! judgement. Pure.

use crate::model::{Pod, PodSource, keys};
use crate::validation::{
    FieldError, default_pod, static_pod_references, unsupported_fields, validate_pod,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodStatus, Toleration};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::{self, Write as _};

/// Version of the canonical encoding. A new encoding gets a new tag, and readers keep the old ones,
/// so that an upgrade restarts nothing.
const DIGEST_VERSION: &str = "v1";

/// Where a pod was found.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Name of this node.
    pub node_name: &'a str,
    /// File or URL.
    pub source: PodSource,
    /// Path of the file, or the URL.
    pub location: &'a str,
}

/// Everything wrong with a pod. Displays on one line.
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

/// Makes a static pod of what the user wrote: name with the node's suffix, namespace, UID,
/// annotations, the API's defaults; and judges it. `seen` is when this kubelet first read it.
///
/// # Errors
/// Every field that breaks a rule of the API, names an API object, or asks for what this kubelet
/// does not do yet.
pub fn static_pod(written: Pod, origin: Origin<'_>, seen: Timestamp) -> Result<Pod, InvalidPod> {
    let mut pod = written;
    let canonical = canonical_json(&pod);
    identify(&mut pod, &canonical, origin, seen);
    default_pod(&mut pod);
    let mut errors = validate_pod(&pod);
    errors.extend(static_pod_references(&pod));
    errors.extend(unsupported_fields(&pod));
    match errors.is_empty() {
        true => Ok(pod),
        false => Err(InvalidPod(errors)),
    }
}

fn identify(pod: &mut Pod, canonical: &str, origin: Origin<'_>, seen: Timestamp) {
    let node = origin.node_name.to_lowercase();
    let meta = &mut pod.metadata;
    if meta.uid.as_deref().is_none_or(str::is_empty) {
        meta.uid = Some(generated_uid(canonical, origin));
    }
    let uid = meta.uid.clone().unwrap_or_default();
    // An empty name stays empty, so that judgement names the field.
    if let Some(name) = meta.name.as_mut().filter(|name| !name.is_empty()) {
        let _ = write!(name, "-{node}");
    }
    let annotations = meta.annotations.get_or_insert_default();
    for (key, value) in [
        (keys::CONFIG_HASH, uid),
        (keys::CONFIG_SEEN, seen.to_string()),
        (keys::CONFIG_SOURCE, origin.source.as_str().to_string()),
        (keys::SPEC_DIGEST, spec_digest(canonical)),
    ] {
        annotations.insert(key.into(), value);
    }
    annotations.remove(keys::CONFIG_MIRROR);
    // What only an API server writes. A manifest made from `kubectl get -o yaml` has it all, and a
    // file cannot be "being deleted".
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
    if origin.source == PodSource::File {
        tolerate_everything(spec.tolerations.get_or_insert_default());
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".into()),
        ..PodStatus::default()
    });
}

/// A pod from a file is never evicted by a taint (URL pods are, as upstream has it).
fn tolerate_everything(tolerations: &mut Vec<Toleration>) {
    let all = Toleration {
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Toleration::default()
    };
    if !tolerations.contains(&all) {
        tolerations.push(all);
    }
}

/// The value of the digest annotation: `v1:` and 32 hex digits.
fn spec_digest(canonical: &str) -> String {
    format!("{DIGEST_VERSION}:{}", hex128(&[canonical]))
}

/// 32 hex digits made from what the user wrote and from where it was found: any edit makes another
/// UID, an upgrade of the kubelet does not.
fn generated_uid(canonical: &str, origin: Origin<'_>) -> String {
    let location = origin.location;
    match origin.source {
        PodSource::File => hex128(&[
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
    let mut hex = String::with_capacity(32);
    for byte in hasher.finalize().iter().take(16) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// What the user wrote, as JSON with sorted keys: metadata and spec before any defaulting, without
/// nulls and empty lists, so that a field which a later version of the API adds changes nothing for
/// those who do not use it. The status says nothing about what is wanted.
fn canonical_json(pod: &Pod) -> String {
    let mut out = String::with_capacity(1024);
    for part in [
        serde_json::to_value(&pod.metadata),
        serde_json::to_value(&pod.spec),
    ] {
        // The API's types have string keys and no NaN, so they always turn into JSON.
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
mod tests {
    use super::*;
    use crate::model::PodExt;
    use crate::validation::decode_pod;

    const BASE: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: i:1\n";
    const ORIGIN: Origin<'static> = Origin {
        node_name: "Node-A",
        source: PodSource::File,
        location: "/etc/manifests/web.yaml",
    };

    fn written(text: &str) -> Pod {
        decode_pod(text.as_bytes()).unwrap().value
    }

    fn made(text: &str) -> Pod {
        static_pod(written(text), ORIGIN, Timestamp::UNIX_EPOCH).unwrap()
    }

    fn with_meta(line: &str) -> String {
        BASE.replace("  name: web\n", &format!("  name: web\n{line}"))
    }

    #[test]
    fn a_pod_from_a_file_gets_name_node_namespace_and_toleration() {
        let pod = made(BASE);
        assert_eq!(pod.name(), "web-node-a");
        assert_eq!(pod.namespace(), "default");
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("Node-A"));
        let toleration = &spec.tolerations.as_ref().unwrap()[0];
        assert_eq!(toleration.operator.as_deref(), Some("Exists"));
        assert_eq!(toleration.effect.as_deref(), Some("NoExecute"));
        assert_eq!(toleration.key, None);
        assert_eq!(
            pod.status.as_ref().unwrap().phase.as_deref(),
            Some("Pending")
        );
        assert_eq!(pod.annotation(keys::CONFIG_SOURCE), Some("file"));
        assert_eq!(pod.annotation(keys::CONFIG_HASH), Some(pod.uid().as_str()));
        assert!(pod.is_static());
    }

    #[test]
    fn a_pod_from_a_url_gets_no_toleration() {
        let origin = Origin {
            source: PodSource::Http,
            location: "http://x/pods",
            ..ORIGIN
        };
        let pod = static_pod(written(BASE), origin, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(pod.spec.as_ref().unwrap().tolerations, None);
        assert_eq!(pod.annotation(keys::CONFIG_SOURCE), Some("http"));
        assert_ne!(pod.uid(), made(BASE).uid());
    }

    /// These values are promises to nodes that run: another kubelet version with other values
    /// would restart every static pod.
    #[test]
    fn digest_and_uid_never_change_between_versions() {
        let pod = made(BASE);
        assert_eq!(
            canonical_json(&written(BASE)),
            "{\"name\":\"web\"}\n{\"containers\":[{\"image\":\"i:1\",\"name\":\"c\"}]}\n"
        );
        assert_eq!(
            pod.annotation(keys::SPEC_DIGEST),
            Some("v1:69fa2f16e9bac14f57fbdf88c5883f31")
        );
        assert_eq!(pod.uid().as_str(), "18f5b6c51a57f0129c8d7d4503b855b7");
    }

    #[test]
    fn uid_and_digest_follow_the_content_and_nothing_else() {
        let base = made(BASE);
        for same in [
            BASE.replace("image: i:1", "image: \"i:1\""),
            format!("# a remark\n{BASE}"),
            format!("{BASE}    args: []\n"),
            format!("{BASE}    command: null\n"),
            format!("{BASE}status:\n  phase: Running\n"),
            "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"spec\":{\"containers\":[{\"image\":\"i:1\",\"name\":\"c\"}]},\"metadata\":{\"name\":\"web\",\"creationTimestamp\":null}}".into(),
        ] {
            let pod = made(&same);
            assert_eq!(pod.uid(), base.uid(), "{same}");
            assert_eq!(pod.annotation(keys::SPEC_DIGEST), base.annotation(keys::SPEC_DIGEST));
        }
        for other in [
            BASE.replace("i:1", "i:2"),
            format!("{BASE}    args: [\"\"]\n"),
            format!("{BASE}    args: [a]\n"),
            with_meta("  labels: {a: \"\"}\n"),
            format!("{BASE}  restartPolicy: Always\n"),
            format!("{BASE}    securityContext: {{}}\n"),
        ] {
            let pod = made(&other);
            assert_ne!(pod.uid(), base.uid(), "{other}");
            assert_ne!(
                pod.annotation(keys::SPEC_DIGEST),
                base.annotation(keys::SPEC_DIGEST)
            );
        }
        let moved = Origin {
            location: "/etc/manifests/other.yaml",
            ..ORIGIN
        };
        let moved = static_pod(written(BASE), moved, Timestamp::UNIX_EPOCH).unwrap();
        assert_ne!(moved.uid(), base.uid());
        assert_eq!(
            moved.annotation(keys::SPEC_DIGEST),
            base.annotation(keys::SPEC_DIGEST)
        );
    }

    #[test]
    fn a_given_uid_is_kept_and_the_digest_still_tells_edits_apart() {
        let one = made(&with_meta("  uid: abc-1\n"));
        let two = made(&with_meta("  uid: abc-1\n").replace("i:1", "i:2"));
        assert_eq!(one.uid().as_str(), "abc-1");
        assert_eq!(one.uid(), two.uid());
        assert_ne!(
            one.annotation(keys::SPEC_DIGEST),
            two.annotation(keys::SPEC_DIGEST)
        );
    }

    #[test]
    fn what_only_an_api_server_writes_is_dropped() {
        let pod = made(&with_meta(
            "  deletionTimestamp: 2024-01-01T00:00:00Z\n  resourceVersion: \"7\"\n  finalizers: [a.b/c]\n  annotations:\n    kubernetes.io/config.mirror: x\n    kubernetes.io/config.seen: x\n    kubernetes.io/config.source: api\n    kept: \"yes\"\n",
        ));
        assert!(!pod.is_being_deleted());
        assert_eq!(pod.metadata.resource_version, None);
        assert_eq!(pod.metadata.finalizers, None);
        assert_eq!(pod.annotation(keys::CONFIG_MIRROR), None);
        assert_eq!(
            pod.annotation(keys::CONFIG_SEEN),
            Some("1970-01-01T00:00:00Z")
        );
        assert_eq!(pod.annotation(keys::CONFIG_SOURCE), Some("file"));
        assert_eq!(pod.annotation("kept"), Some("yes"));
    }

    #[test]
    fn every_fault_is_named() {
        let text = "apiVersion: v1\nkind: Pod\nspec:\n  hostUsers: false\n  volumes:\n  - name: s\n    secret: {secretName: x}\n";
        let error = static_pod(written(text), ORIGIN, Timestamp::UNIX_EPOCH)
            .unwrap_err()
            .to_string();
        for part in [
            "metadata.name: Required value",
            "spec.containers: Required value",
            "spec.volumes[0].secret: Forbidden: static pods may not reference secrets",
            "spec.hostUsers: Forbidden: not supported yet by this kubelet",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains('\n'));
    }
}
