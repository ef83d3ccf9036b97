//! Validates `metadata`.

use super::{Errors, Path, names, text};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Maximum size of all annotations of an object, keys and values, in bytes.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

pub(super) fn validate(meta: &ObjectMeta, errors: &mut Errors) {
    let path = Path::root("metadata");
    let name = text(meta.name.as_ref());
    match names::dns_subdomain(name) {
        _ if name.is_empty() => errors.required(&path.child("name"), ""),
        Some(wrong) => errors.invalid(&path.child("name"), name, wrong),
        None => {}
    }
    let namespace = text(meta.namespace.as_ref());
    match names::dns_label(namespace) {
        _ if namespace.is_empty() => errors.required(&path.child("namespace"), ""),
        Some(wrong) => errors.invalid(&path.child("namespace"), namespace, wrong),
        None => {}
    }
    let uid = text(meta.uid.as_ref());
    if let Some(wrong) = names::uid(uid).filter(|_| !uid.is_empty()) {
        errors.invalid(&path.child("uid"), uid, wrong);
    }
    if let Some(map) = &meta.labels {
        labels(map, &path.child("labels"), errors);
    }
    if let Some(map) = &meta.annotations {
        annotations(map, &path.child("annotations"), errors);
    }
}

/// Validates labels or a node selector, which have the same syntax.
pub(super) fn labels(map: &BTreeMap<String, String>, path: &Path<'_>, errors: &mut Errors) {
    for (key, value) in map {
        if let Some(wrong) = names::qualified(key) {
            errors.invalid(path, key, wrong);
        }
        if let Some(wrong) = names::label_value(value) {
            errors.invalid(&path.key(key), value, wrong);
        }
    }
}

fn annotations(map: &BTreeMap<String, String>, path: &Path<'_>, errors: &mut Errors) {
    for key in map.keys() {
        if let Some(wrong) = names::qualified(&key.to_ascii_lowercase()) {
            errors.invalid(path, key, wrong);
        }
    }
    let total: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if total > MAX_ANNOTATIONS_BYTES {
        errors.too_long(path, MAX_ANNOTATIONS_BYTES);
    }
}
