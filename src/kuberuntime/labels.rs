//! Labels and annotations of sandboxes and containers: written as upstream does, read back from
//! whoever wrote them. Pure.

use crate::model::{Pod, PodExt, PodUid, container_hash, keys};
use k8s_openapi::api::core::v1::{Container, ContainerPort, LifecycleHandler};
use std::collections::HashMap;

/// A runtime object's labels or annotations.
pub type Map = HashMap<String, String>;

/// JSON in annotations that is longer is not ours.
const MAX_JSON: usize = 256 * 1024;

/// Labels of a sandbox: the pod's own and who it is.
pub fn sandbox_labels(pod: &Pod) -> Map {
    let own = pod.metadata.labels.iter().flatten();
    own.map(|(key, value)| (key.clone(), value.clone()))
        .chain(identity_labels(pod))
        .collect()
}

/// Annotations of a sandbox: the pod's.
pub fn sandbox_annotations(pod: &Pod) -> Map {
    let own = pod.metadata.annotations.iter().flatten();
    own.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Labels of a container: who it is. The pod's labels are not repeated.
pub fn container_labels(pod: &Pod, container: &Container) -> Map {
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

/// Annotations of a container: what a kubelet without the pod's spec needs to end it properly.
pub fn container_annotations(pod: &Pod, container: &Container, restart_count: u32) -> Map {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut map = Map::from([
        (keys::CONTAINER_HASH.into(), container_hash(container)),
        (
            keys::CONTAINER_RESTART_COUNT.into(),
            restart_count.to_string(),
        ),
        (
            keys::TERMINATION_MESSAGE_PATH.into(),
            text(&container.termination_message_path),
        ),
        (
            keys::TERMINATION_MESSAGE_POLICY.into(),
            text(&container.termination_message_policy),
        ),
    ]);
    let mut add = |key: &str, value: Option<String>| {
        map.extend(value.map(|value| (key.to_string(), value)));
    };
    let grace = pod.spec().and_then(|s| s.termination_grace_period_seconds);
    add(
        keys::POD_TERMINATION_GRACE_PERIOD,
        grace.map(|seconds| seconds.to_string()),
    );
    add(
        keys::POD_DELETION_GRACE_PERIOD,
        pod.metadata
            .deletion_grace_period_seconds
            .map(|seconds| seconds.to_string()),
    );
    let lifecycle = container.lifecycle.as_ref();
    let pre_stop = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    add(
        keys::PRE_STOP_HANDLER,
        pre_stop.and_then(|handler| serde_json::to_string(handler).ok()),
    );
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    add(
        keys::CONTAINER_PORTS,
        ports.and_then(|ports| serde_json::to_string(ports).ok()),
    );
    map
}

/// Whose object this is, by its labels; `None` for objects of other users of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLabels<'a> {
    /// UID.
    pub uid: &'a str,
    /// Name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
}

/// Reads the identity; all three labels must be there.
pub fn pod_of(labels: &Map) -> Option<PodLabels<'_>> {
    Some(PodLabels {
        uid: non_empty(labels, keys::POD_UID)?,
        name: non_empty(labels, keys::POD_NAME)?,
        namespace: non_empty(labels, keys::POD_NAMESPACE)?,
    })
}

/// Name of the container in its pod.
pub fn container_name(labels: &Map) -> Option<&str> {
    non_empty(labels, keys::CONTAINER_NAME)
}

fn non_empty<'a>(map: &'a Map, key: &str) -> Option<&'a str> {
    map.get(key).map(String::as_str).filter(|s| !s.is_empty())
}

/// What a container's annotations tell about how to end it; what is absent or makes no sense is
/// `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerNotes {
    /// UID of the pod, from the labels.
    pub pod_uid: PodUid,
    /// Name of the pod.
    pub pod_name: String,
    /// Namespace of the pod.
    pub pod_namespace: String,
    /// Name of the container.
    pub name: String,
    /// `terminationGracePeriodSeconds` of the pod.
    pub termination_grace_seconds: Option<i64>,
    /// `deletionGracePeriodSeconds` of the pod.
    pub deletion_grace_seconds: Option<i64>,
    /// Hook to run before it is stopped.
    pub pre_stop: Option<LifecycleHandler>,
    /// Ports, which a hook may refer to by name.
    pub ports: Vec<ContainerPort>,
}

/// Reads back what [`container_labels`] and [`container_annotations`] (or upstream) wrote; `None`
/// for containers that are not a kubelet's.
pub fn read_container(labels: &Map, annotations: &Map) -> Option<ContainerNotes> {
    let pod = pod_of(labels)?;
    let seconds = |key: &str| {
        let seconds: i64 = annotations.get(key)?.parse().ok()?;
        (seconds >= 0).then_some(seconds)
    };
    Some(ContainerNotes {
        pod_uid: PodUid::from(pod.uid),
        pod_name: pod.name.to_string(),
        pod_namespace: pod.namespace.to_string(),
        name: container_name(labels)?.to_string(),
        termination_grace_seconds: seconds(keys::POD_TERMINATION_GRACE_PERIOD),
        deletion_grace_seconds: seconds(keys::POD_DELETION_GRACE_PERIOD),
        pre_stop: read_json(annotations, keys::PRE_STOP_HANDLER),
        ports: read_json(annotations, keys::CONTAINER_PORTS).unwrap_or_default(),
    })
}

fn read_json<T: serde::de::DeserializeOwned>(annotations: &Map, key: &str) -> Option<T> {
    let text = annotations.get(key).filter(|t| t.len() <= MAX_JSON)?;
    serde_json::from_str(text).ok()
}
