//! Whether an image that is here may be used without asking its registry: upstream's
//! `imagePullCredentialsVerificationPolicy`. Pure.

use super::record::KnownRecord;
use crate::images::credentials::UsedSecret;
use crate::images::image_name::ImageName;

/// Whose right to an image is verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// No images.
    NeverVerify,
    /// Images that were there before the kubelet pulled anything may be used by every pod.
    #[default]
    NeverVerifyPreloadedImages,
    /// Images that match a pattern may be used by every pod.
    NeverVerifyAllowlistedImages(Vec<String>),
    /// No image may be used without a check.
    AlwaysVerify,
}

impl VerificationPolicy {
    /// Reads the configuration's spelling; an unknown one is the default. Validation refuses it before.
    pub fn of(policy: &str, allowlist: &[String]) -> VerificationPolicy {
        match policy {
            "NeverVerify" => VerificationPolicy::NeverVerify,
            "NeverVerifyAllowlistedImages" => {
                VerificationPolicy::NeverVerifyAllowlistedImages(allowlist.to_vec())
            }
            "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
            _ => VerificationPolicy::NeverVerifyPreloadedImages,
        }
    }

    fn requires(&self, name: &str, pulled_by_kubelet: bool) -> bool {
        match self {
            VerificationPolicy::NeverVerify => false,
            VerificationPolicy::NeverVerifyPreloadedImages => pulled_by_kubelet,
            VerificationPolicy::NeverVerifyAllowlistedImages(patterns) => {
                let fits = |pattern: &String| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == pattern,
                };
                !patterns.iter().any(fits)
            }
            VerificationPolicy::AlwaysVerify => true,
        }
    }
}

/// Checks a pattern of `preloadedImagesVerificationAllowlist`: an image without tag and digest, or a
/// prefix of images that ends in `/*`.
///
/// # Errors
/// What is wrong with it.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern != pattern.trim() {
        return Err(format!(
            "leading/trailing spaces are not allowed: {pattern}"
        ));
    }
    let prefix = pattern.strip_suffix("/*");
    if pattern.is_empty() {
        return Err(format!("the supplied pattern is too short: {pattern}"));
    }
    if prefix.unwrap_or(pattern).contains('*') {
        return Err(format!(
            "not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
        ));
    }
    match prefix {
        Some("") => Err("at least registry hostname is required".to_owned()),
        Some(_) => Ok(()),
        None => match ImageName::without_tag_and_digest(pattern) {
            Some(plain) if plain == pattern => Ok(()),
            Some(_) => Err(format!(
                "neither tag nor digest is accepted in an image reference: {pattern}"
            )),
            None => Err(format!("failed to parse as an image name: {pattern}")),
        },
    }
}

/// Whether a pod of this node that brings these secrets has to pull an image that is here.
/// `plain` is `image` without tag and digest, if it can be read; `under_way` says that the kubelet is
/// pulling it or was when it was killed.
pub(super) fn must_pull(
    policy: &VerificationPolicy,
    plain: Option<&str>,
    image: &str,
    pulled: Option<&KnownRecord>,
    under_way: bool,
    secrets: impl FnOnce() -> Vec<UsedSecret>,
) -> bool {
    let by_kubelet = pulled.is_some() || under_way;
    if !policy.requires(plain.unwrap_or(image), by_kubelet) {
        return false;
    }
    let open = |(known, plain): (&KnownRecord, &str)| {
        let record = known.record();
        record
            .is_some_and(|record| record.is_for_all(plain) || record.is_for_any(plain, &secrets()))
    };
    !pulled.zip(plain).is_some_and(open)
}
