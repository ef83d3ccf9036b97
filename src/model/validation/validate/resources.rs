//! Rules for resource requirements.

use super::{Errors, Path, names};
use crate::model::Quantity;
use k8s_openapi::api::core::v1::{PodResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;

const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const HUGE_PAGES: &str = "hugepages-";

fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

pub(super) fn validate(
    wanted: &ResourceRequirements,
    claims: &[PodResourceClaim],
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let limits = quantities(wanted.limits.as_ref(), &path.child("limits"), errors);
    let requests = quantities(wanted.requests.as_ref(), &path.child("requests"), errors);
    let at = path.child("requests");
    for (name, request) in &requests {
        let shown = wanted.requests.as_ref().and_then(|map| map.get(*name));
        let shown = shown.map_or("", |quantity| quantity.0.as_str());
        match limits.get(name) {
            Some(limit) if request > limit => {
                let limit = wanted.limits.as_ref().and_then(|map| map.get(*name));
                let limit = limit.map_or("", |quantity| quantity.0.as_str());
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(&at, shown, detail);
            }
            Some(limit) if request != limit && !STANDARD.contains(name) => {
                let detail = format!("must be equal to {name} limit");
                errors.invalid(&at, shown, detail);
            }
            None if !STANDARD.contains(name) => {
                let detail = "limit must be set for non overcommitable resources";
                errors.required(&path.child("limits"), detail);
            }
            _ => {}
        }
    }
    for (index, claim) in wanted.claims.iter().flatten().enumerate() {
        if !claims.iter().any(|known| known.name == claim.name) {
            let list = path.child("claims");
            errors.not_found(&list.index(index), &claim.name);
        }
    }
}

/// Checks names and amounts and returns the amounts that could be read.
fn quantities<'a>(
    map: Option<&'a BTreeMap<String, ApiQuantity>>,
    path: &Path<'_>,
    errors: &mut Errors,
) -> BTreeMap<&'a str, Quantity> {
    let mut amounts = BTreeMap::new();
    for (name, amount) in map.into_iter().flatten() {
        let at = path.key(name);
        let known = STANDARD.contains(&name.as_str()) || is_huge_pages(name);
        if !known && (names::qualified(name).is_some() || !name.contains('/')) {
            errors.invalid(&at, name, "must be a standard resource for containers");
            continue;
        }
        match Quantity::from_api(amount) {
            Err(_) => errors.invalid(&at, &amount.0, "must be a quantity, e.g. 500m or 1Gi"),
            Ok(value) if value.is_negative() => {
                errors.invalid(&at, &amount.0, "must be greater than or equal to 0");
            }
            Ok(value) if !STANDARD.contains(&name.as_str()) && !value.is_whole() => {
                errors.invalid(&at, &amount.0, "must be an integer");
            }
            Ok(value) => {
                amounts.insert(name.as_str(), value);
            }
        }
    }
    amounts
}
