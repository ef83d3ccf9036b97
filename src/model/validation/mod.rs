//! Reading and judging pods that no API server has seen.
//!
//! * Owns: the decoder from manifest bytes to typed pods, API defaulting, the pod rules of the API,
//!   the rules for static pods, and the list of what this kubelet does not do yet.
//! * Woken by nothing and publishes nothing: all of it is functions from data to data.
//! * Must never log, wait, read a clock or a file; must never print a manifest's string values other
//!   than the ones that name things (a value may be a secret).
//! * Answers to upstream's `pkg/apis/core/v1` defaults, `pkg/apis/core/validation` and the decoding
//!   half of `pkg/kubelet/config`.

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
pub use defaults::default_pod;
pub use field::{ErrorKind, FieldError};
pub use validate::{
    LocalObjects, api_pod_names, own_annotations, static_pod_references, unsupported_api_fields,
    unsupported_fields, unsupported_warnings, validate_pod,
};

/// Whether a text is a DNS subdomain, such as the name of a driver.
pub fn is_dns_subdomain(text: &str) -> bool {
    names::dns_subdomain(text).is_none()
}

/// Whether a text is a name with an optional DNS subdomain before it, such as the key of a label.
pub fn is_qualified_name(text: &str) -> bool {
    names::qualified(text).is_none()
}

#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod decode_tests;
