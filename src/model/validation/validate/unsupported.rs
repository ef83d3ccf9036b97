//! Fields of manifests that this kubelet does not support yet. They are rejected with an error and never ignored: a pod
//! that runs without its limits, user namespace or volume is worse than one that does not start. A pod of the API
//! server is not checked here: it waits for what is not supported, with an event. Entries are removed when the kubelet
//! supports them.

use super::volumes::volume_sources;
use super::{Errors, Path};
use crate::model::validation::FieldError;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};

const NOT_YET: &str = "not supported yet by this kubelet";

/// Supported volume sources.
const VOLUME_KINDS: [&str; 11] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "projected",
    "secret",
];

/// Errors for unsupported fields of a static pod.
pub fn unsupported_fields(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if let Some(spec) = &pod.spec {
        let path = Path::root("spec");
        containers(spec, &path, &mut errors);
        let list = path.child("volumes");
        for (index, volume) in spec.volumes.iter().flatten().enumerate() {
            volume_fields(volume, &list.index(index), &mut errors);
        }
    }
    errors.into_vec()
}

fn forbid(given: bool, path: &Path<'_>, errors: &mut Errors) {
    if given {
        errors.forbidden(path, NOT_YET);
    }
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
    forbid(other, &path.child("volumeDevices"), errors);
}

fn volume_fields(volume: &Volume, path: &Path<'_>, errors: &mut Errors) {
    for source in volume_sources(volume) {
        forbid(!VOLUME_KINDS.contains(&source), &path.child(source), errors);
    }
}
