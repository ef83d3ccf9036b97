//! Pods for tests.

use super::Pod;
use serde_json::{Value, json};

/// A pod with this spec, or without one. `id` is `namespace/name/uid`: what is empty, the pod does not have.
pub(crate) fn pod(id: &str, spec: impl Into<Option<Value>>) -> Pod {
    let mut parts = id.splitn(3, '/').map(|part| (!part.is_empty()).then(|| part.to_owned()));
    let spec = spec.into().map(|spec| serde_json::from_value(spec).unwrap());
    let mut pod = Pod { spec, ..Pod::default() };
    pod.metadata.namespace = parts.next().flatten();
    pod.metadata.name = parts.next().flatten();
    pod.metadata.uid = parts.next().flatten();
    pod
}

/// The pod with these annotations, too.
pub(crate) fn annotated<const N: usize>(mut pod: Pod, annotations: [(&str, &str); N]) -> Pod {
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    pod.metadata.annotations.get_or_insert_default().extend(annotations);
    pod
}

/// A spec with containers of these names and resources; `init:` or `sidecar:` stands before the name of an init container.
pub(crate) fn spec<'a>(rows: impl IntoIterator<Item = (&'a str, Option<Value>)>) -> Value {
    let mut spec = json!({"initContainers": [], "containers": []});
    for (name, resources) in rows {
        let (kind, name) = name.split_once(':').unwrap_or(("", name));
        let list = if kind.is_empty() { "containers" } else { "initContainers" };
        let restart = (kind == "sidecar").then_some("Always");
        let container = json!({"name": name, "restartPolicy": restart, "resources": resources});
        spec[list].as_array_mut().unwrap().push(container);
    }
    spec
}

/// Resources whose limits are their requests.
pub(crate) fn guaranteed(cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"requests": amounts, "limits": amounts})
}
