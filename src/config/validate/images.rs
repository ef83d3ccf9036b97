//! Validates the settings of images.

use super::Violations;
use crate::config::feature_gates::FeatureGate;
use crate::config::kubelet_configuration::KubeletConfiguration;
use crate::images::records::check_pattern;

/// Pulls, image garbage collection, and verification of access to images.
pub(super) fn check(config: &KubeletConfiguration, found: &mut Violations) {
    found.at_least("registryPullQPS", config.registry_pull_qps, 0);
    found.at_least("registryBurst", config.registry_burst, 0);
    found.at_least("maxParallelImagePulls", config.max_parallel_image_pulls, 1);
    let parallel = config.max_parallel_image_pulls.unwrap_or(1) > 1;
    if parallel && config.serialize_image_pulls == Some(true) {
        let message = "must be 1 while serializeImagePulls is true";
        found.add("maxParallelImagePulls", message);
    }
    let (low, high) =
        (config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent);
    found.in_range("imageGCHighThresholdPercent", high, 0, 100);
    found.in_range("imageGCLowThresholdPercent", low, 0, 100);
    if let (Some(low), Some(high)) = (low, high)
        && low >= high
    {
        let message = format!("must be less than imageGCHighThresholdPercent ({high}), got {low}");
        found.add("imageGCLowThresholdPercent", message);
    }
    let oldest = config.image_maximum_gc_age.filter(|age| age.as_nanos() > 0);
    if let (Some(oldest), Some(youngest)) = (oldest, config.image_minimum_gc_age)
        && oldest <= youngest
    {
        let message = format!("must be greater than imageMinimumGCAge ({youngest}), got {oldest}");
        found.add("imageMaximumGCAge", message);
    }
    image_verification(config, found);
}

fn image_verification(config: &KubeletConfiguration, found: &mut Violations) {
    const POLICIES: &[&str] = &[
        "NeverVerify",
        "NeverVerifyPreloadedImages",
        "NeverVerifyAllowlistedImages",
        "AlwaysVerify",
    ];
    let (policy_field, allowlist_field) =
        ("imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist");
    let policy = config.image_pull_credentials_verification_policy.as_ref();
    let allowlist = config.preloaded_images_verification_allowlist.as_deref();
    let allowlist = allowlist.unwrap_or_default();
    let gate = FeatureGate::KubeletEnsureSecretPulledImages;
    if !gate.is_on(config.feature_gates.as_ref()) {
        let given = [(policy_field, policy.is_some()), (allowlist_field, !allowlist.is_empty())];
        for (field, _) in given.iter().filter(|(_, given)| *given) {
            let message = format!("must not be set while feature gate {} is off", gate.name());
            found.add(field, message);
        }
        return;
    }
    found.one_of(policy_field, policy, POLICIES);
    if !allowlist.is_empty() && policy.is_none_or(|p| p != "NeverVerifyAllowlistedImages") {
        let message = "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages";
        found.add(allowlist_field, message);
        return;
    }
    for (index, pattern) in allowlist.iter().enumerate() {
        if let Err(problem) = check_pattern(pattern) {
            found.add(&format!("{allowlist_field}[{index}]"), problem);
        }
    }
}
