//! Manifest bytes to typed pods. YAML and JSON take the same way.

use super::tracked::{Track, Tracked};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny},
};
use serde_yaml::{MessageFormatter as _, Options, UserMessageFormatter};
use std::fmt;

/// Largest manifest, in bytes (upstream's limit for files and URLs).
pub const MAX_MANIFEST_BYTES: usize = 10 << 20;

/// Most YAML nodes in a manifest.
const MAX_NODES: usize = 500_000;

/// Most nodes that aliases may add.
const MAX_REPLAYED: usize = 200_000;

/// Why bytes are no pod. Displays as `line 3, column 5: spec.hostNetwork: …`, without the parts
/// that are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Line, from 1.
    pub line: Option<u64>,
    /// Column, from 1, in characters.
    pub column: Option<u64>,
    /// Path of the field, e.g. `spec.containers[0].env[1].value`; empty when it is the whole.
    pub field: String,
    /// What is wrong, for people.
    pub message: String,
}

impl DecodeError {
    fn new(field: &str, message: impl Into<String>) -> Self {
        Self {
            line: None,
            column: None,
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}")?;
            if let Some(column) = self.column {
                write!(f, ", column {column}")?;
            }
            f.write_str(": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}

/// What a manifest holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded<T> {
    /// The pod, or the pods of a list.
    pub value: T,
    /// It was a list, and not a pod by itself.
    pub is_list: bool,
    /// Paths of fields that this version of the API does not have. They are ignored, and a person
    /// should know.
    pub unknown_fields: Vec<String>,
}

/// Reads exactly one `v1` `Pod`, as a file must hold it.
///
/// # Errors
/// Everything else, an empty document and a list included, with line and field where known.
pub fn decode_pod(bytes: &[u8]) -> Result<Decoded<Pod>, DecodeError> {
    let (document, unknown_fields) = read(bytes)?;
    if document.kind.as_deref() != Some("Pod") {
        return Err(DecodeError::new(
            "kind",
            "a file must hold a Pod, not a list",
        ));
    }
    let value = document.into_pod();
    Ok(Decoded {
        value,
        is_list: false,
        unknown_fields,
    })
}

/// Reads one `v1` `Pod` or a `v1` `PodList`, as a URL may serve them.
///
/// # Errors
/// Everything else, with line and field where known.
pub fn decode_pod_or_list(bytes: &[u8]) -> Result<Decoded<Vec<Pod>>, DecodeError> {
    let (document, unknown_fields) = read(bytes)?;
    let is_list = document.kind.as_deref() != Some("Pod");
    let value = if is_list {
        pods_of_list(document.items.unwrap_or_default())?
    } else {
        vec![document.into_pod()]
    };
    Ok(Decoded {
        value,
        is_list,
        unknown_fields,
    })
}

fn pods_of_list(items: Vec<Document>) -> Result<Vec<Pod>, DecodeError> {
    let pods = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| match item.kind.as_deref() {
            None | Some("Pod") => Ok(item.into_pod()),
            Some(_) => {
                let field = format!("items[{index}].kind");
                Err(DecodeError::new(&field, "a PodList holds Pods only"))
            }
        });
    pods.collect()
}

/// A pod, or a list of them. Unlike the API's own types it sees whether `kind` is there at all.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct Document {
    #[serde(default, deserialize_with = "api_version")]
    api_version: Option<String>,
    #[serde(default, deserialize_with = "kind")]
    kind: Option<String>,
    metadata: Option<ObjectMeta>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
    items: Option<Vec<Document>>,
}

impl Document {
    fn into_pod(self) -> Pod {
        Pod {
            metadata: self.metadata.unwrap_or_default(),
            spec: self.spec,
            status: self.status,
        }
    }

    fn is_empty(&self) -> bool {
        self.api_version.is_none()
            && self.kind.is_none()
            && self.metadata.is_none()
            && self.spec.is_none()
            && self.items.is_none()
    }
}

fn api_version<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    let value = Option::<String>::deserialize(input)?;
    match value.as_deref() {
        None | Some("v1") => Ok(value),
        Some(other) => Err(D::Error::custom(unsupported(other, "\"v1\""))),
    }
}

fn kind<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    let value = Option::<String>::deserialize(input)?;
    match value.as_deref() {
        None | Some("Pod" | "PodList") => Ok(value),
        Some(other) => Err(D::Error::custom(unsupported(other, "\"Pod\""))),
    }
}

fn unsupported(value: &str, supported: &str) -> String {
    let value: String = value.chars().take(60).collect();
    format!("Unsupported value: {value:?}: supported values: {supported}")
}

fn read(bytes: &[u8]) -> Result<(Document, Vec<String>), DecodeError> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        let message = format!("larger than {} MiB", MAX_MANIFEST_BYTES >> 20);
        return Err(DecodeError::new("", message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    let mut track = Track::default();
    let mut first = None;
    let result = serde_yaml::with_deserializer_from_str_with_options(text, options(), |inner| {
        let document = Document::deserialize(Tracked::new(inner, &mut track))?;
        first = Some(document);
        Ok(())
    });
    if let Err(error) = result {
        let more_documents = matches!(
            error.without_snippet(),
            serde_yaml::Error::MultipleDocuments { .. }
        );
        if !more_documents || has_second_document(text) {
            return Err(decode_error(&error, track.failed_path()));
        }
    }
    let unknown = track.into_unknown();
    let document = first.filter(|document| !document.is_empty() || !unknown.is_empty());
    let document = document.ok_or_else(|| DecodeError::new("", "no object in the manifest"))?;
    for (field, value) in [
        ("apiVersion", &document.api_version),
        ("kind", &document.kind),
    ] {
        if value.is_none() {
            return Err(DecodeError::new(field, "Required value"));
        }
    }
    Ok((document, unknown))
}

/// Reads the one document of a configuration file that may contain secrets.
///
/// # Errors
/// With line and field where known, and without any value.
pub fn decode_secret<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    let mut track = Track::default();
    let result = serde_yaml::with_deserializer_from_str_with_options(text, options(), |inner| {
        T::deserialize(Tracked::new(inner, &mut track))
    });
    result.map_err(|error| DecodeError {
        message: message_without_values(&error),
        ..decode_error(&error, track.failed_path())
    })
}

/// Whether something stands behind the first document, or only a `---` with nothing after it.
fn has_second_document(text: &str) -> bool {
    match serde_yaml::from_multiple_with_options::<IgnoredAny>(text, options()) {
        Ok(documents) => documents.len() > 1,
        Err(_) => true,
    }
}

fn options() -> Options {
    serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_nodes: MAX_NODES,
            max_events: MAX_NODES * 4,
            max_total_scalar_bytes: MAX_MANIFEST_BYTES,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_yaml::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
        },
        emit_comments: false,
        legacy_octal_numbers: true,
        no_schema: true,
        with_snippet: false,
    }
}

fn not_utf8(bytes: &[u8], at: usize) -> DecodeError {
    let before = bytes.get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    DecodeError {
        line: u64::try_from(line).ok(),
        ..DecodeError::new("", "not UTF-8 text")
    }
}

fn decode_error(error: &serde_yaml::Error, field: &str) -> DecodeError {
    let location = error.location().filter(|location| location.line() > 0);
    DecodeError {
        line: location.as_ref().map(|location| location.line()),
        column: location.as_ref().map(|location| location.column()),
        field: field.into(),
        message: message(error),
    }
}

/// Only texts of which it is known that they contain no value.
fn message_without_values(error: &serde_yaml::Error) -> String {
    use serde_yaml::Error as E;
    match error.without_snippet() {
        E::AliasError { error, .. } => message_without_values(error),
        E::SerdeUnknownField { field, .. } => {
            let shown: String = field.chars().take(100).collect();
            format!("unknown field {shown:?}")
        }
        E::QuotingRequired { .. }
        | E::MultipleDocuments { .. }
        | E::DuplicateMappingKey { .. }
        | E::SerdeInvalidType { .. }
        | E::Budget { .. } => message(error),
        _ => "invalid value or syntax".into(),
    }
}

/// The error's text, without the reader's advice to programmers and without values: a value may
/// be a secret.
fn message(error: &serde_yaml::Error) -> String {
    use serde_yaml::Error as E;
    match error.without_snippet() {
        E::QuotingRequired { .. } => {
            "expected a string, found a number or boolean (write it in quotes)".into()
        }
        E::MultipleDocuments { .. } => "a second document: a manifest holds one".into(),
        E::DuplicateMappingKey { key: Some(key), .. } => {
            format!(
                "duplicate key {:?}",
                key.chars().take(100).collect::<String>()
            )
        }
        E::DuplicateMappingKey { key: None, .. } => "duplicate key".into(),
        E::SerdeInvalidType {
            unexpected,
            expected,
            ..
        } => {
            let found = unexpected.split_whitespace().next().unwrap_or_default();
            format!("expected {expected}, found {found}")
        }
        E::AliasError { error, .. } => message(error),
        E::Budget { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => {
            "too many nodes, too deep, or aliases that expand to too much".into()
        }
        other => {
            let text = UserMessageFormatter.format_message(other).into_owned();
            let shown = text.chars().filter(|c| !c.is_control());
            shown.take(300).collect()
        }
    }
}
