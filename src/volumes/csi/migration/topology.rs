//! Translates the zones of a volume of a former in-tree plugin to the labels that its CSI driver gives to nodes. Pure.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, VolumeNodeAffinity};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Between the zones in the label of a PersistentVolume.
pub(super) const ZONE_DELIMITER: &str = "__";

/// The labels of a driver.
#[derive(Clone, Copy, Debug)]
pub(super) enum Topology {
    /// The label of the zone. Regions keep their label.
    Zone(&'static str),
    /// The labels of the zone and the region.
    ZoneAndRegion(&'static str, &'static str),
}

impl Topology {
    /// Translates the node affinity of a PersistentVolume. Without zones in it, those in `labels` of the PersistentVolume
    /// are added.
    pub(super) fn translate(
        self,
        labels: Option<&BTreeMap<String, String>>,
        affinity: &mut Option<VolumeNodeAffinity>,
    ) {
        let label = |key: &str| labels.and_then(|labels| labels.get(key));
        let (zone, region) = labels_in_use(labels, affinity.as_ref());
        match self {
            Self::Zone(new) => {
                let zones = label(zone).map(|zones| zones.split(ZONE_DELIMITER));
                replace_or_add(affinity, zone, new, zones.into_iter().flatten());
                if region == BETA_REGION {
                    replace(affinity, region, REGION);
                }
            }
            Self::ZoneAndRegion(new_zone, new_region) => {
                for (old, new) in [(zone, new_zone), (region, new_region)] {
                    replace_or_add(affinity, old, new, label(old).map(String::as_str).into_iter());
                }
            }
        }
    }
}

/// The labels of zone and region that a volume uses: the present ones, or those of old clusters.
fn labels_in_use(
    labels: Option<&BTreeMap<String, String>>,
    affinity: Option<&VolumeNodeAffinity>,
) -> (&'static str, &'static str) {
    let in_affinity = |key: &str| requirements_of(affinity).any(|one| one.key == key);
    let in_labels = |key: &str| labels.is_some_and(|labels| labels.contains_key(key));
    let is_beta = match (in_affinity(ZONE), in_affinity(BETA_ZONE)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => !in_labels(ZONE) && in_labels(BETA_ZONE),
    };
    if is_beta { (BETA_ZONE, BETA_REGION) } else { (ZONE, REGION) }
}

fn requirements_of(
    affinity: Option<&VolumeNodeAffinity>,
) -> impl Iterator<Item = &NodeSelectorRequirement> {
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = required.into_iter().flat_map(|one| &one.node_selector_terms);
    terms.flat_map(|term| term.match_expressions.iter().flatten())
}

fn replace_or_add<'a>(
    affinity: &mut Option<VolumeNodeAffinity>,
    old: &str,
    new: &str,
    from_labels: impl Iterator<Item = &'a str>,
) {
    let has_values = |one: &NodeSelectorRequirement| {
        one.key == old && one.values.as_ref().is_some_and(|all| !all.is_empty())
    };
    if requirements_of(affinity.as_ref()).any(has_values) {
        replace(affinity, old, new);
        return;
    }
    let values = from_labels.map(str::trim).filter(|value| !value.is_empty());
    let values: BTreeSet<String> = values.map(str::to_owned).collect();
    if values.is_empty() {
        return;
    }
    let requirement = NodeSelectorRequirement {
        key: new.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.into_iter().collect()),
    };
    let required = affinity.get_or_insert_default().required.get_or_insert_default();
    let terms = &mut required.node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        let expressions = term.match_expressions.get_or_insert_default();
        expressions.push(requirement.clone());
    }
}

fn replace(affinity: &mut Option<VolumeNodeAffinity>, old: &str, new: &str) {
    let required = affinity.as_mut().and_then(|affinity| affinity.required.as_mut());
    let terms = required.into_iter().flat_map(|one| &mut one.node_selector_terms);
    let requirements = terms.flat_map(|term| term.match_expressions.iter_mut().flatten());
    for requirement in requirements.filter(|one| one.key == old) {
        new.clone_into(&mut requirement.key);
    }
}
