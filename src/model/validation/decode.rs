//! Decodes manifests to pods. YAML and JSON are both parsed to a tree with positions, which is then decoded to types.

use super::typed::{add_unknown_fields, error_at, mismatch, typed};
use crate::base::document::{DecodeError, DocumentLimits, DocumentNode, DocumentValue, parse};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::de::DeserializeOwned;

/// Maximum size of a manifest in bytes (upstream's limit for files and URLs).
pub const MAX_MANIFEST_BYTES: usize = 10 << 20;

const LIMITS: DocumentLimits = DocumentLimits {
    kind: "manifest",
    nodes: 500_000,
    // Twice the depth of the deepest field of a pod.
    depth: 32,
    text: MAX_MANIFEST_BYTES,
    replayed: 200_000,
};

/// The fields of a list of pods.
const LIST_FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "items"];

/// A decoded manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded<T> {
    /// The pod, or the pods of a list.
    pub value: T,
    /// Whether it was a list.
    pub is_list: bool,
    /// Paths of unknown fields. They are ignored, but should be reported.
    pub unknown_fields: Vec<String>,
}

/// Decodes exactly one `v1` `Pod`, as required for files.
///
/// # Errors
/// Anything else, including an empty document and a list, with line and field if known.
pub fn decode_pod(bytes: &[u8]) -> Result<Decoded<Pod>, DecodeError> {
    let mut tree = manifest_tree(bytes)?;
    check_header(&mut tree, Expected::Pod)?;
    let mut unknown_fields = Vec::new();
    Ok(Decoded { value: pod(&mut tree, "", &mut unknown_fields)?, is_list: false, unknown_fields })
}

/// Decodes a `v1` `Pod` or `PodList`, as allowed for URLs.
///
/// # Errors
/// Anything else, with line and field if known.
pub fn decode_pod_or_list(bytes: &[u8]) -> Result<Decoded<Vec<Pod>>, DecodeError> {
    let mut tree = manifest_tree(bytes)?;
    let is_list = check_header(&mut tree, Expected::PodOrList)? == "PodList";
    let mut unknown_fields = Vec::new();
    let value = if is_list {
        pods_of_list(&mut tree, &mut unknown_fields)?
    } else {
        vec![pod(&mut tree, "", &mut unknown_fields)?]
    };
    Ok(Decoded { value, is_list, unknown_fields })
}

/// Decodes a configuration file with one document, whose values may be secret.
///
/// # Errors
/// With line and field if known, and without values.
pub fn decode_secret<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    typed(&mut parse(&"".into(), text, &LIMITS)?)
}

/// Parses a manifest to a tree with positions.
///
/// # Errors
/// Invalid syntax, an exceeded limit, or a document that is not an object.
pub fn manifest_tree(bytes: &[u8]) -> Result<DocumentNode, DecodeError> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        let message = format!("larger than {} MiB", MAX_MANIFEST_BYTES >> 20);
        return Err(DecodeError::new("", message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    let tree = parse(&"".into(), text, &LIMITS)?;
    match &tree.value {
        DocumentValue::Null => Err(DecodeError::new("", "no object in the manifest")),
        DocumentValue::Map(entries) if entries.is_empty() => {
            Err(DecodeError::new("", "no object in the manifest"))
        }
        DocumentValue::Map(_) => Ok(tree),
        other => Err(error_at(&tree.origin, "", mismatch("a map", other))),
    }
}

fn not_utf8(bytes: &[u8], at: usize) -> DecodeError {
    let before = bytes.get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    DecodeError { line: u64::try_from(line).ok(), ..DecodeError::new("", "not UTF-8 text") }
}

/// What a document has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A pod: the content of a file.
    Pod,
    /// A pod or a list of pods: the content of a URL.
    PodOrList,
    /// An item of such a list, whose header may be missing.
    Item,
}

/// Checks `apiVersion` and `kind`; returns the kind, or "" if it is missing and not required.
fn check_header(tree: &mut DocumentNode, expected: Expected) -> Result<String, DecodeError> {
    if let Some(error) = other_object(tree, expected) {
        return Err(error);
    }
    let is_required = expected != Expected::Item;
    let mut found = String::new();
    for field in ["apiVersion", "kind"] {
        match tree.get(field).map(|node| (&node.value, &node.origin)) {
            Some((DocumentValue::String(text), _)) if field == "kind" || text == "v1" => {
                found.clone_from(text);
            }
            Some((DocumentValue::String(text), origin)) => {
                let text: String = text.chars().take(60).collect();
                let message = format!("Unsupported value: {text:?}: supported values: \"v1\"");
                return Err(error_at(origin, field, message));
            }
            None | Some((DocumentValue::Null, _)) if is_required => {
                return Err(DecodeError::new(field, "Required value"));
            }
            None | Some((DocumentValue::Null, _)) => {
                found.clear();
                tree.remove(field);
            }
            Some((other, origin)) => {
                return Err(error_at(origin, field, mismatch("a string", other)));
            }
        }
    }
    Ok(found)
}

/// The error of a document with a kind other than the expected ones, whatever its `apiVersion`.
fn other_object(tree: &DocumentNode, expected: Expected) -> Option<DecodeError> {
    let text = |field| match tree.get(field) {
        Some(DocumentNode { value: DocumentValue::String(text), origin }) => {
            Some((text.as_str(), origin))
        }
        _ => None,
    };
    let (kind, origin) = text("kind")?;
    let wanted = match (expected, kind) {
        (_, "Pod") | (Expected::PodOrList, "PodList") => return None,
        (Expected::Pod, _) => "a static pod must be a Pod (v1)",
        (Expected::PodOrList, _) => "static pods must be a Pod or a PodList (v1)",
        (Expected::Item, _) => "an item of the list must be a Pod (v1)",
    };
    let version = text("apiVersion").map(|(version, _)| format!(" ({})", word(version)));
    let version = version.unwrap_or_default();
    let advice = match (expected, kind) {
        (Expected::Pod, "List" | "PodList") => ": each pod needs a file of its own",
        _ => "",
    };
    let kind = word(kind);
    let message = format!("{wanted}, and this is a {kind}{version}{advice}");
    Some(error_at(origin, "kind", message))
}

/// A name for a message; quoted and cut unless it looks like one.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "./-".contains(c);
    if text.len() <= 60 && !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("{:?}", text.chars().take(60).collect::<String>())
    }
}

fn pod(tree: &mut DocumentNode, path: &str, unknown: &mut Vec<String>) -> Result<Pod, DecodeError> {
    let pod = typed(tree).map_err(|error| error.within(path))?;
    add_unknown_fields::<Pod>(tree, path, unknown);
    Ok(pod)
}

fn pods_of_list(
    tree: &mut DocumentNode,
    unknown: &mut Vec<String>,
) -> Result<Vec<Pod>, DecodeError> {
    let mut pods = Vec::new();
    let DocumentValue::Map(entries) = &mut tree.value else {
        return Ok(pods);
    };
    for entry in entries {
        if entry.key == "metadata" && entry.node.value != DocumentValue::Null {
            typed::<ListMeta>(&mut entry.node).map_err(|error| error.within(&entry.key))?;
            add_unknown_fields::<ListMeta>(&entry.node, &entry.key, unknown);
        }
        if !LIST_FIELDS.contains(&entry.key.as_str()) {
            unknown.push(entry.key.clone());
        }
        let items = match &mut entry.node.value {
            DocumentValue::List(items) if entry.key == "items" => items,
            other if entry.key == "items" && *other != DocumentValue::Null => {
                let message = mismatch("a sequence", other);
                return Err(error_at(&entry.node.origin, "items", message));
            }
            _ => continue,
        };
        for (index, item) in items.iter_mut().enumerate() {
            let path = format!("items[{index}]");
            if item.value == DocumentValue::Null {
                item.value = DocumentValue::Map(Vec::new());
            }
            check_header(item, Expected::Item).map_err(|error| error.within(&path))?;
            pods.push(pod(item, &path, unknown)?);
        }
    }
    Ok(pods)
}
