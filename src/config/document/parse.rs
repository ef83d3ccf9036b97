//! YAML (and so JSON) text to a [`Node`] tree.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::Spanned;

use super::{Entry, Node, Origin, Problem, Value};

/// Limits on one document; a kubelet configuration is a few kilobytes.
const MAX_NODES: usize = 20_000;
const MAX_DEPTH: usize = 32;
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Parses one document named `path` in messages.
///
/// # Errors
/// Broken syntax, a duplicate key, more than one document, or a document past the limits: one
/// problem with its line and column.
pub fn parse(path: &Arc<str>, text: &str) -> Result<Node, Problem> {
    let options = serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_nodes: MAX_NODES,
            max_events: 3 * MAX_NODES,
            max_depth: MAX_DEPTH,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
            max_documents: 2,
        },
        alias_limits: serde_yaml::alias_limits! {
            max_total_replayed_events: 3 * MAX_NODES,
        },
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_yaml::from_str_with_options::<Spanned<Raw>>(text, options)
        .map(|raw| raw_to_node(path, raw))
        .map_err(|error| syntax_problem(path, &error))
}

fn syntax_problem(path: &Arc<str>, error: &serde_yaml::Error) -> Problem {
    let location = error.location().filter(|location| location.line() > 0);
    let origin = match location {
        Some(location) => file_origin(path, &location),
        None => Origin::File {
            path: Arc::clone(path),
            line: 1,
            column: 1,
        },
    };
    let message = match error.without_snippet() {
        serde_yaml::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key {key:?}")
        }
        serde_yaml::Error::MultipleDocuments { .. } => {
            "more than one document: a configuration file holds exactly one".to_owned()
        }
        other => strip_location(&other.to_string()),
    };
    Problem {
        field: String::new(),
        origin: Some(origin),
        message,
    }
}

/// The library appends "at line L, column C", which the origin already says.
fn strip_location(message: &str) -> String {
    let first = message.lines().next().unwrap_or(message);
    match first.rfind(" at line ") {
        Some(end) => first.get(..end).unwrap_or(first).to_owned(),
        None => first.to_owned(),
    }
}

fn file_origin(path: &Arc<str>, location: &serde_yaml::Location) -> Origin {
    Origin::File {
        path: Arc::clone(path),
        line: location.line(),
        column: location.column(),
    }
}

fn raw_to_node(path: &Arc<str>, raw: Spanned<Raw>) -> Node {
    let origin = file_origin(path, &raw.referenced);
    let value = match raw.value {
        Raw::Scalar(value) => value,
        Raw::List(items) => Value::List(
            items
                .into_iter()
                .map(|item| raw_to_node(path, item))
                .collect(),
        ),
        Raw::Map(entries) => {
            let entry = |(key, value): (Spanned<String>, _)| Entry {
                origin: file_origin(path, &key.referenced),
                key: key.value,
                node: raw_to_node(path, value),
            };
            Value::Map(entries.into_iter().map(entry).collect())
        }
    };
    Node { value, origin }
}

/// The tree as the parser delivers it, before file names are attached.
enum Raw {
    Scalar(Value),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Int(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Int(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::String(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
