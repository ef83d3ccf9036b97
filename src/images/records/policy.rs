//! `imagePullCredentialsVerificationPolicy`: whether a pod may use a present image without access to its registry.
//! Pure.

use super::record::PulledRecordFile;
use crate::images::credentials::ImagePullSecret;
use crate::images::image_name::ImageName;

/// For which images the pod's access is verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// For none.
    NeverVerify,
    /// For all but preloaded images, which the kubelet has not pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// For all but images that match a pattern.
    NeverVerifyAllowlistedImages(Vec<String>),
    /// For all.
    AlwaysVerify,
}

impl VerificationPolicy {
    /// Parses the configuration field. An unknown value is the default; validation has rejected it before.
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

/// Validates a pattern of `preloadedImagesVerificationAllowlist`: an image without tag and digest, or a prefix of
/// images that ends in `/*`.
///
/// # Errors
/// The validation error.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern != pattern.trim() {
        return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
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
            Some(untagged) if untagged == pattern => Ok(()),
            Some(_) => {
                Err(format!("neither tag nor digest is accepted in an image reference: {pattern}"))
            }
            None => Err(format!("failed to parse as an image name: {pattern}")),
        },
    }
}

/// Whether a pod with these secrets has to pull an image that is present. `untagged` is `image` without tag and digest,
/// or `None` if it cannot be parsed; `in_progress` is whether the kubelet is pulling the image or was when it was
/// killed.
pub(super) fn must_pull(
    policy: &VerificationPolicy,
    untagged: Option<&str>,
    image: &str,
    pulled: Option<&PulledRecordFile>,
    in_progress: bool,
    secrets: impl FnOnce() -> Vec<ImagePullSecret>,
) -> bool {
    let by_kubelet = pulled.is_some() || in_progress;
    if !policy.requires(untagged.unwrap_or(image), by_kubelet) {
        return false;
    }
    let is_accessible = |(known, untagged): (&PulledRecordFile, &str)| {
        let record = known.record();
        record.is_some_and(|record| {
            record.is_for_all(untagged) || record.is_for_any(untagged, &secrets())
        })
    };
    !pulled.zip(untagged).is_some_and(is_accessible)
}
