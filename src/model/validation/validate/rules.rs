//! Common validation rules.

use super::{Errors, Path, names};
use std::collections::HashSet;

/// Adds an error for repeated names.
pub(super) fn unique<'a>(
    seen: &mut HashSet<&'a str>,
    name: &'a str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if !name.is_empty() && !seen.insert(name) {
        errors.duplicate(path, name);
    }
}

/// Validates a pull policy, which defaulting has set.
pub(super) fn pull_policy(policy: &str, path: &Path<'_>, errors: &mut Errors) {
    match policy {
        "" => errors.required(path, ""),
        _ => errors.one_of(path, Some(policy), &["Always", "IfNotPresent", "Never"]),
    }
}

/// Validates a path relative to a volume's root.
pub(super) fn local_path(value: &str, path: &Path<'_>, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.invalid(path, value, "must be a relative path");
    }
    if names::has_backstep(value) {
        errors.invalid(path, value, "must not contain '..'");
    }
}
