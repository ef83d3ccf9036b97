//! Validates `metadata`.

use super::{Errors, Path, names, text};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Maximum size of all annotations of an object, keys and values, in bytes.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

pub(super) fn validate(meta: &ObjectMeta, errors: &mut Errors) {
    let path = Path::root("metadata");
    let name = text(meta.name.as_ref());
    errors.check_required(&path.child("name"), name, names::dns_subdomain);
    let namespace = text(meta.namespace.as_ref());
    errors.check_required(&path.child("namespace"), namespace, names::dns_label);
    errors.check_optional(&path.child("uid"), text(meta.uid.as_ref()), names::uid);
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
        errors.check(path, key, names::qualified);
        errors.check(&path.key(key), value, names::label_value);
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
