//! What is to be done about the mirror of a static pod. Pure.
//!
//! Upstream: `pkg/kubelet/pod/mirror_client.go` and `tryReconcileMirrorPods`.

use crate::model::{Pod, PodExt, is_other_manifest, keys};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, EnvVarSource, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// What is known of one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownMirror<'a> {
    /// The static pod that should run here.
    pub pod: Option<&'a Pod>,
    /// What the API server has under that name.
    pub mirror: Option<&'a Pod>,
    /// The API server has delivered its pods.
    pub mirrors_known: bool,
    /// Every source of static pods has delivered all of its pods.
    pub pods_known: bool,
    /// A static pod of that name, other than `pod`, has not ended yet.
    pub name_in_use: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MirrorStep {
    /// All is as it should be, or becomes so without this.
    Nothing,
    /// An earlier pod of this name has to end first.
    Wait,
    Create,
    Delete,
}

/// The next step for one name.
pub(super) fn plan(known: KnownMirror<'_>) -> MirrorStep {
    if !known.mirrors_known {
        return MirrorStep::Nothing;
    }
    match (known.pod, known.mirror) {
        (None, None) => MirrorStep::Nothing,
        (Some(_), None) => MirrorStep::Create,
        (Some(pod), Some(mirror)) if is_mirror_of(mirror, pod) && !mirror.is_being_deleted() => {
            MirrorStep::Nothing
        }
        (None, Some(_)) if !known.pods_known => MirrorStep::Nothing,
        // It shows how the earlier pod ends.
        (_, Some(mirror)) if known.name_in_use && !mirror.is_being_deleted() => MirrorStep::Wait,
        (_, Some(_)) => MirrorStep::Delete,
    }
}

/// Whether an object of the API server is the mirror of this version of a static pod. A pod whose user gave
/// it a UID keeps its `config.hash`, so its digest counts, too; a mirror that another kubelet made has none.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    mirror.annotation(keys::CONFIG_MIRROR) == pod.annotation(keys::CONFIG_HASH)
        && !is_other_manifest(
            mirror.annotation(keys::MANIFEST_DIGEST),
            pod.annotation(keys::MANIFEST_DIGEST),
        )
}

/// The mirror of a static pod on a node.
pub(super) fn mirror_of(pod: &Pod, node_name: &str, node_uid: &str) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    if let Some(hash) = annotations.get(keys::CONFIG_HASH).cloned() {
        annotations.insert(keys::CONFIG_MIRROR.into(), hash);
    }
    // Where the manifest lies is of no use outside the node.
    annotations.remove(keys::MANIFEST);
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: node_name.into(),
                uid: node_uid.into(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone().map(without_objects),
        status: None,
    }
}

/// A spec without references to config maps and secrets: those of a static pod are files of the node, and the API
/// server refuses a mirror that names any. What they would fill is empty in the mirror.
fn without_objects(mut spec: PodSpec) -> PodSpec {
    spec.image_pull_secrets = None;
    for volume in spec.volumes.iter_mut().flatten() {
        let mut is_empty = volume.config_map.is_some() || volume.secret.is_some();
        let projected = volume.projected.as_mut();
        if let Some(sources) = projected.and_then(|projected| projected.sources.as_mut()) {
            let before = sources.len();
            sources.retain(|one| one.config_map.is_none() && one.secret.is_none());
            is_empty |= sources.is_empty() && before > 0;
        }
        if is_empty {
            *volume = Volume {
                name: std::mem::take(&mut volume.name),
                empty_dir: Some(EmptyDirVolumeSource::default()),
                ..Volume::default()
            };
        }
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        if let Some(sources) = &mut container.env_from {
            sources.retain(|one| one.config_map_ref.is_none() && one.secret_ref.is_none());
        }
        for variable in container.env.iter_mut().flatten() {
            let refers = |from: &mut EnvVarSource| {
                from.config_map_key_ref.is_some() || from.secret_key_ref.is_some()
            };
            variable.value_from.take_if(refers);
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture;

    fn pod(hash: &str, digest: &str) -> Pod {
        let pod = fixture::pod(&format!("kube-system/etcd-n/{hash}"), None);
        let annotations = [
            (keys::CONFIG_HASH, hash),
            (keys::MANIFEST_DIGEST, digest),
            (keys::CONFIG_SOURCE, "file"),
            (keys::MANIFEST, "/etc/kubernetes/manifests/etcd.yaml"),
        ];
        fixture::annotated(pod, annotations)
    }

    fn mirror(hash: &str, digest: &str) -> Pod {
        let mut mirror = mirror_of(&pod(hash, digest), "n", "node-uid");
        mirror.metadata.uid = Some("m".into());
        mirror
    }

    #[test]
    fn a_mirror_names_no_config_map_and_no_secret() {
        let spec = serde_json::json!({
            "imagePullSecrets": [{"name": "s"}],
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}],
            "containers": [{
                "name": "c",
                "env": [
                    {"name": "A", "value": "a"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "m"}}],
            }],
            "volumes": [
                {"name": "h", "hostPath": {"path": "/h"}},
                {"name": "m", "configMap": {"name": "m"}},
                {"name": "s", "secret": {"secretName": "s"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "s"}}]}},
                {"name": "q", "projected": {"sources": [
                    {"configMap": {"name": "m"}}, {"downwardAPI": {}},
                ]}},
            ],
        });
        let mut pod = pod("h", "d");
        pod.spec = serde_json::from_value(spec).unwrap();
        let mirror = mirror_of(&pod, "n", "u").spec.unwrap();
        let expected = serde_json::json!({
            "initContainers": [{"name": "i", "envFrom": []}],
            "containers": [{
                "name": "c",
                "env": [
                    {"name": "A", "value": "a"},
                    {"name": "B"},
                    {"name": "C"},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "envFrom": [],
            }],
            "volumes": [
                {"name": "h", "hostPath": {"path": "/h"}},
                {"name": "m", "emptyDir": {}},
                {"name": "s", "emptyDir": {}},
                {"name": "p", "emptyDir": {}},
                {"name": "q", "projected": {"sources": [{"downwardAPI": {}}]}},
            ],
        });
        assert_eq!(serde_json::to_value(mirror).unwrap(), expected);
    }

    fn deleting(mut mirror: Pod) -> Pod {
        let now = jiff::Timestamp::UNIX_EPOCH;
        mirror.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        mirror
    }

    #[test]
    fn a_mirror_is_made_and_kept_like_its_static_pod() {
        let (own, current) = (pod("h", "v1:d"), mirror("h", "v1:d"));
        let going = deleting(current.clone());
        let (other_hash, other_digest) = (mirror("x", "v1:d"), mirror("h", "v1:x"));
        let mut of_go = current.clone();
        let annotations = of_go.metadata.annotations.as_mut().unwrap();
        annotations.remove(keys::MANIFEST_DIGEST);
        let rows = [
            (None, None, "", MirrorStep::Nothing),
            (Some(&own), None, "", MirrorStep::Create),
            (Some(&own), Some(&current), "", MirrorStep::Nothing),
            (Some(&own), Some(&of_go), "", MirrorStep::Nothing),
            (Some(&own), Some(&going), "", MirrorStep::Delete),
            (Some(&own), Some(&other_hash), "", MirrorStep::Delete),
            (Some(&own), Some(&other_digest), "", MirrorStep::Delete),
            (None, Some(&current), "", MirrorStep::Delete),
            (None, Some(&current), "pods unknown", MirrorStep::Nothing),
            (None, Some(&current), "name in use", MirrorStep::Wait),
            (None, Some(&going), "name in use", MirrorStep::Delete),
            (Some(&own), Some(&other_hash), "name in use", MirrorStep::Wait),
            (Some(&own), Some(&other_hash), "pods unknown", MirrorStep::Delete),
            (Some(&own), None, "name in use", MirrorStep::Create),
            (Some(&own), None, "mirrors unknown", MirrorStep::Nothing),
            (None, Some(&current), "mirrors unknown", MirrorStep::Nothing),
        ];
        for (pod, mirror, but, expected) in rows {
            let known = KnownMirror {
                pod,
                mirror,
                mirrors_known: but != "mirrors unknown",
                pods_known: but != "pods unknown",
                name_in_use: but == "name in use",
            };
            assert_eq!(plan(known), expected, "{but} {known:?}");
        }
    }

    #[test]
    fn a_mirror_belongs_to_its_node_and_repeats_the_hash() {
        let own = pod("h", "d");
        let mirror = mirror_of(&own, "n", "node-uid");
        assert!(is_mirror_of(&mirror, &own));
        assert!(!is_mirror_of(&own, &own), "a static pod is not a mirror");
        let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((&*owner.kind, &*owner.uid), ("Node", "node-uid"));
        assert_eq!(owner.controller, Some(true));
        assert_eq!(mirror.annotation(keys::CONFIG_MIRROR), Some("h"));
        assert_eq!(mirror.annotation(keys::MANIFEST), None);
        assert_eq!(mirror.metadata.uid, None, "the API server gives it one");
    }
}
