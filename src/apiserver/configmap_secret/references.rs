//! Which ConfigMaps and Secrets a pod refers to. Pure.

use super::{ObjectKey, ObjectKind};
use crate::model::{Pod, PodExt as _};
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Volume};
use std::collections::BTreeSet;

/// The references of environment variables, volumes and image pull secrets (upstream's `VisitPodSecretNames` and
/// `VisitPodConfigmapNames`, without references that only volume plugins use).
pub(super) fn references(pod: &Pod) -> BTreeSet<ObjectKey> {
    let Some(spec) = pod.spec() else {
        return BTreeSet::new();
    };
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|container| (&container.env_from, &container.env));
    let others = pod.containers().iter().chain(pod.init_containers());
    let containers = others.map(|container| (&container.env_from, &container.env));
    let mut names = BTreeSet::new();
    for (whole, single) in containers.chain(ephemeral) {
        names.extend(whole.iter().flatten().filter_map(of_env_from));
        names.extend(single.iter().flatten().filter_map(of_variable));
    }
    for volume in spec.volumes.iter().flatten() {
        of_volume(volume, &mut names);
    }
    let pull_secrets = spec.image_pull_secrets.iter().flatten();
    names.extend(pull_secrets.map(|secret| (ObjectKind::Secret, secret.name.as_str())));
    let key = |(kind, name): (ObjectKind, &str)| ObjectKey {
        kind,
        namespace: pod.namespace().to_owned(),
        name: name.to_owned(),
    };
    let named = names.into_iter().filter(|(_, name)| !name.is_empty());
    named.map(key).collect()
}

fn of_env_from(source: &EnvFromSource) -> Option<(ObjectKind, &str)> {
    if let Some(wanted) = &source.config_map_ref {
        return Some((ObjectKind::ConfigMap, &wanted.name));
    }
    let wanted = source.secret_ref.as_ref()?;
    Some((ObjectKind::Secret, &wanted.name))
}

fn of_variable(variable: &EnvVar) -> Option<(ObjectKind, &str)> {
    let source = variable.value_from.as_ref()?;
    if let Some(wanted) = &source.config_map_key_ref {
        return Some((ObjectKind::ConfigMap, &wanted.name));
    }
    let wanted = source.secret_key_ref.as_ref()?;
    Some((ObjectKind::Secret, &wanted.name))
}

fn of_volume<'a>(volume: &'a Volume, names: &mut BTreeSet<(ObjectKind, &'a str)>) {
    if let Some(wanted) = &volume.config_map {
        names.insert((ObjectKind::ConfigMap, &wanted.name));
    }
    if let Some(name) = volume.secret.as_ref().and_then(|s| s.secret_name.as_ref()) {
        names.insert((ObjectKind::Secret, name));
    }
    let projected = volume.projected.as_ref();
    for source in projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if let Some(wanted) = &source.config_map {
            names.insert((ObjectKind::ConfigMap, &wanted.name));
        }
        if let Some(wanted) = &source.secret {
            names.insert((ObjectKind::Secret, &wanted.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_uses_what_its_variables_volumes_and_pulls_name() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns"},
            "spec": {
                "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
                "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s1"}}]}],
                "containers": [{"name": "c",
                    "envFrom": [{"configMapRef": {"name": "m1"}}],
                    "env": [
                        {"name": "a", "value": "x"},
                        {"name": "b", "valueFrom": {"configMapKeyRef": {"name": "m2", "key": "k"}}},
                        {"name": "c", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}},
                    ]}],
                "ephemeralContainers": [{"name": "e", "envFrom": [{"secretRef": {"name": "s3"}}]}],
                "volumes": [
                    {"name": "1", "configMap": {"name": "m3"}},
                    {"name": "2", "secret": {"secretName": "s4"}},
                    {"name": "3", "projected": {"sources": [
                        {"configMap": {"name": "m4"}}, {"secret": {"name": "s5"}},
                        {"serviceAccountToken": {"path": "token"}},
                    ]}},
                    {"name": "4", "emptyDir": {}},
                ],
            },
        }))
        .unwrap();
        let found = references(&pod);
        assert!(found.iter().all(|key| key.namespace == "ns"));
        let names: Vec<_> = found.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(names, ["m1", "m2", "m3", "m4", "pull", "s1", "s2", "s3", "s4", "s5"]);
        assert!(
            found
                .iter()
                .all(|key| (key.kind == ObjectKind::ConfigMap) == key.name.starts_with('m'))
        );
        assert!(references(&Pod::default()).is_empty());
    }
}
