//! Validation of API pods before they are admitted.

use super::{Errors, Path, names, text};
use crate::model::validation::FieldError;
use crate::model::validation::field::Rule;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

/// Validates names that are used in paths, labels and cgroups, and that there are containers. Everything else is
/// validated by the API server, which may be newer than this kubelet and support more fields.
pub fn api_pod_names(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let metadata = Path::root("metadata");
    let required = [
        ("name", &pod.metadata.name, names::dns_subdomain as Rule),
        ("namespace", &pod.metadata.namespace, names::dns_label),
        ("uid", &pod.metadata.uid, names::uid),
    ];
    for (field, value, rule) in required {
        errors.check_required(&metadata.child(field), text(value.as_ref()), rule);
    }
    let path = Path::root("spec");
    match &pod.spec {
        Some(spec) => spec_names(spec, &path, &mut errors),
        None => errors.required(&path, ""),
    }
    errors.into_vec()
}

fn spec_names(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    if spec.containers.is_empty() {
        errors.required(&path.child("containers"), "");
    }
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let volumes = spec.volumes.iter().flatten();
    let lists: [(&str, Vec<&String>); 4] = [
        ("containers", spec.containers.iter().map(|it| &it.name).collect()),
        ("initContainers", init.map(|it| &it.name).collect()),
        ("ephemeralContainers", ephemeral.map(|it| &it.name).collect()),
        ("volumes", volumes.map(|it| &it.name).collect()),
    ];
    for (list, given) in lists {
        let list = path.child(list);
        for (index, name) in given.into_iter().enumerate() {
            errors.check_required(&list.index(index).child("name"), name, names::dns_label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn errors(pod: &Value) -> Vec<String> {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        api_pod_names(&pod).iter().map(ToString::to_string).collect()
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
            ("/spec/ephemeralContainers/0/name", "spec.ephemeralContainers[0].name"),
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
