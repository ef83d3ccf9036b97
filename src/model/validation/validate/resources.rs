//! Validates resource requirements.

use super::{Errors, Path, names};
use crate::model::requests::{self, CPU, HUGEPAGES_PREFIX, MEMORY, Measure as _};
use crate::model::{Amount, Quantity};
use k8s_openapi::api::core::v1::{PodResourceClaim, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;

const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const OF_PODS: [&str; 3] = [CPU, "hugepages-", MEMORY];

fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGEPAGES_PREFIX)
}

/// Validates pod-level resources.
pub(super) fn validate_pod(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let Some(own) = &spec.resources else {
        return;
    };
    if own.claims.is_some() {
        let detail = "claims may not be set for Resources at pod-level";
        errors.forbidden(&path.child("claims"), detail);
    }
    for (list, amounts) in [("limits", &own.limits), ("requests", &own.requests)] {
        let list = path.child(list);
        for name in amounts.iter().flatten().map(|(name, _)| name) {
            let is_supported = [CPU, MEMORY].contains(&name.as_str()) || is_huge_pages(name);
            if !is_supported {
                errors.unsupported(&list.key(name), name, &OF_PODS);
            }
        }
    }
    let amounts = ResourceRequirements { claims: None, ..own.clone() };
    validate(&amounts, &[], path, errors);
    within_pod(spec, own, path, errors);
}

/// Checks that the containers' resources do not exceed the pod's.
fn within_pod(spec: &PodSpec, own: &ResourceRequirements, path: &Path<'_>, errors: &mut Errors) {
    // An amount that cannot be parsed is reported for its container.
    let Ok(total) = requests::of_containers::<Amount>(spec) else {
        return;
    };
    let of_pod = |amounts: &Option<BTreeMap<String, ApiQuantity>>, name: &str| {
        let shown = amounts.as_ref()?.get(name)?;
        Some((shown.0.clone(), Quantity::from_api(shown).ok()?))
    };
    let list = path.child("requests");
    for (name, request) in &total.requests {
        if let Some((shown, _)) =
            of_pod(&own.requests, name).filter(|(_, own)| request.quantity() > *own)
        {
            let sum = request.to_api().0;
            let detail =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(&list.key(name), &shown, detail);
        }
    }
    let list = path.child("limits");
    for (name, limit) in total.limits.iter().filter(|(name, _)| is_huge_pages(name)) {
        if let Some((shown, _)) =
            of_pod(&own.limits, name).filter(|(_, own)| limit.quantity() > *own)
        {
            let sum = limit.to_api().0;
            let detail =
                format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.invalid(&list.key(name), &shown, detail);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let limits = container.resources.iter().flat_map(|own| own.limits.iter().flatten());
        for (name, shown) in limits {
            let Ok(limit) = Quantity::from_api(shown) else {
                continue;
            };
            let of_pod = of_pod(&own.limits, name).filter(|(_, own)| limit > *own);
            if let Some((most, _)) = of_pod {
                let detail = format!("must be less than or equal to pod limits of {most}");
                let containers = path.child("containers");
                let at = containers.index(index);
                errors.invalid(&at.key(name).child("limits"), &shown.0, detail);
            }
        }
    }
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

/// Validates names and amounts; returns the amounts that could be parsed.
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
