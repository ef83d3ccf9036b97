//! Rejects references of static pods to API objects. The kinds are upstream's (`PreventStaticPodAPIReferences`, on
//! since 1.34); the errors also name the field.

use super::{Errors, Path, text};
use crate::model::validation::FieldError;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ProjectedVolumeSource, Volume};

/// The source of ConfigMaps and Secrets for static pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalConfigMapsAndSecrets {
    /// None, as in upstream.
    #[default]
    None,
    /// Files of the node; volumes and environment variables may refer to them.
    Files,
}

impl LocalConfigMapsAndSecrets {
    /// `Files` if a directory of config maps and secrets is configured.
    pub fn new(has_directory: bool) -> Self {
        if has_directory { Self::Files } else { Self::None }
    }
}

/// Errors for fields of a static pod that refer to API objects, except for objects that the node has as files.
pub fn validate_static_pod_references(
    pod: &Pod,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if let Some(spec) = &pod.spec {
        let path = Path::root("spec");
        spec_references(spec, config_maps_and_secrets, &path, &mut errors);
    }
    errors.into_vec()
}

fn forbid(path: &Path<'_>, what: &str, errors: &mut Errors) {
    errors.forbidden(path, format!("static pods may not reference {what}"));
}

fn spec_references(
    spec: &PodSpec,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    for (field, name) in [
        ("serviceAccountName", &spec.service_account_name),
        ("serviceAccount", &spec.service_account),
    ] {
        if !text(name.as_ref()).is_empty() {
            forbid(&path.child(field), "serviceaccounts", errors);
        }
    }
    let list = path.child("imagePullSecrets");
    for (index, _) in spec.image_pull_secrets.iter().flatten().enumerate() {
        forbid(&list.index(index), "secrets", errors);
    }
    if spec.resource_claims.as_ref().is_some_and(|list| !list.is_empty()) {
        forbid(&path.child("resourceClaims"), "resourceclaims", errors);
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (field, containers) in [("initContainers", init), ("containers", &spec.containers)] {
        let list = path.child(field);
        for (index, container) in containers.iter().enumerate() {
            if config_maps_and_secrets == LocalConfigMapsAndSecrets::None {
                container_references(container, &list.index(index), errors);
            }
        }
    }
    let list = path.child("volumes");
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        volume_references(volume, config_maps_and_secrets, &list.index(index), errors);
    }
}

fn container_references(container: &Container, path: &Path<'_>, errors: &mut Errors) {
    let list = path.child("envFrom");
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        let at = list.index(index);
        if source.secret_ref.is_some() {
            forbid(&at.child("secretRef"), "secrets", errors);
        }
        if source.config_map_ref.is_some() {
            forbid(&at.child("configMapRef"), "configmaps", errors);
        }
    }
    let list = path.child("env");
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let Some(from) = &variable.value_from else {
            continue;
        };
        let at = list.index(index);
        let at = at.child("valueFrom");
        if from.secret_key_ref.is_some() {
            forbid(&at.child("secretKeyRef"), "secrets", errors);
        }
        if from.config_map_key_ref.is_some() {
            forbid(&at.child("configMapKeyRef"), "configmaps", errors);
        }
    }
}

fn volume_references(
    volume: &Volume,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let no_local_source = config_maps_and_secrets == LocalConfigMapsAndSecrets::None;
    for (field, given, what) in [
        ("configMap", no_local_source && volume.config_map.is_some(), "configmaps"),
        ("secret", no_local_source && volume.secret.is_some(), "secrets"),
        ("csi", volume.csi.is_some(), "csidrivers"),
        ("glusterfs", volume.glusterfs.is_some(), "endpoints"),
        ("azureFile", volume.azure_file.is_some(), "secrets"),
        ("ephemeral", volume.ephemeral.is_some(), "persistentvolumeclaims"),
        (
            "persistentVolumeClaim",
            volume.persistent_volume_claim.is_some(),
            "persistentvolumeclaims",
        ),
    ] {
        if given {
            forbid(&path.child(field), what, errors);
        }
    }
    let flex_volume = volume.flex_volume.as_ref();
    if flex_volume.is_some_and(|flex| flex.secret_ref.is_some()) {
        let at = path.child("flexVolume");
        forbid(&at.child("secretRef"), "secrets", errors);
    }
    let iscsi = volume.iscsi.as_ref();
    if iscsi.is_some_and(|iscsi| iscsi.secret_ref.is_some()) {
        let at = path.child("iscsi");
        forbid(&at.child("secretRef"), "secrets", errors);
    }
    if let Some(projected) = &volume.projected {
        projected_references(projected, config_maps_and_secrets, &path.child("projected"), errors);
    }
}

fn projected_references(
    projected: &ProjectedVolumeSource,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let no_local_source = config_maps_and_secrets == LocalConfigMapsAndSecrets::None;
    let list = path.child("sources");
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let at = list.index(index);
        for (field, given, what) in [
            ("configMap", no_local_source && source.config_map.is_some(), "configmaps"),
            ("secret", no_local_source && source.secret.is_some(), "secrets"),
            ("serviceAccountToken", source.service_account_token.is_some(), "serviceaccounts"),
            ("clusterTrustBundle", source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
            ("podCertificate", source.pod_certificate.is_some(), "podcertificates"),
        ] {
            if given {
                forbid(&at.child(field), what, errors);
            }
        }
    }
}
