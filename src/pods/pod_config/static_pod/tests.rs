use super::*;
use crate::model::PodExt;
use crate::model::validation::decode_pod;

const BASE: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: i:1\n";
const ORIGIN: ManifestOrigin<'static> = ManifestOrigin {
    node_name: "Node-A",
    source: PodSource::File,
    location: "/etc/manifests/web.yaml",
    config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
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
    assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(pod.annotation(keys::CONFIG_SOURCE), Some("file"));
    assert_eq!(pod.annotation(keys::CONFIG_HASH), Some(pod.uid().as_str()));
    assert!(pod.is_static());
}

#[test]
fn a_pod_from_a_url_gets_no_toleration() {
    let origin = ManifestOrigin { source: PodSource::Http, location: "http://x/pods", ..ORIGIN };
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
    assert_eq!(pod.annotation(keys::MANIFEST_DIGEST), Some("v1:69fa2f16e9bac14f57fbdf88c5883f31"));
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
        assert_eq!(pod.annotation(keys::MANIFEST_DIGEST), base.annotation(keys::MANIFEST_DIGEST));
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
        assert_ne!(pod.annotation(keys::MANIFEST_DIGEST), base.annotation(keys::MANIFEST_DIGEST));
    }
    let moved = ManifestOrigin { location: "/etc/manifests/other.yaml", ..ORIGIN };
    let moved = static_pod(written(BASE), moved, Timestamp::UNIX_EPOCH).unwrap();
    assert_ne!(moved.uid(), base.uid());
    assert_eq!(moved.annotation(keys::MANIFEST_DIGEST), base.annotation(keys::MANIFEST_DIGEST));
}

#[test]
fn a_given_uid_is_kept_and_the_digest_changes_with_edits() {
    let one = made(&with_meta("  uid: abc-1\n"));
    let two = made(&with_meta("  uid: abc-1\n").replace("i:1", "i:2"));
    assert_eq!(one.uid().as_str(), "abc-1");
    assert_eq!(one.uid(), two.uid());
    assert_ne!(one.annotation(keys::MANIFEST_DIGEST), two.annotation(keys::MANIFEST_DIGEST));
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
    assert_eq!(pod.annotation(keys::CONFIG_SEEN), Some("1970-01-01T00:00:00Z"));
    assert_eq!(pod.annotation(keys::CONFIG_SOURCE), Some("file"));
    assert_eq!(pod.annotation("kept"), Some("yes"));
}

#[test]
fn every_fault_is_named() {
    let text = "apiVersion: v1\nkind: Pod\nspec:\n  volumes:\n  - name: s\n    secret: {secretName: x}\n  - name: share\n    rbd: {monitors: [m], image: i}\n";
    let error = static_pod(written(text), ORIGIN, Timestamp::UNIX_EPOCH).unwrap_err().to_string();
    for part in [
        "metadata.name: Required value",
        "spec.containers: Required value",
        "spec.volumes[0].secret: Forbidden: static pods may not reference secrets",
        "spec.volumes[1].rbd: Forbidden: not supported yet by this kubelet",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains('\n'));
}
