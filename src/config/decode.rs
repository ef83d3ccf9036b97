//! Decodes [`DocumentNode`] trees to typed values, and reports all problems, not only the first.
//!
//! Serde stops at the first error. Therefore the offending value is marked as rejected after each error and decoding
//! is repeated, until there is no error. All fields of the configuration are optional, so each round gets further.
//! Unknown fields are skipped and returned beside the result: whether they are errors is for the caller to decide.

use std::cell::RefCell;
use std::fmt;

use serde::de::{
    self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};

use super::document::{ConfigProblem, sort_by_place};
use crate::base::document::{DocumentEntry, DocumentNode, DocumentOrigin, DocumentValue};

/// Maximum number of reported problems.
const MAX_PROBLEMS: usize = 50;

/// A field that the format does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnknownField {
    /// Its path.
    pub(super) field: String,
    /// The position of its key.
    pub(super) origin: DocumentOrigin,
    /// The known field of the most similar name.
    pub(super) near: Option<&'static str>,
}

/// Decodes a tree into `T`, and returns the unknown fields that were skipped, in the order of the document.
///
/// # Errors
/// All values of the wrong type or form, each with its field and origin, in the order of the document.
pub(super) fn decode<T: de::DeserializeOwned>(
    node: &DocumentNode,
) -> (Result<T, Vec<ConfigProblem>>, Vec<UnknownField>) {
    let mut tree = node.clone();
    let mut problems = Vec::new();
    loop {
        let decoding = Decoding::default();
        let decoded = T::deserialize(NodeDeserializer { node: &tree, decoding: &decoding });
        let (steps, skipped) = (decoding.path.into_inner(), decoding.skipped.into_inner());
        let done = match decoded {
            Ok(value) => Some(value),
            Err(error) => {
                problems.push(error.into_problem(&tree, &steps));
                let wrong = tree.at_mut(&steps).filter(|_| !steps.is_empty());
                match wrong {
                    Some(wrong) if problems.len() < MAX_PROBLEMS => {
                        wrong.value = DocumentValue::Rejected;
                        continue;
                    }
                    _ => None,
                }
            }
        };
        let unknown = skipped
            .into_iter()
            .filter_map(|(steps, known)| unknown_field(&tree, &steps, known))
            .collect();
        sort_by_place(&mut problems, &[]);
        return match done {
            Some(value) if problems.is_empty() => (Ok(value), unknown),
            _ => (Err(problems), unknown),
        };
    }
}

fn unknown_field(
    tree: &DocumentNode,
    steps: &[usize],
    known: &'static [&'static str],
) -> Option<UnknownField> {
    let (_, entry, field) = tree.at(steps)?;
    let entry = entry?;
    Some(UnknownField { field, origin: entry.origin.clone(), near: closest(&entry.key, known) })
}

/// The state of one round. Errors end a round, so the path of an error is the path at its end.
#[derive(Default)]
struct Decoding {
    /// The child indices of the value being decoded.
    path: RefCell<Vec<usize>>,
    /// The unknown fields, each with the names that are known there.
    skipped: RefCell<Vec<(Vec<usize>, &'static [&'static str])>>,
}

impl Decoding {
    /// Decodes the child `index`.
    fn child<'a, S: DeserializeSeed<'a>>(
        &'a self,
        index: usize,
        node: &'a DocumentNode,
        seed: S,
    ) -> Result<S::Value, SettingError> {
        self.path.borrow_mut().push(index);
        let value = seed.deserialize(NodeDeserializer { node, decoding: self })?;
        self.path.borrow_mut().pop();
        Ok(value)
    }

    fn skip(&self, index: usize, known: &'static [&'static str]) {
        let mut steps = self.path.borrow().clone();
        steps.push(index);
        self.skipped.borrow_mut().push((steps, known));
    }
}

/// A decoding error.
#[derive(Debug)]
struct SettingError(String);

impl SettingError {
    fn into_problem(self, root: &DocumentNode, steps: &[usize]) -> ConfigProblem {
        let (field, origin) = match root.at(steps) {
            Some((node, _, field)) => (field, &node.origin),
            None => (String::new(), &root.origin),
        };
        ConfigProblem { field, origin: Some(origin.clone()), message: self.0 }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingError {}

impl de::Error for SettingError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let got = match unexpected {
            Unexpected::Bool(value) => DocumentValue::Bool(value),
            Unexpected::Unsigned(number) => DocumentValue::Int(number.into()),
            Unexpected::Signed(number) => DocumentValue::Int(number.into()),
            Unexpected::Float(number) => DocumentValue::Float(number),
            Unexpected::Str(text) => DocumentValue::String(text.to_owned()),
            Unexpected::Seq => DocumentValue::List(Vec::new()),
            Unexpected::Map => DocumentValue::Map(Vec::new()),
            Unexpected::Unit | Unexpected::Option => DocumentValue::Null,
            other => return Self(format!("expected {expected}, got {other}")),
        };
        Self(format!("expected {expected}, got {got}"))
    }
}

/// The candidate most similar to `name`, if it is similar enough to be what was meant.
pub fn closest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let limit = (wanted.len() / 4).clamp(1, 4);
    candidates
        .iter()
        .map(|candidate| (edit_distance(&wanted, &candidate.to_lowercase()), *candidate))
        .filter(|(distance, _)| *distance <= limit && *distance < wanted.len())
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

#[derive(Clone, Copy)]
struct NodeDeserializer<'a> {
    node: &'a DocumentNode,
    decoding: &'a Decoding,
}

impl<'a> NodeDeserializer<'a> {
    /// The entries of a mapping. With the fields of a section, keys that are none of them are skipped.
    fn entries<V: Visitor<'a>>(
        self,
        fields: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        match &self.node.value {
            DocumentValue::Map(entries) => visitor.visit_map(EntryAccess {
                entries: entries.iter().enumerate(),
                value: None,
                fields,
                decoding: self.decoding,
            }),
            _ => Err(self.not_a("a mapping")),
        }
    }

    fn mismatch(&self, expected: &str) -> SettingError {
        SettingError(format!("expected {expected}, got {}", self.node.value))
    }

    /// Like `mismatch`, for text that may be a misplaced secret (a header): it is not repeated.
    fn not_a(&self, expected: &str) -> SettingError {
        match self.node.value {
            DocumentValue::String(_) => SettingError(format!("expected {expected}, got a string")),
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
                    Err(_) => Err(SettingError(format!(
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
            DocumentValue::List(items) => visitor
                .visit_seq(ListAccess { items: items.iter().enumerate(), decoding: self.decoding }),
            _ => Err(self.not_a("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        self.entries(None, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        self.entries(Some(fields), visitor)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

struct ListAccess<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, DocumentNode>>,
    decoding: &'a Decoding,
}

impl<'de> SeqAccess<'de> for ListAccess<'de> {
    type Error = SettingError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, SettingError> {
        let accepted = |(_, node): &(usize, &DocumentNode)| node.value != DocumentValue::Rejected;
        match self.items.find(accepted) {
            Some((index, node)) => self.decoding.child(index, node, seed).map(Some),
            None => Ok(None),
        }
    }
}

struct EntryAccess<'a> {
    entries: std::iter::Enumerate<std::slice::Iter<'a, DocumentEntry>>,
    value: Option<(usize, &'a DocumentNode)>,
    /// The keys of a section; `None` for a mapping with any keys.
    fields: Option<&'static [&'static str]>,
    decoding: &'a Decoding,
}

impl<'de> MapAccess<'de> for EntryAccess<'de> {
    type Error = SettingError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, SettingError> {
        for (index, entry) in self.entries.by_ref() {
            if entry.node.value == DocumentValue::Rejected {
                continue;
            }
            let unknown = |fields: &&[&str]| !fields.contains(&entry.key.as_str());
            if let Some(fields) = self.fields.filter(unknown) {
                self.decoding.skip(index, fields);
                continue;
            }
            self.value = Some((index, &entry.node));
            let key = entry.key.as_str().into_deserializer();
            return seed.deserialize(key).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, SettingError> {
        match self.value.take() {
            Some((index, node)) => self.decoding.child(index, node, seed),
            None => Err(SettingError("a value was requested before its key".to_owned())),
        }
    }
}
