//! Validates volumes whose files come from objects or from the pod.

use super::super::env::{validate_field, validate_resource};
use super::super::{Errors, Path, names, text};
use super::local_path;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, KeyToPath,
    ProjectedVolumeSource, SecretVolumeSource, VolumeProjection,
};
use std::collections::HashSet;

/// Supported `fieldRef` paths.
const FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

pub(super) fn config_map(source: &ConfigMapVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    required(&source.name, &path.child("name"), errors);
    mode(source.default_mode, &path.child("defaultMode"), errors);
    items(source.items.as_deref(), &path.child("items"), errors);
}

pub(super) fn secret(source: &SecretVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    let name = text(source.secret_name.as_ref());
    required(name, &path.child("secretName"), errors);
    mode(source.default_mode, &path.child("defaultMode"), errors);
    items(source.items.as_deref(), &path.child("items"), errors);
}

pub(super) fn downward_api(source: &DownwardAPIVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    mode(source.default_mode, &path.child("defaultMode"), errors);
    let list = path.child("items");
    for (index, file) in source.items.iter().flatten().enumerate() {
        downward_file(file, &list.index(index), errors);
    }
}

pub(super) fn projected(source: &ProjectedVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    mode(source.default_mode, &path.child("defaultMode"), errors);
    let mut paths = HashSet::new();
    let list = path.child("sources");
    for (index, projection) in source.sources.iter().flatten().enumerate() {
        let at = list.index(index);
        one_source(projection, &at, errors);
        for given in projection_paths(projection) {
            if !given.is_empty() && !paths.insert(given) {
                errors.invalid(path, given, "conflicting duplicate paths");
            }
        }
        projected_source(projection, &at, errors);
    }
}

fn one_source(projection: &VolumeProjection, path: &Path<'_>, errors: &mut Errors) {
    let given = [
        projection.secret.is_some(),
        projection.config_map.is_some(),
        projection.downward_api.is_some(),
        projection.service_account_token.is_some(),
        projection.cluster_trust_bundle.is_some(),
        projection.pod_certificate.is_some(),
    ];
    if given.iter().filter(|given| **given).count() > 1 {
        errors.forbidden(path, "may not specify more than 1 volume type");
    }
}

fn projection_paths(projection: &VolumeProjection) -> Vec<&str> {
    let secret = projection.secret.as_ref().and_then(|s| s.items.as_ref());
    let map = projection.config_map.as_ref();
    let map = map.and_then(|m| m.items.as_ref());
    let pod = projection.downward_api.as_ref();
    let pod = pod.and_then(|d| d.items.as_ref());
    let keys = secret.into_iter().chain(map).flatten();
    keys.map(|item| item.path.as_str())
        .chain(pod.into_iter().flatten().map(|file| file.path.as_str()))
        .collect()
}

fn projected_source(projection: &VolumeProjection, path: &Path<'_>, errors: &mut Errors) {
    if let Some(source) = &projection.secret {
        let at = path.child("secret");
        required(&source.name, &at.child("name"), errors);
        items(source.items.as_deref(), &at.child("items"), errors);
    }
    if let Some(source) = &projection.config_map {
        let at = path.child("configMap");
        required(&source.name, &at.child("name"), errors);
        items(source.items.as_deref(), &at.child("items"), errors);
    }
    if let Some(source) = &projection.downward_api {
        let at = path.child("downwardAPI");
        let list = at.child("items");
        for (index, file) in source.items.iter().flatten().enumerate() {
            downward_file(file, &list.index(index), errors);
        }
    }
}

fn downward_file(file: &DownwardAPIVolumeFile, path: &Path<'_>, errors: &mut Errors) {
    file_path(&file.path, &path.child("path"), errors);
    mode(file.mode, &path.child("mode"), errors);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            validate_field(field, FIELDS, &path.child("fieldRef"), errors);
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(path, "resource", detail);
            }
        }
        (None, Some(resource)) => {
            let at = path.child("resourceFieldRef");
            let container = text(resource.container_name.as_ref());
            required(container, &at.child("containerName"), errors);
            validate_resource(resource, &at, errors);
        }
        (None, None) => {
            errors.required(path, "one of fieldRef and resourceFieldRef is required");
        }
    }
}

fn items(items: Option<&[KeyToPath]>, path: &Path<'_>, errors: &mut Errors) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let at = path.index(index);
        required(&item.key, &at.child("key"), errors);
        file_path(&item.path, &at.child("path"), errors);
        mode(item.mode, &at.child("mode"), errors);
    }
}

fn required(value: &str, path: &Path<'_>, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(path, "");
    }
}

/// Validates the path of a file; names that begin with `..` are reserved for the atomic writer.
fn file_path(value: &str, path: &Path<'_>, errors: &mut Errors) {
    required(value, path, errors);
    local_path(value, path, errors);
    if value.starts_with("..") && !names::has_backstep(value) {
        errors.invalid(path, value, "must not start with '..'");
    }
}

fn mode(mode: Option<i32>, path: &Path<'_>, errors: &mut Errors) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid_raw(path, mode, detail);
    }
}
