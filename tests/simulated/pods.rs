//! Manifests, written as JSON, which is YAML too.

use serde_json::{Value, json};

/// An image that the fake has from the beginning.
pub(crate) const IMAGE: &str = "localhost/busybox:dev";

/// A container that runs until it is stopped.
pub(crate) fn container(name: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["run"]})
}

/// The same object with more fields, or other values.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
    object
}

/// A pod in namespace `default` with these containers.
pub(crate) fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": containers},
    })
}

/// The same pod with more fields in its spec.
pub(crate) fn with_spec(mut pod: Value, more: Value) -> Value {
    pod["spec"] = with(pod["spec"].take(), more);
    pod
}

/// The same pod with more fields in its metadata.
pub(crate) fn with_metadata(mut pod: Value, more: Value) -> Value {
    pod["metadata"] = with(pod["metadata"].take(), more);
    pod
}

/// A pod with the one container `main`, which runs until it is stopped.
pub(crate) fn simple(name: &str) -> Value {
    pod(name, &[container("main")])
}

/// [`simple`] in a version that the container's arguments show.
pub(crate) fn version(name: &str, version: &str) -> Value {
    pod(name, &[with(container("main"), json!({"args": [version]}))])
}

/// A probe that runs a command every second.
pub(crate) fn exec_probe(command: &str) -> Value {
    json!({"exec": {"command": [command]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30})
}
