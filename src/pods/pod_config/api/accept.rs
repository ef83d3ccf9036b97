//! Validation and clean-up of a pod of the API server before it is delivered. Pure.

use crate::model::validation::api_pod_names;
use crate::model::{Pod, PodExt, PodSource, keys};

/// The prefix of annotations that only this kubelet writes, except for [`keys::MAX_RESTART_PERIOD`].
const OWN_PREFIX: &str = "kubelet.rs/";

/// Removes unused fields and annotations that only a kubelet may set, as users could write them into a pod of the API
/// server. A mirror pod keeps those annotations, because a kubelet created it.
///
/// # Errors
/// The pod is not of this node, or a name in it is invalid.
pub fn accept(mut pod: Pod, node_name: &str) -> Result<Pod, String> {
    let wrong = api_pod_names(&pod);
    if !wrong.is_empty() {
        let fields = wrong.iter().map(ToString::to_string);
        return Err(fields.collect::<Vec<_>>().join(", "));
    }
    let bound_to = pod.spec().and_then(|spec| spec.node_name.as_deref());
    if bound_to != Some(node_name) {
        return Err(format!("it is bound to node {:?}", bound_to.unwrap_or_default()));
    }
    // Not used, and the largest part of many pods in memory.
    pod.metadata.managed_fields = None;
    let is_mirror = pod.is_mirror();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    if !is_mirror {
        annotations
            .retain(|key, _| key == keys::MAX_RESTART_PERIOD || !key.starts_with(OWN_PREFIX));
        annotations.remove(keys::CONFIG_SEEN);
    }
    annotations.insert(keys::CONFIG_SOURCE.into(), PodSource::Api.as_str().into());
    shrink(&mut pod);
    Ok(pod)
}

/// Shrinks the lists of a pod. They are decoded before their length is known, with capacity for at least four elements of
/// hundreds of bytes each.
fn shrink(pod: &mut Pod) {
    fn list<T>(list: &mut Option<Vec<T>>) {
        list.iter_mut().for_each(Vec::shrink_to_fit);
    }
    list(&mut pod.metadata.owner_references);
    if let Some(spec) = &mut pod.spec {
        spec.containers.shrink_to_fit();
        list(&mut spec.init_containers);
        list(&mut spec.tolerations);
        list(&mut spec.image_pull_secrets);
        list(&mut spec.volumes);
        let containers = spec.containers.iter_mut();
        for container in containers.chain(spec.init_containers.iter_mut().flatten()) {
            list(&mut container.env);
            list(&mut container.env_from);
            list(&mut container.ports);
            list(&mut container.volume_mounts);
        }
        for volume in spec.volumes.iter_mut().flatten() {
            if let Some(projected) = &mut volume.projected {
                list(&mut projected.sources);
            }
        }
    }
    if let Some(status) = &mut pod.status {
        list(&mut status.conditions);
        list(&mut status.container_statuses);
        list(&mut status.init_container_statuses);
        list(&mut status.host_ips);
        list(&mut status.pod_ips);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_have_no_more_room_than_they_need() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let pod: Pod = serde_json::from_str(&pod.to_string()).unwrap();
        let room = |pod: &Pod| {
            let spec = pod.spec.as_ref().unwrap();
            let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
            let conditions = pod.status.as_ref().unwrap().conditions.as_ref().unwrap();
            [mounts.capacity(), conditions.capacity()]
        };
        assert!(room(&pod).into_iter().all(|room| room > 1));
        let pod = accept(pod, "node1").unwrap();
        assert_eq!(room(&pod), [1, 1]);
    }

    fn pod(annotations: serde_json::Value) -> Pod {
        let pod = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "annotations": annotations,
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {"nodeName": "node1", "containers": [{"name": "main"}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn what_only_a_kubelet_says_is_not_taken_from_the_api() {
        let given = pod(json!({
            "mine": "1", "kubelet.rs/max-container-restart-period": "1s", "kubelet.rs/spec-digest": "v1:0", "kubelet.rs/manifest": "/etc/x",
            "kubernetes.io/config.source": "file", "kubernetes.io/config.seen": "never",
        }));
        let accepted = accept(given, "node1").unwrap();
        let annotations = accepted.metadata.annotations.as_ref().unwrap();
        let kept: Vec<_> =
            annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            kept,
            [
                ("kubelet.rs/max-container-restart-period", "1s"),
                ("kubernetes.io/config.source", "api"),
                ("mine", "1")
            ]
        );
        assert!(accepted.metadata.managed_fields.is_none());
        assert!(!accepted.is_static());
    }

    #[test]
    fn a_mirror_keeps_what_it_was_made_with() {
        let given = json!({
            "kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h",
            "kubernetes.io/config.source": "file", "kubelet.rs/spec-digest": "v1:0",
        });
        let accepted = accept(pod(given), "node1").unwrap();
        assert!(accepted.is_mirror() && !accepted.is_static());
        assert_eq!(accepted.annotation(keys::MANIFEST_DIGEST), Some("v1:0"));
    }

    #[test]
    fn a_pod_of_another_node_and_one_with_a_hostile_name_are_refused() {
        let error = accept(pod(json!({})), "node2").unwrap_err();
        assert_eq!(error, "it is bound to node \"node1\"");
        let mut hostile = pod(json!({}));
        hostile.metadata.uid = Some("../x".into());
        let error = accept(hostile, "node1").unwrap_err();
        assert!(error.starts_with("metadata.uid: Invalid value"), "{error}");
    }
}
