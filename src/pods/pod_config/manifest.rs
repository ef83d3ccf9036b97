//! Decoding and validation of manifests: from bytes to static pods and warnings. Pure.

use super::static_pod::{InvalidPod, ManifestOrigin, static_pod};
use crate::base::panics::{PanicScope, Panicked, catch_panic_sync};
use crate::model::validation::{DecodeError, FieldError, decode_pod, decode_pod_or_list};
use crate::model::{Pod, PodExt};
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;

/// Limit of warnings about one manifest.
const MAX_WARNINGS: usize = 30;

/// The pods of one manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// The pods, all valid.
    pub pods: Vec<Arc<Pod>>,
    /// Warnings: one per unknown field.
    pub warnings: Vec<String>,
}

/// Why a manifest cannot be used. Displays on one line, for people, with line and field where known.
#[derive(Clone, Debug, PartialEq)]
pub enum InvalidManifest {
    /// The bytes are not pods.
    Decode(DecodeError),
    /// A file's pod breaks rules.
    InvalidPod(InvalidPod),
    /// Pods of a list break rules; there is at least one.
    InvalidPods(Vec<InvalidItem>),
    /// Reading it panicked: a defect of this program.
    Panicked(Panicked),
}

/// An invalid pod of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidItem {
    /// Where its fields are: `items[2].`, or empty when it stands alone.
    pub prefix: String,
    /// Its name, as the user wrote it.
    pub name: String,
    /// What is wrong.
    pub invalid: InvalidPod,
}

impl fmt::Display for InvalidManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(error) => error.fmt(f),
            Self::Panicked(error) => write!(f, "reading the manifest {error}"),
            Self::InvalidPod(invalid) => write!(f, "invalid pod: {invalid}"),
            Self::InvalidPods(items) => {
                for (index, item) in items.iter().enumerate() {
                    let semicolon = if index > 0 { "; " } else { "" };
                    let InvalidItem { name, invalid, .. } = item;
                    write!(f, "{semicolon}invalid pod {name:?}: {invalid}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for InvalidManifest {}

impl InvalidManifest {
    /// Every invalid field, with its path from the top of the manifest.
    pub fn fields(&self) -> Vec<FieldError> {
        let with_prefix = |prefix: &str, invalid: &InvalidPod| {
            let errors = invalid.0.iter().cloned();
            let path =
                |error: FieldError| FieldError { path: format!("{prefix}{}", error.path), ..error };
            errors.map(path).collect::<Vec<_>>()
        };
        match self {
            Self::Decode(_) | Self::Panicked(_) => Vec::new(),
            Self::InvalidPod(invalid) => with_prefix("", invalid),
            Self::InvalidPods(items) => {
                items.iter().flat_map(|item| with_prefix(&item.prefix, &item.invalid)).collect()
            }
        }
    }
}

/// Decodes and validates manifests: [`decode_file`] or [`decode_url`].
pub(super) type ManifestDecoder =
    fn(&[u8], ManifestOrigin<'_>, Timestamp) -> Result<Manifest, InvalidManifest>;

/// Decodes and validates a manifest. A panic of the decoder is returned as its error.
///
/// # Errors
/// [`InvalidManifest`]: the bytes are not a pod, or the pod breaks a rule of the API.
pub(super) fn decode_catching_panic(
    decoder: ManifestDecoder,
    bytes: &[u8],
    origin: ManifestOrigin<'_>,
    now: Timestamp,
) -> Result<Manifest, InvalidManifest> {
    catch_panic_sync(PanicScope::Manifest, || decoder(bytes, origin, now))
        .map_err(InvalidManifest::Panicked)
        .flatten()
}

/// Decodes and validates the content of a file: exactly one pod.
///
/// # Errors
/// [`InvalidManifest`]: the bytes are not a pod, or the pod breaks a rule of the API.
pub fn decode_file(
    bytes: &[u8],
    origin: ManifestOrigin<'_>,
    now: Timestamp,
) -> Result<Manifest, InvalidManifest> {
    let decoded = decode_pod(bytes).map_err(InvalidManifest::Decode)?;
    let pod = static_pod(decoded.value, origin, now).map_err(InvalidManifest::InvalidPod)?;
    Ok(Manifest { pods: vec![Arc::new(pod)], warnings: warnings(&decoded.unknown_fields) })
}

/// Decodes and validates the response of a URL: a pod or a list. One invalid pod makes the whole list invalid, so that a
/// list is never applied in part.
///
/// # Errors
/// [`InvalidManifest`]: the bytes are not a pod, or the pod breaks a rule of the API.
pub fn decode_url(
    bytes: &[u8],
    origin: ManifestOrigin<'_>,
    now: Timestamp,
) -> Result<Manifest, InvalidManifest> {
    let decoded = decode_pod_or_list(bytes).map_err(InvalidManifest::Decode)?;
    let mut manifest = Manifest { pods: Vec::new(), warnings: warnings(&decoded.unknown_fields) };
    let mut bad = Vec::new();
    for (index, pod) in decoded.value.into_iter().enumerate() {
        let name = pod.name().to_string();
        match static_pod(pod, origin, now) {
            Ok(pod) => manifest.pods.push(Arc::new(pod)),
            Err(invalid) => bad.push(InvalidItem {
                prefix: if decoded.is_list { format!("items[{index}].") } else { String::new() },
                name,
                invalid,
            }),
        }
    }
    if bad.is_empty() { Ok(manifest) } else { Err(InvalidManifest::InvalidPods(bad)) }
}

fn warnings(unknown_fields: &[String]) -> Vec<String> {
    let warning = |field| format!("unknown field {field:?} is ignored");
    let fields = unknown_fields.iter().take(MAX_WARNINGS);
    fields.map(warning).collect()
}

#[cfg(test)]
mod documented;
