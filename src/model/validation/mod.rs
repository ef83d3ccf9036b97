//! Decoding, defaulting and validation of pods that no API server has processed.
//!
//! * Owns: the decoder from manifests to pods, API defaulting, the API's validation of pods, the rules for static
//!   pods, and the list of fields that this kubelet does not support yet.
//! * Woken by nothing and publishes nothing: all functions are pure.
//! * Must never log, wait, or read a clock or a file; must never print string values of a manifest other than names
//!   (a value may be a secret).
//! * Upstream: `pkg/apis/core/v1` defaults, `pkg/apis/core/validation` and the decoding half of
//!   `pkg/kubelet/config`.

mod decode;
mod defaults;
mod field;
mod names;
pub mod signals;
pub mod sysctl;
pub mod sysctl_allowlist;
mod typed;
mod validate;

pub use crate::base::document::DecodeError;
pub use decode::{
    Decoded, MAX_MANIFEST_BYTES, decode_pod, decode_pod_or_list, decode_secret, manifest_tree,
};
pub use defaults::set_pod_defaults;
pub use field::FieldError;
pub use names::{label_value, qualified};
pub use validate::{
    LocalConfigMapsAndSecrets, api_pod_names, unsupported_fields, validate_kubelet_annotations,
    validate_pod, validate_static_pod_references,
};

/// Whether a text is a DNS subdomain, like a driver name.
pub fn is_dns_subdomain(text: &str) -> bool {
    names::dns_subdomain(text).is_none()
}

/// Whether a text is a name with an optional DNS subdomain prefix, like a label key.
pub fn is_qualified_name(text: &str) -> bool {
    names::qualified(text).is_none()
}

#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod decode_tests;
