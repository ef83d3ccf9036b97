//! Validation of API pods before they are admitted.

use super::{Errors, Path, names, text};
use crate::model::validation::FieldError;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

/// Validates names that are used in paths, labels and cgroups, and that there are containers. Everything else is
/// validated by the API server, whose version may support more than this kubelet knows.
pub fn api_pod_names(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let metadata = Path::root("metadata");
    let required = [
        ("name", &pod.metadata.name, name as Rule),
        ("namespace", &pod.metadata.namespace, label),
        ("uid", &pod.metadata.uid, uid),
    ];
    for (field, value, rule) in required {
        check(
            text(value.as_ref()),
            rule,
            &metadata.child(field),
            &mut errors,
        );
    }
    let path = Path::root("spec");
    match &pod.spec {
        Some(spec) => spec_names(spec, &path, &mut errors),
        None => errors.required(&path, ""),
    }
    errors.into_vec()
}

type Rule = fn(&str) -> Option<&'static str>;

fn name(text: &str) -> Option<&'static str> {
    names::dns_subdomain(text)
}

fn label(text: &str) -> Option<&'static str> {
    names::dns_label(text)
}

fn uid(text: &str) -> Option<&'static str> {
    names::uid(text)
}

fn check(value: &str, rule: Rule, path: &Path<'_>, errors: &mut Errors) {
    match rule(value) {
        _ if value.is_empty() => errors.required(path, ""),
        Some(wrong) => errors.invalid(path, value, wrong),
        None => {}
    }
}

fn spec_names(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let list = path.child("containers");
    if spec.containers.is_empty() {
        errors.required(&list, "");
    }
    for (index, container) in spec.containers.iter().enumerate() {
        check(
            &container.name,
            label,
            &list.index(index).child("name"),
            errors,
        );
    }
    let list = path.child("initContainers");
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        check(
            &container.name,
            label,
            &list.index(index).child("name"),
            errors,
        );
    }
    let list = path.child("ephemeralContainers");
    for (index, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        check(
            &container.name,
            label,
            &list.index(index).child("name"),
            errors,
        );
    }
    let list = path.child("volumes");
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        check(
            &volume.name,
            label,
            &list.index(index).child("name"),
            errors,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn errors(pod: &Value) -> Vec<String> {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        api_pod_names(&pod)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        let good = json!({
            "metadata": {"name": "web-0.a", "namespace": "shop", "uid": "6c9d-1"},
            "spec": {
                "containers": [{"name": "main"}], "initContainers": [{"name": "first"}],
                "ephemeralContainers": [{"name": "debug"}], "volumes": [{"name": "data"}],
            },
        });
        assert_eq!(errors(&good), [""; 0]);
        for (pointer, field) in [
            ("/metadata/name", "metadata.name"),
            ("/metadata/namespace", "metadata.namespace"),
            ("/metadata/uid", "metadata.uid"),
            ("/spec/containers/0/name", "spec.containers[0].name"),
            ("/spec/initContainers/0/name", "spec.initContainers[0].name"),
            (
                "/spec/ephemeralContainers/0/name",
                "spec.ephemeralContainers[0].name",
            ),
            ("/spec/volumes/0/name", "spec.volumes[0].name"),
        ] {
            for wrong in ["../../etc", "", "a/b", "a\u{0}b"] {
                let mut pod = good.clone();
                *pod.pointer_mut(pointer).unwrap() = wrong.into();
                let errors = errors(&pod);
                assert_eq!(errors.len(), 1, "{pointer} {wrong:?}: {errors:?}");
                assert!(errors[0].starts_with(field), "{errors:?}");
            }
        }
    }

    #[test]
    fn a_pod_without_a_spec_is_refused() {
        let bare = json!({"metadata": {"name": "a", "namespace": "b", "uid": "c"}});
        assert_eq!(errors(&bare), ["spec: Required value"]);
    }
}
