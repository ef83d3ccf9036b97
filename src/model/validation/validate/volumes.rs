//! Validates volumes and volume mounts.

mod disks;
mod sources;

use super::rules::{local_path, pull_policy, unique};
use super::{Errors, Path, names, text};
use crate::model::Quantity;
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, FlexVolumeSource, HostPathVolumeSource, ImageVolumeSource,
    NFSVolumeSource, PodSpec, Volume, VolumeMount,
};
use std::collections::HashSet;

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

macro_rules! sources {
    ($volume:expr, $($field:ident $name:literal),* $(,)?) => {{
        let mut given = Vec::with_capacity(1);
        $(if $volume.$field.is_some() {
            given.push($name);
        })*
        given
    }};
}

/// The API names of a volume's sources.
pub(in crate::model::validation) fn volume_sources(volume: &Volume) -> Vec<&'static str> {
    sources!(
        volume,
        empty_dir "emptyDir",
        host_path "hostPath",
        aws_elastic_block_store "awsElasticBlockStore",
        azure_disk "azureDisk",
        azure_file "azureFile",
        cephfs "cephfs",
        cinder "cinder",
        config_map "configMap",
        csi "csi",
        downward_api "downwardAPI",
        ephemeral "ephemeral",
        fc "fc",
        flex_volume "flexVolume",
        flocker "flocker",
        gce_persistent_disk "gcePersistentDisk",
        git_repo "gitRepo",
        glusterfs "glusterfs",
        image "image",
        iscsi "iscsi",
        nfs "nfs",
        persistent_volume_claim "persistentVolumeClaim",
        photon_persistent_disk "photonPersistentDisk",
        portworx_volume "portworxVolume",
        projected "projected",
        quobyte "quobyte",
        rbd "rbd",
        scale_io "scaleIO",
        secret "secret",
        storageos "storageos",
        vsphere_volume "vsphereVolume",
    )
}

/// Validates the volumes and returns their names.
pub(super) fn validate<'a>(
    spec: &'a PodSpec,
    path: &Path<'_>,
    errors: &mut Errors,
) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = path.index(index);
        errors.check_required(&at.child("name"), &volume.name, names::dns_label);
        unique(&mut seen, &volume.name, &at.child("name"), errors);
        let given = volume_sources(volume);
        if given.is_empty() {
            errors.required(&at, "must specify a volume type");
        }
        for source in given.iter().skip(1) {
            errors.forbidden(&at.child(source), "may not specify more than 1 volume type");
        }
        if let Some(source) = &volume.host_path {
            host_path(source, &at.child("hostPath"), errors);
        }
        if let Some(source) = &volume.empty_dir {
            empty_dir(source, &at.child("emptyDir"), errors);
        }
        if let Some(source) = &volume.image {
            image(source, &at.child("image"), errors);
        }
        if let Some(source) = &volume.nfs {
            nfs(source, &at.child("nfs"), errors);
        }
        if let Some(source) = &volume.iscsi {
            disks::iscsi(source, &at.child("iscsi"), errors);
        }
        if let Some(source) = &volume.fc {
            disks::fc(source, &at.child("fc"), errors);
        }
        if let Some(source) = &volume.flex_volume {
            flex_volume(source, &at.child("flexVolume"), errors);
        }
        if let Some(source) = &volume.config_map {
            sources::config_map(source, &at.child("configMap"), errors);
        }
        if let Some(source) = &volume.secret {
            sources::secret(source, &at.child("secret"), errors);
        }
        if let Some(source) = &volume.downward_api {
            sources::downward_api(source, &at.child("downwardAPI"), errors);
        }
        if let Some(source) = &volume.projected {
            sources::projected(source, &at.child("projected"), errors);
        }
    }
    seen
}

fn host_path(source: &HostPathVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("path");
    if source.path.is_empty() {
        errors.required(&at, "");
    } else if names::has_backstep(&source.path) {
        errors.invalid(&at, &source.path, "must not contain '..'");
    } else if !source.path.starts_with('/') {
        errors.invalid(&at, &source.path, "must be an absolute path");
    }
    errors.one_of(&path.child("type"), source.type_.as_deref(), &HOST_PATH_TYPES);
}

fn empty_dir(source: &EmptyDirVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    let medium = text(source.medium.as_ref());
    if !medium.starts_with("HugePages-") {
        let values = ["", "HugePages", "Memory"];
        errors.one_of(&path.child("medium"), Some(medium), &values);
    }
    if let Some(limit) = &source.size_limit
        && Quantity::from_api(limit).map_or(true, Quantity::is_negative)
    {
        let detail = "must be a quantity that is not negative";
        errors.invalid(&path.child("sizeLimit"), &limit.0, detail);
    }
}

fn image(source: &ImageVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    if text(source.reference.as_ref()).is_empty() {
        errors.required(&path.child("reference"), "");
    }
    pull_policy(text(source.pull_policy.as_ref()), &path.child("pullPolicy"), errors);
}

fn nfs(source: &NFSVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    if source.server.is_empty() {
        errors.required(&path.child("server"), "");
    }
    let at = path.child("path");
    if source.path.is_empty() {
        errors.required(&at, "");
    } else if !source.path.starts_with('/') {
        errors.invalid(&at, &source.path, "must be an absolute path");
    }
}

fn flex_volume(source: &FlexVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    if source.driver.is_empty() {
        errors.required(&path.child("driver"), "");
    }
    for key in source.options.iter().flatten().map(|(key, _)| key) {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        let is_reserved = ["kubernetes.io", "k8s.io"]
            .iter()
            .any(|of| namespace == *of || namespace.ends_with(&format!(".{of}")));
        if is_reserved {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.invalid(&path.child("options").key(key), key, detail);
        }
    }
}

/// Validates a container's mounts; `volumes` are the names of the pod's volumes.
pub(super) fn validate_mounts(
    container: &Container,
    volumes: &HashSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let list = path.child("volumeMounts");
    let mut targets = HashSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = list.index(index);
        validate_mount(container, mount, volumes, &at, errors);
        unique(&mut targets, &mount.mount_path, &at.child("mountPath"), errors);
    }
}

fn validate_mount(
    container: &Container,
    mount: &VolumeMount,
    volumes: &HashSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if mount.name.is_empty() {
        errors.required(&path.child("name"), "");
    } else if !volumes.contains(mount.name.as_str()) {
        errors.not_found(&path.child("name"), &mount.name);
    }
    if mount.mount_path.is_empty() {
        errors.required(&path.child("mountPath"), "");
    }
    let sub_path = text(mount.sub_path.as_ref());
    let sub_path_expr = text(mount.sub_path_expr.as_ref());
    local_path(sub_path, &path.child("subPath"), errors);
    local_path(sub_path_expr, &path.child("subPathExpr"), errors);
    if !sub_path.is_empty() && !sub_path_expr.is_empty() {
        let detail = "subPathExpr and subPath are mutually exclusive";
        errors.invalid(&path.child("subPathExpr"), sub_path_expr, detail);
    }
    propagation(container, mount, path, errors);
    recursive_read_only(mount, path, errors);
}

fn propagation(container: &Container, mount: &VolumeMount, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("mountPropagation");
    let value = mount.mount_propagation.as_deref();
    let values = ["Bidirectional", "HostToContainer", "None"];
    errors.one_of(&at, value, &values);
    let security = container.security_context.as_ref();
    let privileged = security.and_then(|s| s.privileged).unwrap_or(false);
    if value == Some("Bidirectional") && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.forbidden(&at, detail);
    }
}

fn recursive_read_only(mount: &VolumeMount, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("recursiveReadOnly");
    let value = mount.recursive_read_only.as_deref();
    errors.one_of(&at, value, &["Disabled", "Enabled", "IfPossible"]);
    if !matches!(value, Some("Enabled" | "IfPossible")) {
        return;
    }
    if mount.read_only != Some(true) {
        errors.forbidden(&at, "may only be specified when `readOnly` is true");
    }
    if !matches!(mount.mount_propagation.as_deref(), None | Some("None")) {
        let detail = "may only be specified when `mountPropagation` is None or not specified";
        errors.forbidden(&at, detail);
    }
}
