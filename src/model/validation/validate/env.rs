//! Validates environment variables.

use super::{Errors, Path, names, text};
use crate::model::Quantity;
use k8s_openapi::api::core::v1::{
    Container, EnvVar, FileKeySelector, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
};

const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

pub(super) fn validate(
    spec: &PodSpec,
    container: &Container,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let list = path.child("env");
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let at = list.index(index);
        validate_variable(variable, &at, errors);
        let from = variable.value_from.as_ref();
        if let Some(file) = from.and_then(|from| from.file_key_ref.as_ref()) {
            let at = at.child("valueFrom");
            validate_file(spec, file, &at.child("fileKeyRef"), errors);
        }
    }
    let list = path.child("envFrom");
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        let at = list.index(index);
        let prefix = text(source.prefix.as_ref());
        errors.check(&at.child("prefix"), prefix, names::env_name);
        let sources = [source.config_map_ref.is_some(), source.secret_ref.is_some()];
        exactly_one(&sources, &at, "`configMapRef` or `secretRef`", errors);
        if let Some(wanted) = &source.config_map_ref {
            object_name(&wanted.name, &at.child("configMapRef"), errors);
        }
        if let Some(wanted) = &source.secret_ref {
            object_name(&wanted.name, &at.child("secretRef"), errors);
        }
    }
}

fn validate_variable(variable: &EnvVar, path: &Path<'_>, errors: &mut Errors) {
    errors.check_required(&path.child("name"), &variable.name, names::env_name);
    let Some(from) = &variable.value_from else {
        return;
    };
    let at = path.child("valueFrom");
    if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
        errors.invalid(&at, "", "may not be specified when `value` is not empty");
    }
    let sources = [
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.file_key_ref.is_some(),
    ];
    let names = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
    exactly_one(&sources, &at, names, errors);
    if let Some(field) = &from.field_ref {
        validate_field(field, FIELDS, &at.child("fieldRef"), errors);
    }
    if let Some(resource) = &from.resource_field_ref {
        validate_resource(resource, &at.child("resourceFieldRef"), errors);
    }
    if let Some(wanted) = &from.config_map_key_ref {
        let at = at.child("configMapKeyRef");
        object_name(&wanted.name, &at, errors);
        errors.check_required(&at.child("key"), &wanted.key, names::object_key);
    }
    if let Some(wanted) = &from.secret_key_ref {
        let at = at.child("secretKeyRef");
        object_name(&wanted.name, &at, errors);
        errors.check_required(&at.child("key"), &wanted.key, names::object_key);
    }
}

fn object_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    }
}

fn exactly_one(given: &[bool], path: &Path<'_>, names: &str, errors: &mut Errors) {
    match given.iter().filter(|given| **given).count() {
        0 => errors.invalid(path, "", format!("must specify one of: {names}")),
        1 => {}
        _ => errors.invalid(path, "", "may not have more than one field specified at a time"),
    }
}

/// `fileKeyRef` must refer to an emptyDir, as upstream: in other volumes, the file may be written by another pod or may
/// not be a regular file.
fn validate_file(spec: &PodSpec, file: &FileKeySelector, path: &Path<'_>, errors: &mut Errors) {
    errors.check_required(&path.child("key"), &file.key, names::env_name);
    let at = path.child("path");
    if file.path.is_empty() {
        errors.required(&at, "");
    } else if names::has_backstep(&file.path) {
        errors.invalid(&at, &file.path, "must not contain '..'");
    }
    let at = path.child("volumeName");
    let name = file.volume_name.as_str();
    errors.check_required(&at, name, names::dns_label);
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == name);
    match volume {
        None => errors.not_found(&at, name),
        Some(volume) if volume.empty_dir.is_none() => {
            errors.invalid(&at, name, "referenced volume must be of type emptyDir");
        }
        Some(_) => {}
    }
}

/// `allowed` are the valid paths besides single labels and annotations.
pub(super) fn validate_field(
    field: &ObjectFieldSelector,
    allowed: &[&str],
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let version = text(field.api_version.as_ref());
    if !matches!(version, "" | "v1") {
        errors.unsupported(&path.child("apiVersion"), version, &["v1"]);
    }
    let at = path.child("fieldPath");
    let wanted = field.field_path.as_str();
    if wanted.is_empty() {
        errors.required(&at, "");
        return;
    }
    let key = ["metadata.labels", "metadata.annotations"].into_iter().find_map(|map| {
        let subscript = wanted.strip_prefix(map)?;
        subscript.strip_prefix("['")?.strip_suffix("']")
    });
    match key {
        Some(key) => {
            if let Some(wrong) = names::qualified(&key.to_ascii_lowercase()) {
                errors.invalid(&at, wanted, wrong);
            }
        }
        None => errors.one_of(&at, Some(wanted), allowed),
    }
}

pub(super) fn validate_resource(
    field: &ResourceFieldSelector,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let at = path.child("resource");
    let resource = field.resource.as_str();
    let huge_pages = ["limits.hugepages-", "requests.hugepages-"];
    if resource.is_empty() {
        errors.required(&at, "");
    } else if !huge_pages.iter().any(|prefix| resource.starts_with(prefix)) {
        errors.one_of(&at, Some(resource), RESOURCES);
    }
    if let Some(divisor) = &field.divisor {
        let allowed: &[&str] = if resource.ends_with(".cpu") {
            &["0", "1m", "1"]
        } else {
            &[
                "0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi",
                "1Ei",
            ]
        };
        let value = Quantity::from_api(divisor);
        if value.is_err() || !allowed.iter().any(|text| Quantity::parse(text) == value) {
            errors.unsupported(&path.child("divisor"), &divisor.0, allowed);
        }
    }
}
