//! Labels and annotations of sandboxes and containers, in upstream's format, so that this kubelet and the Go
//! kubelet can read each other's. Pure.

use crate::base::StringInterner;
use crate::model::{Pod, PodExt, PodUid, container_hash, keys};
use crate::state::pod_cache::PodRef;
use k8s_openapi::api::core::v1::{Container, ContainerPort, LifecycleHandler};
use std::collections::HashMap;
use std::sync::Arc;

/// A runtime object's labels or annotations.
pub type StringMap = HashMap<String, String>;

/// Limit of JSON in an annotation; no kubelet writes more.
const MAX_JSON: usize = 256 * 1024;

/// Labels of a sandbox: those of the pod, and its name, namespace and UID.
pub fn sandbox_labels(pod: &Pod) -> StringMap {
    let own = pod.metadata.labels.iter().flatten();
    own.map(|(key, value)| (key.clone(), value.clone())).chain(identity_labels(pod)).collect()
}

/// Annotations of a sandbox: the pod's.
pub fn sandbox_annotations(pod: &Pod) -> StringMap {
    let own = pod.metadata.annotations.iter().flatten();
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Labels of a container: the pod's name, namespace and UID, and the container's name. The pod's labels are not repeated.
pub fn container_labels(pod: &Pod, container: &Container) -> StringMap {
    identity_labels(pod)
        .into_iter()
        .chain([(keys::CONTAINER_NAME.to_string(), container.name.clone())])
        .collect()
}

fn identity_labels(pod: &Pod) -> [(String, String); 3] {
    [
        (keys::POD_NAME.to_string(), pod.name().to_string()),
        (keys::POD_NAMESPACE.to_string(), pod.namespace().to_string()),
        (keys::POD_UID.to_string(), pod.uid().to_string()),
    ]
}

/// Annotations of a container, by which a kubelet without the pod's spec can stop it with its hook and grace period.
pub fn container_annotations(pod: &Pod, container: &Container, restart_count: u32) -> StringMap {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut map = StringMap::from([
        (keys::CONTAINER_HASH.into(), container_hash(container)),
        (keys::CONTAINER_RESTART_COUNT.into(), restart_count.to_string()),
        (keys::TERMINATION_MESSAGE_PATH.into(), text(&container.termination_message_path)),
        (keys::TERMINATION_MESSAGE_POLICY.into(), text(&container.termination_message_policy)),
    ]);
    let mut add = |key: &str, value: Option<String>| {
        map.extend(value.map(|value| (key.to_string(), value)));
    };
    let grace = pod.spec().and_then(|s| s.termination_grace_period_seconds);
    add(keys::POD_TERMINATION_GRACE_PERIOD, grace.map(|seconds| seconds.to_string()));
    add(
        keys::POD_DELETION_GRACE_PERIOD,
        pod.metadata.deletion_grace_period_seconds.map(|seconds| seconds.to_string()),
    );
    let source = pod.annotation(keys::CONFIG_SOURCE);
    add(keys::CONFIG_SOURCE, source.map(str::to_owned));
    let lifecycle = container.lifecycle.as_ref();
    let pre_stop = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    add(keys::PRE_STOP_HANDLER, pre_stop.and_then(|handler| serde_json::to_string(handler).ok()));
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    add(keys::CONTAINER_PORTS, ports.and_then(|ports| serde_json::to_string(ports).ok()));
    map
}

/// The pod of a sandbox or container; `None` if a label is missing, because another client of the runtime created it.
pub fn pod_of(labels: &StringMap, strings: &StringInterner) -> Option<PodRef> {
    Some(PodRef {
        uid: PodUid::new(strings.intern(non_empty(labels, keys::POD_UID)?)),
        name: strings.intern(non_empty(labels, keys::POD_NAME)?),
        namespace: strings.intern(non_empty(labels, keys::POD_NAMESPACE)?),
    })
}

/// Name of the container in its pod.
pub fn container_name(labels: &StringMap) -> Option<&str> {
    non_empty(labels, keys::CONTAINER_NAME)
}

fn non_empty<'a>(map: &'a StringMap, key: &str) -> Option<&'a str> {
    map.get(key).map(String::as_str).filter(|s| !s.is_empty())
}

/// How to stop a container of an orphan, from its annotations. Its grace period is in the runtime status
/// ([`crate::model::ContainerStatus::grace_seconds`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnnotatedContainerInfo {
    /// preStop hook.
    pub pre_stop: Option<LifecycleHandler>,
    /// Ports, which a hook may refer to by name.
    pub ports: Vec<ContainerPort>,
}

/// An annotation that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("annotation {key} cannot be read: {detail}")]
pub struct UnreadableAnnotation {
    /// Its key.
    pub key: &'static str,
    /// What is wrong with its value.
    pub detail: String,
}

/// The container's ports on the host, from its annotations; `None` if there are none, or they cannot be read.
pub fn host_ports(annotations: &StringMap) -> Option<Arc<[ContainerPort]>> {
    // An unreadable annotation is reported when the container is stopped.
    let ports: Option<Vec<ContainerPort>> =
        read_json(annotations, keys::CONTAINER_PORTS, &mut Vec::new());
    let mut ports = ports?;
    ports.retain(|port| port.host_port.is_some_and(|port| port > 0));
    (!ports.is_empty()).then(|| ports.into())
}

impl AnnotatedContainerInfo {
    /// Reads annotations of [`container_annotations`] or of the Go kubelet. An invalid annotation is returned as an error
    /// and counts as absent.
    pub fn read(annotations: &StringMap) -> (Self, Vec<UnreadableAnnotation>) {
        let mut errors = Vec::new();
        let record = Self {
            pre_stop: read_json(annotations, keys::PRE_STOP_HANDLER, &mut errors),
            ports: read_json(annotations, keys::CONTAINER_PORTS, &mut errors).unwrap_or_default(),
        };
        (record, errors)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(
    annotations: &StringMap,
    key: &'static str,
    errors: &mut Vec<UnreadableAnnotation>,
) -> Option<T> {
    let text = annotations.get(key)?;
    let read = match text.len() {
        0..=MAX_JSON => serde_json::from_str(text).map_err(|error| error.to_string()),
        length => Err(format!("it is {length} bytes long")),
    };
    read.map_err(|detail| errors.push(UnreadableAnnotation { key, detail })).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::kuberuntime::fixtures::pod;
    use serde_json::{Value, json};

    fn hooked() -> Pod {
        let mut pod = pod(json!({
            "terminationGracePeriodSeconds": 45,
            "containers": [{
                "name": "c",
                "image": "bar",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}],
                "lifecycle": {"preStop": {"httpGet": {"port": "http", "path": "/bye"}}},
            }],
        }));
        pod.metadata.deletion_grace_period_seconds = Some(5);
        pod.metadata.labels = Some([("app".into(), "web".into())].into());
        pod
    }

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn annotations_hold_the_hook_and_grace_period() {
        let pod = hooked();
        let map = container_annotations(&pod, &pod.containers()[0], 4);
        for (key, value) in [
            ("io.kubernetes.container.hash", container_hash(&pod.containers()[0]).as_str()),
            ("io.kubernetes.container.restartCount", "4"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "45"),
            ("io.kubernetes.pod.deletionGracePeriod", "5"),
        ] {
            assert_eq!(map[key], value, "{key}");
        }
        // What Go's encoder writes for the same objects, key order aside.
        assert_eq!(
            parsed(&map["io.kubernetes.container.preStopHandler"]),
            json!({"httpGet": {"path": "/bye", "port": "http"}})
        );
        assert_eq!(
            parsed(&map["io.kubernetes.container.ports"]),
            json!([{"name": "http", "containerPort": 80, "protocol": "TCP"}])
        );
        assert_eq!(map.len(), 8);
    }

    #[test]
    fn what_a_container_does_not_have_is_not_annotated() {
        let pod = pod(json!({"containers": [{"name": "c", "ports": [], "lifecycle": {}}]}));
        let map = container_annotations(&pod, &pod.containers()[0], 0);
        assert_eq!(map.len(), 4);
        assert_eq!(map["io.kubernetes.container.terminationMessagePath"], "");
    }

    #[test]
    fn pod_labels_are_on_the_sandbox_only_and_cannot_hide_whose_it_is() {
        let mut pod = hooked();
        let lie = (keys::POD_UID.to_string(), "other".to_string());
        pod.metadata.labels.as_mut().unwrap().extend([lie]);
        let labels = sandbox_labels(&pod);
        assert_eq!(labels["app"], "web");
        assert_eq!(labels[keys::POD_UID], "u-1");
        let labels = container_labels(&pod, &pod.containers()[0]);
        assert!(!labels.contains_key("app"));
    }

    #[test]
    fn what_was_written_is_read_back() {
        let pod = hooked();
        let container = &pod.containers()[0];
        let annotations = container_annotations(&pod, container, 0);
        let (record, errors) = AnnotatedContainerInfo::read(&annotations);
        assert!(errors.is_empty());
        assert_eq!(host_ports(&annotations), None, "not on the host");
        let hook = container.lifecycle.as_ref().unwrap().pre_stop.as_ref();
        assert_eq!(record.pre_stop.as_ref(), hook);
        assert_eq!(Some(record.ports), container.ports);
        assert_eq!(
            AnnotatedContainerInfo::read(&StringMap::new()).0,
            AnnotatedContainerInfo::default(),
            "nothing is noted of a container without hook and ports"
        );
    }

    #[test]
    fn a_go_kubelets_annotations_are_read() {
        let annotations = StringMap::from([
            (
                keys::PRE_STOP_HANDLER.into(),
                r#"{"exec":{"command":["sh","-c","a \u0026\u0026 b"]}}"#.into(),
            ),
            (
                keys::CONTAINER_PORTS.into(),
                r#"[{"name":"p","hostPort":1,"containerPort":2,"protocol":"UDP","hostIP":"::"}]"#
                    .into(),
            ),
        ]);
        let (record, _) = AnnotatedContainerInfo::read(&annotations);
        let command = record.pre_stop.unwrap().exec.unwrap().command.unwrap();
        assert_eq!(command, ["sh", "-c", "a && b"]);
        assert_eq!(record.ports[0].host_port, Some(1));
        assert_eq!(host_ports(&annotations).as_deref(), Some(&*record.ports));
    }

    #[test]
    fn unreadable_annotations_are_reported_and_count_as_absent() {
        let huge = format!("[{}]", " ".repeat(MAX_JSON));
        let annotations = StringMap::from([
            (keys::PRE_STOP_HANDLER.into(), "{".into()),
            (keys::CONTAINER_PORTS.into(), huge),
        ]);
        let (record, errors) = AnnotatedContainerInfo::read(&annotations);
        assert_eq!(record, AnnotatedContainerInfo::default());
        let [hook, ports] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        assert!(hook.to_string().contains(keys::PRE_STOP_HANDLER));
        assert!(ports.to_string().contains(keys::CONTAINER_PORTS));
    }

    #[test]
    fn an_object_with_missing_labels_belongs_to_no_pod() {
        let pod = hooked();
        let labels = container_labels(&pod, &pod.containers()[0]);
        let strings = StringInterner::new();
        assert_eq!(pod_of(&labels, &strings), Some(PodRef::of(&pod)));
        assert_eq!(container_name(&labels), Some("c"));
        for key in [keys::POD_UID, keys::POD_NAME, keys::POD_NAMESPACE] {
            let mut partial = labels.clone();
            partial.insert(key.into(), String::new());
            assert_eq!(pod_of(&partial, &strings), None, "{key}");
        }
    }
}
