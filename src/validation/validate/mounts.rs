//! Rules for volume mounts.

use super::pod::unique;
use super::{Errors, Path, names, text};
use k8s_openapi::api::core::v1::{Container, VolumeMount};
use std::collections::HashSet;

pub(super) fn validate(
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
        unique(
            &mut targets,
            &mount.mount_path,
            &at.child("mountPath"),
            errors,
        );
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
    } else if mount.mount_path.contains(':') {
        let detail = "must not contain ':'";
        errors.invalid(&path.child("mountPath"), &mount.mount_path, detail);
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

/// A path below the volume's root.
fn local_path(value: &str, path: &Path<'_>, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.invalid(path, value, "must be a relative path");
    }
    if names::has_backstep(value) {
        errors.invalid(path, value, "must not contain '..'");
    }
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
