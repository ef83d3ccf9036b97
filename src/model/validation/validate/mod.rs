//! The API's validation of pods at creation, and additional restrictions for static pods and this kubelet.

mod api_pod;
mod containers;
mod dns;
mod env;
mod kubelet_annotations;
mod metadata;
mod pod;
mod probes;
mod references;
mod resources;
mod rules;
mod security;
mod unsupported;
mod volumes;

pub use api_pod::api_pod_names;
pub use kubelet_annotations::validate_kubelet_annotations;
pub use pod::validate_pod;
pub use references::{LocalConfigMapsAndSecrets, validate_static_pod_references};
pub use unsupported::unsupported_fields;
pub(super) use volumes::volume_sources;

use super::field::{Errors, Path};
use super::names;

/// An optional text; "" if absent, because the API does not distinguish them.
fn text(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}

#[cfg(test)]
mod tests;
