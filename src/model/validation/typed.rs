//! Decodes document trees to API types. Pure.
//!
//! A tree is converted to JSON and decoded by the deserializer that is also used for responses of the API server:
//! that code is large, so the program contains it only once.

use crate::base::document::{DecodeError, DocumentNode, DocumentOrigin, DocumentValue, push_key};
use serde::de::DeserializeOwned;
use std::collections::HashMap;

/// Maximum size of JSON decoded in repeated attempts for one tree, in bytes.
const MAX_RETRIED_BYTES: usize = 64 << 20;

/// Maximum number of unknown fields that are reported.
const MAX_UNKNOWN: usize = 20;

/// Scalar types of the API with a type name; other named types are objects.
const NAMED_SCALARS: [&str; 4] = ["IntOrString", "MicroTime", "Quantity", "Time"];

/// Decodes a tree. As in Go, a null for a string or an object counts as an empty one.
///
/// # Errors
/// The first value of the wrong type, with its position.
pub(super) fn typed<T: DeserializeOwned>(tree: &mut DocumentNode) -> Result<T, DecodeError> {
    let mut read = 0_usize;
    loop {
        let json = tree.to_json();
        let error = match serde_json::from_slice(&json) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        read = read.saturating_add(json.len());
        let text = error.to_string();
        // Line and column are those of the JSON, not of the document.
        let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
        let steps = steps_to_error(tree, error.line(), text);
        if read > MAX_RETRIED_BYTES || !fill_null(tree, &steps, text) {
            return Err(decode_error(tree, &steps, text));
        }
    }
}

/// The child indices of the value that an error is about.
fn steps_to_error(tree: &DocumentNode, line: usize, text: &str) -> Vec<usize> {
    let mut steps = tree.on_json_line(line);
    let is_container = ["invalid type: sequence, ", "invalid type: map, "]
        .iter()
        .filter_map(|found| text.strip_prefix(found)?.strip_prefix("expected "))
        .any(|expected| NAMED_SCALARS.contains(&expected));
    let is_empty = match tree.at(&steps).map(|(node, _, _)| &node.value) {
        Some(DocumentValue::List(items)) => items.is_empty(),
        Some(DocumentValue::Map(entries)) => entries.is_empty(),
        _ => false,
    };
    if is_container && !is_empty {
        // The parser has already advanced to the first child when it reports the line.
        steps.pop();
    }
    steps
}

/// Replaces the null that the error is about, and other nulls in the same list, by the empty value.
fn fill_null(tree: &mut DocumentNode, steps: &[usize], text: &str) -> bool {
    let empty = match text.strip_prefix("invalid type: null, expected ") {
        Some("a string") => DocumentValue::String(String::new()),
        Some(expected) if is_object(expected) => DocumentValue::Map(Vec::new()),
        _ => return false,
    };
    let (parent, item) = match steps.split_last() {
        Some((last, parent)) => (parent, *last),
        None => return false,
    };
    let is_null = |node: &&mut DocumentNode| node.value == DocumentValue::Null;
    let nulls: Vec<_> = match tree.at_mut(parent).map(|parent| &mut parent.value) {
        Some(DocumentValue::List(items)) => items.iter_mut().filter(is_null).collect(),
        Some(DocumentValue::Map(entries)) => {
            let entry = entries.get_mut(item).map(|entry| &mut entry.node);
            entry.into_iter().filter(is_null).collect()
        }
        _ => Vec::new(),
    };
    let is_filled = !nulls.is_empty();
    for null in nulls {
        null.value = empty.clone();
    }
    is_filled
}

/// Whether a type, named as in deserialization errors, is an object.
fn is_object(expected: &str) -> bool {
    let is_named = expected.starts_with(|c: char| c.is_ascii_uppercase());
    expected == "a map"
        || expected.starts_with("struct ")
        || is_named && !NAMED_SCALARS.contains(&expected)
}

fn decode_error(tree: &DocumentNode, steps: &[usize], text: &str) -> DecodeError {
    let Some((node, entry, field)) = tree.at(steps) else {
        return DecodeError::new("", "invalid value");
    };
    if let Some(rest) = text.strip_prefix("unknown field `") {
        let name = rest.split('`').next().unwrap_or_default();
        let name: String = name.chars().take(100).collect();
        let origin = entry.map_or(&node.origin, |entry| &entry.origin);
        return error_at(origin, &field, format!("unknown field {name:?}"));
    }
    let expected = text.rsplit_once(", expected ").map(|(_, expected)| expected);
    let message = match expected {
        Some(expected) if text.starts_with("invalid type: ") => mismatch(expected, &node.value),
        Some(expected) if text.starts_with("invalid value: integer ") => {
            format!("out of range: expected {expected}")
        }
        // The error names a field of a type and contains no text of the document.
        _ if text.starts_with("missing field `") => text.into(),
        _ => "invalid value".into(),
    };
    error_at(&node.origin, &field, message)
}

/// An error at a position.
pub(super) fn error_at(origin: &DocumentOrigin, field: &str, message: String) -> DecodeError {
    let (line, column) = match origin {
        DocumentOrigin::File { line, column, .. } if *line > 0 => (Some(*line), Some(*column)),
        _ => (None, None),
    };
    DecodeError { line, column, field: field.into(), message }
}

/// The message for a type mismatch; `expected` is a type, named as in deserialization errors.
pub(super) fn mismatch(expected: &str, found: &DocumentValue) -> String {
    let is_container = matches!(found, DocumentValue::List(_) | DocumentValue::Map(_));
    let expected = match expected {
        "a string" if is_container => "string",
        "a string" if !matches!(found, DocumentValue::Null) => {
            return "expected a string, found a number or boolean (write it in quotes)".into();
        }
        "a sequence" => "sequence",
        other if is_object(other) => "mapping",
        other => other,
    };
    let found = match found {
        DocumentValue::Null | DocumentValue::Rejected => "null",
        DocumentValue::Bool(_) => "boolean",
        DocumentValue::Int(_) => "integer",
        DocumentValue::Float(_) => "floating point number",
        DocumentValue::String(_) => "string",
        DocumentValue::List(_) => "sequence",
        DocumentValue::Map(_) => "mapping",
    };
    format!("expected {expected}, found {found}")
}

/// Adds the paths of fields that `T` does not have, at most [`MAX_UNKNOWN`]. The tree must be decodable; `path` is
/// its path.
pub(super) fn add_unknown_fields<T: DeserializeOwned>(
    tree: &DocumentNode,
    path: &str,
    unknown: &mut Vec<String>,
) {
    let mut search = UnknownFields {
        open: String::new(),
        close: Vec::new(),
        known: HashMap::new(),
        fails_to_decode: |json| serde_json::from_slice::<T>(json).is_err(),
        unknown,
    };
    search.add(tree, &mut path.to_owned());
}

/// Determines the fields of a type by decoding documents with a single field, whose value is a number out of range
/// for every type: a known field causes an error, an unknown one is skipped.
struct UnknownFields<'a> {
    /// The document up to the value being visited, with one item in each list.
    open: String,
    /// The closing brackets, outermost first.
    close: Vec<char>,
    /// Results for documents that were tried.
    known: HashMap<String, bool>,
    fails_to_decode: fn(&[u8]) -> bool,
    unknown: &'a mut Vec<String>,
}

impl UnknownFields<'_> {
    fn is_known(&mut self, key: &str) -> bool {
        let key = serde_json::Value::from(key);
        let mut document = format!("{}{{{key}:1e999}}", self.open);
        document.extend(self.close.iter().rev());
        if let Some(known) = self.known.get(&document) {
            return *known;
        }
        let known = (self.fails_to_decode)(document.as_bytes());
        self.known.insert(document, known);
        known
    }

    fn add(&mut self, node: &DocumentNode, path: &mut String) {
        let length = path.len();
        match &node.value {
            DocumentValue::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    self.descend("[", ']', item, path);
                    path.truncate(length);
                }
            }
            DocumentValue::Map(entries) => {
                // No object has a field with an empty name, so a type that rejects its value is a map with arbitrary
                // keys, such as labels.
                let has_arbitrary_keys = self.is_known("");
                for entry in entries {
                    if self.unknown.len() >= MAX_UNKNOWN {
                        return;
                    }
                    push_key(path, &entry.key);
                    let key = if has_arbitrary_keys { "" } else { &entry.key };
                    if self.is_known(key) {
                        let open = format!("{{{}:", serde_json::Value::from(key));
                        self.descend(&open, '}', &entry.node, path);
                    } else {
                        self.unknown.push(path.clone());
                    }
                    path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn descend(&mut self, open: &str, close: char, node: &DocumentNode, path: &mut String) {
        let length = self.open.len();
        self.open.push_str(open);
        self.close.push(close);
        self.add(node, path);
        self.close.pop();
        self.open.truncate(length);
    }
}
