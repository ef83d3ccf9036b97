//! Fields that this kubelet does not support yet. They are rejected with an error and never ignored: a pod that runs
//! without its limits, user namespace or volume is worse than one that does not start. Entries are removed when the
//! kubelet supports them.

use super::volumes::volume_sources;
use super::{Errors, Path, text};
use crate::model::validation::FieldError;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};

const NOT_YET: &str = "not supported yet by this kubelet";

/// Supported volume sources.
const VOLUME_KINDS: [&str; 7] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "image",
    "projected",
    "secret",
];

/// Errors for unsupported fields of a static pod.
pub fn unsupported_fields(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if let Some(spec) = &pod.spec {
        spec_fields(spec, &Path::root("spec"), &mut errors);
    }
    fields(pod, &VOLUME_KINDS, errors)
}

/// Errors for unsupported fields of an API pod, which may refer to API objects; `certificates` is whether
/// `podCertificate` is supported.
pub fn unsupported_api_fields(pod: &Pod, certificates: bool) -> Vec<FieldError> {
    let kinds = [&VOLUME_KINDS[..], &["persistentVolumeClaim"]].concat();
    let mut errors = Errors::default();
    if let Some(spec) = pod.spec.as_ref().filter(|_| !certificates) {
        pod_certificates(spec, &Path::root("spec"), &mut errors);
    }
    fields(pod, &kinds, errors)
}

/// Not supported in static pods at all.
fn pod_certificates(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let list = path.child("volumes");
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = list.index(index);
        let (at, projected) = (at.child("projected"), volume.projected.as_ref());
        let at = at.child("sources");
        let sources = projected.and_then(|projected| projected.sources.as_ref());
        for (index, source) in sources.into_iter().flatten().enumerate() {
            let given = source.pod_certificate.is_some();
            refuse(given, &at.index(index).child("podCertificate"), errors);
        }
    }
}

fn fields(pod: &Pod, kinds: &[&str], mut errors: Errors) -> Vec<FieldError> {
    if let Some(spec) = &pod.spec {
        let path = Path::root("spec");
        containers(spec, &path, &mut errors);
        let list = path.child("volumes");
        for (index, volume) in spec.volumes.iter().flatten().enumerate() {
            volume_fields(volume, &list.index(index), kinds, &mut errors);
        }
    }
    errors.into_vec()
}

/// Warnings for fields that are accepted without their full effect.
pub fn unsupported_warnings(pod: &Pod) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(spec) = &pod.spec else {
        return warnings;
    };
    for container in spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
    {
        let limits = container
            .resources
            .iter()
            .flat_map(|r| r.limits.iter().flatten());
        if limits
            .into_iter()
            .any(|(name, _)| name == "ephemeral-storage")
        {
            let name = &container.name;
            warnings.push(format!(
                "limits.ephemeral-storage of container {name} is not enforced"
            ));
        }
    }
    for volume in spec.volumes.iter().flatten() {
        if let Some(dir) = &volume.empty_dir
            && dir.size_limit.is_some()
            && text(dir.medium.as_ref()).is_empty()
        {
            let name = &volume.name;
            warnings.push(format!(
                "emptyDir.sizeLimit of volume {name} is not enforced"
            ));
        }
    }
    warnings
}

fn refuse(given: bool, path: &Path<'_>, errors: &mut Errors) {
    if given {
        errors.forbidden(path, NOT_YET);
    }
}

fn some<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

fn spec_fields(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let required_affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .is_some_and(|node| {
            node.required_during_scheduling_ignored_during_execution
                .is_some()
        });
    for (field, given) in [
        ("affinity.nodeAffinity", required_affinity),
        (
            "overhead",
            spec.overhead.as_ref().is_some_and(|map| !map.is_empty()),
        ),
        ("readinessGates", some(spec.readiness_gates.as_ref())),
        (
            "runtimeClassName",
            !text(spec.runtime_class_name.as_ref()).is_empty(),
        ),
    ] {
        refuse(given, &path.child(field), errors);
    }
    let selector = path.child("nodeSelector");
    for (key, value) in spec.node_selector.iter().flatten() {
        refuse(
            !is_about_every_node_here(key, value),
            &selector.key(key),
            errors,
        );
    }
}

/// Whether every node that this program can run on satisfies the selector. Other selectors need the node's labels.
fn is_about_every_node_here(key: &str, value: &str) -> bool {
    let architecture = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        ""
    };
    matches!((key, value), ("kubernetes.io/os", "linux"))
        || key == "kubernetes.io/arch" && value == architecture
}

fn containers(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (field, containers) in [("initContainers", init), ("containers", &spec.containers)] {
        let list = path.child(field);
        for (index, container) in containers.iter().enumerate() {
            container_fields(spec, container, &list.index(index), errors);
        }
    }
}

/// `volumeDevices` may only refer to claims.
fn container_fields(spec: &PodSpec, container: &Container, path: &Path<'_>, errors: &mut Errors) {
    let volumes = || spec.volumes.iter().flatten();
    let is_claim =
        |name: &str| volumes().any(|one| one.name == name && one.persistent_volume_claim.is_some());
    let mut devices = container.volume_devices.iter().flatten();
    let other = devices.any(|device| !is_claim(&device.name));
    refuse(other, &path.child("volumeDevices"), errors);
}

fn volume_fields(volume: &Volume, path: &Path<'_>, kinds: &[&str], errors: &mut Errors) {
    for source in volume_sources(volume) {
        refuse(!kinds.contains(&source), &path.child(source), errors);
    }
}
