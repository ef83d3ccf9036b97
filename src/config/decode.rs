//! Decodes [`DocumentNode`] trees to typed values, and reports all problems, not only the first.
//!
//! Serde stops at the first error. Therefore the offending value is marked as rejected after each error and decoding
//! is repeated, until there is no error. All fields of the configuration are optional, so each round gets further.

use std::fmt;

use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::document::ConfigProblem;
use crate::base::document::{DocumentEntry, DocumentNode, DocumentValue};

/// Maximum number of reported problems.
const MAX_PROBLEMS: usize = 50;

/// Decodes a tree into `T`.
///
/// # Errors
/// All unknown fields and all values of the wrong type or form, each with its field and origin, in the order found.
pub(super) fn decode<T: de::DeserializeOwned>(
    node: &DocumentNode,
) -> Result<T, Vec<ConfigProblem>> {
    let mut tree = node.clone();
    let mut problems = Vec::new();
    loop {
        match T::deserialize(NodeDeserializer { node: &tree }) {
            Ok(value) if problems.is_empty() => return Ok(value),
            Ok(_) => return Err(problems),
            Err(mut error) => {
                error.path.reverse();
                let steps = error.path.clone();
                problems.push(error.into_problem(&tree));
                let wrong = tree.at_mut(&steps).filter(|_| !steps.is_empty());
                match wrong {
                    Some(wrong) if problems.len() < MAX_PROBLEMS => {
                        wrong.value = DocumentValue::Rejected
                    }
                    _ => return Err(problems),
                }
            }
        }
    }
}

/// A decoding error, and the path to its value, innermost step first.
#[derive(Debug)]
struct SettingError {
    path: Vec<usize>,
    message: String,
    about_key: bool,
}

impl SettingError {
    fn new(message: String) -> Self {
        Self {
            path: Vec::new(),
            message,
            about_key: false,
        }
    }

    fn within(mut self, index: usize) -> Self {
        self.path.push(index);
        self
    }

    fn into_problem(self, root: &DocumentNode) -> ConfigProblem {
        let (field, origin) = match root.at(&self.path) {
            Some((_, Some(entry), field)) if self.about_key => (field, &entry.origin),
            Some((node, _, field)) => (field, &node.origin),
            None => (String::new(), &root.origin),
        };
        ConfigProblem {
            field,
            origin: Some(origin.clone()),
            message: self.message,
        }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SettingError {}

impl de::Error for SettingError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let message = match closest(field, expected) {
            Some(name) => format!("unknown field; did you mean {name:?}?"),
            None => "unknown field".to_owned(),
        };
        Self {
            about_key: true,
            ..Self::new(message)
        }
    }

    fn duplicate_field(_: &'static str) -> Self {
        Self {
            about_key: true,
            ..Self::new("given more than once".to_owned())
        }
    }
}

/// The candidate most similar to `name`, if it is similar enough to be what was meant.
pub fn closest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let limit = (wanted.len() / 4).clamp(1, 4);
    candidates
        .iter()
        .map(|candidate| {
            (
                edit_distance(&wanted, &candidate.to_lowercase()),
                *candidate,
            )
        })
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance between `a` and `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (slot, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let replaced = diagonal + usize::from(from != to);
            diagonal = *slot;
            left = replaced.min(left + 1).min(*slot + 1);
            *slot = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

struct NodeDeserializer<'a> {
    node: &'a DocumentNode,
}

impl NodeDeserializer<'_> {
    fn mismatch(&self, expected: &str) -> SettingError {
        SettingError::new(format!("expected {expected}, got {}", self.node.value))
    }

    /// Like `mismatch`, for text that may be a misplaced secret (a header): it is not repeated.
    fn not_a(&self, expected: &str) -> SettingError {
        match self.node.value {
            DocumentValue::String(_) => {
                SettingError::new(format!("expected {expected}, got a string"))
            }
            _ => self.mismatch(expected),
        }
    }
}

/// Visits an integer after a check of the target's range.
macro_rules! integer_methods {
    ($($method:ident: $type:ty => $visit:ident, $what:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
            match self.node.value {
                DocumentValue::Int(number) => match <$type>::try_from(number) {
                    Ok(number) => visitor.$visit(number),
                    Err(_) => Err(SettingError::new(format!(
                        "{number} is out of range: must be between {} and {}",
                        <$type>::MIN, <$type>::MAX
                    ))),
                },
                _ => Err(self.mismatch($what)),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for NodeDeserializer<'de> {
    type Error = SettingError;

    integer_methods! {
        deserialize_i8: i8 => visit_i8, "an integer";
        deserialize_i16: i16 => visit_i16, "an integer";
        deserialize_i32: i32 => visit_i32, "an integer";
        deserialize_i64: i64 => visit_i64, "an integer";
        deserialize_u8: u8 => visit_u8, "an integer";
        deserialize_u16: u16 => visit_u16, "an integer";
        deserialize_u32: u32 => visit_u32, "an integer";
        deserialize_u64: u64 => visit_u64, "an integer";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match &self.node.value {
            DocumentValue::Null | DocumentValue::Rejected => visitor.visit_unit(),
            DocumentValue::Bool(value) => visitor.visit_bool(*value),
            DocumentValue::Int(_) => self.deserialize_i64(visitor),
            DocumentValue::Float(value) => visitor.visit_f64(*value),
            DocumentValue::String(text) => visitor.visit_borrowed_str(text),
            DocumentValue::List(_) => self.deserialize_seq(visitor),
            DocumentValue::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match self.node.value {
            DocumentValue::Bool(value) => visitor.visit_bool(value),
            _ => Err(self.mismatch("true or false")),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match self.node.value {
            DocumentValue::Float(value) => visitor.visit_f64(value),
            DocumentValue::Int(value) => visitor.visit_f64(value as f64),
            _ => Err(self.mismatch("a number")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match &self.node.value {
            DocumentValue::String(text) => visitor.visit_borrowed_str(text),
            DocumentValue::Bool(_) | DocumentValue::Int(_) | DocumentValue::Float(_) => {
                Err(self.mismatch("a string (put it in quotes)"))
            }
            _ => Err(self.mismatch("a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match self.node.value {
            DocumentValue::Null | DocumentValue::Rejected => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match &self.node.value {
            DocumentValue::List(items) => visitor.visit_seq(ListAccess {
                items: items.iter().enumerate(),
            }),
            _ => Err(self.not_a("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match &self.node.value {
            DocumentValue::Map(entries) => visitor.visit_map(EntryAccess {
                entries: entries.iter().enumerate(),
                value: None,
            }),
            _ => Err(self.not_a("a mapping")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        self.deserialize_map(visitor)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

struct ListAccess<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, DocumentNode>>,
}

impl<'de> SeqAccess<'de> for ListAccess<'de> {
    type Error = SettingError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, SettingError> {
        match self
            .items
            .find(|(_, node)| node.value != DocumentValue::Rejected)
        {
            Some((index, node)) => seed
                .deserialize(NodeDeserializer { node })
                .map(Some)
                .map_err(|error| error.within(index)),
            None => Ok(None),
        }
    }
}

struct EntryAccess<'a> {
    entries: std::iter::Enumerate<std::slice::Iter<'a, DocumentEntry>>,
    value: Option<(usize, &'a DocumentNode)>,
}

impl<'de> MapAccess<'de> for EntryAccess<'de> {
    type Error = SettingError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, SettingError> {
        match self
            .entries
            .find(|(_, entry)| entry.node.value != DocumentValue::Rejected)
        {
            Some((index, entry)) => {
                self.value = Some((index, &entry.node));
                seed.deserialize(entry.key.as_str().into_deserializer())
                    .map(Some)
                    .map_err(|error: SettingError| error.within(index))
            }
            None => Ok(None),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, SettingError> {
        match self.value.take() {
            Some((index, node)) => seed
                .deserialize(NodeDeserializer { node })
                .map_err(|error| error.within(index)),
            None => Err(SettingError::new(
                "a value was requested before its key".to_owned(),
            )),
        }
    }
}
