//! The defaults of `KubeletConfiguration`; applied only here.
//!
//! Upstream: `pkg/kubelet/apis/config/v1beta1/defaults.go`. For fields whose Go type is not a pointer, a zero in a
//! *file* means "not set", and so it does here ([`drop_unset_zeros`]); a zero in a flag counts.

use std::collections::BTreeMap;

use super::feature_gates::FeatureGate;
use super::fields::ApplyDefaults;
use super::kubelet_configuration::*;
use crate::base::GoDuration;
use crate::base::document::{DocumentEntry, DocumentNode, DocumentValue};

/// The kubelet's root directory.
pub(super) const ROOT_DIR: &str = "/var/lib/kubelet";
/// The directory of certificates that the kubelet creates or receives.
pub(super) const CERT_DIR: &str = "/var/lib/kubelet/pki";

/// Removes zero values of a file that mean "not set".
pub(super) fn drop_unset_zeros(tree: &mut DocumentNode) {
    for (path, field) in all_fields().filter(|(_, field)| field.zero_is_unset) {
        let is_zero = tree.lookup(path).is_some_and(|node| match &node.value {
            DocumentValue::Int(number) => *number == 0,
            DocumentValue::String(text) if field.type_name == "GoDuration" => {
                text.parse() == Ok(GoDuration::default())
            }
            DocumentValue::String(text) => text.is_empty(),
            _ => false,
        });
        if is_zero {
            tree.remove(path);
        }
    }
}

/// The configuration of a kubelet without a file and flags.
pub fn default_configuration() -> KubeletConfiguration {
    let mut config = KubeletConfiguration::default();
    apply(&mut config);
    config
}

/// Sets every field without a value to its default.
pub(super) fn apply(config: &mut KubeletConfiguration) {
    // Differs from upstream: concurrent pulls, unless serial ones are configured by either field.
    let serial_pulls = config.max_parallel_image_pulls == Some(1);
    config.serialize_image_pulls.get_or_insert(serial_pulls);
    config.apply_defaults();
    if FeatureGate::KubeletEnsureSecretPulledImages.is_on(config.feature_gates.as_ref()) {
        let policy = &mut config.image_pull_credentials_verification_policy;
        policy.get_or_insert_with(|| "NeverVerifyPreloadedImages".to_owned());
    }
    if config.pod_pids_limit.is_none_or(|limit| limit < 0) {
        config.pod_pids_limit = Some(-1);
    }
    apply_eviction_hard(config);
}

/// The hard eviction thresholds of a node whose configuration has none.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Sets the defaults that depend on other fields of the file, before drop-ins and flags are merged over it. As upstream,
/// a drop-in that sets one threshold or another interval leaves these defaults as they are.
pub(super) fn apply_to_file(file: &mut DocumentNode) {
    let origin = file.origin.clone();
    let text = |text: &str| DocumentNode {
        value: DocumentValue::String(text.to_owned()),
        origin: origin.clone(),
    };
    let given = |path: &str| {
        let node = file.lookup(path)?;
        Some(node).filter(|node| node.value != DocumentValue::Null)
    };
    let merges = given("mergeDefaultEvictionSettings")
        .is_some_and(|merges| merges.value == DocumentValue::Bool(true));
    let entries = EVICTION_HARD.map(|(signal, threshold)| DocumentEntry {
        key: signal.to_owned(),
        origin: origin.clone(),
        node: text(threshold),
    });
    let mut thresholds =
        DocumentNode { value: DocumentValue::Map(entries.into()), origin: origin.clone() };
    let thresholds = match given("evictionHard") {
        Some(own) if merges => {
            thresholds.merge(own.clone());
            Some(thresholds)
        }
        Some(_) => None,
        None => Some(thresholds),
    };
    // An update frequency in the file is also its report frequency, as before that field existed.
    let report = match given("nodeStatusReportFrequency") {
        Some(_) => None,
        None => given("nodeStatusUpdateFrequency").cloned().or_else(|| Some(text("5m"))),
    };
    if let Some(thresholds) = thresholds {
        file.set("evictionHard", thresholds);
    }
    if let Some(report) = report {
        file.set("nodeStatusReportFrequency", report);
    }
}

/// The default hard eviction thresholds where a drop-in has removed the map, and those that a drop-in merges.
fn apply_eviction_hard(config: &mut KubeletConfiguration) {
    let merge = config.merge_default_eviction_settings == Some(true);
    let defaults =
        EVICTION_HARD.map(|(signal, threshold)| (signal.to_owned(), threshold.to_owned()));
    match &mut config.eviction_hard {
        Some(given) if merge => {
            for (signal, threshold) in defaults {
                given.entry(signal).or_insert(threshold);
            }
        }
        Some(_) => {}
        None => config.eviction_hard = Some(BTreeMap::from(defaults)),
    }
}
