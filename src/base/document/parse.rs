//! Parses text to a [`DocumentNode`] tree.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_yaml::{
    DuplicateKeyPolicy, Location, MessageFormatter as _, Options, UserMessageFormatter,
};

use super::{DocumentEntry, DocumentNode, DocumentOrigin, DocumentValue, push_key};

/// Maximum size of a document's text after expansion of aliases, in bytes.
const MAX_DECODED_TEXT: usize = 64 << 20;

/// The newtype name by which [`serde_yaml::Spanned`] requests a position. It is requested directly, because a seed
/// cannot be passed through that type.
const SPANNED: &str = "__yaml_spanned";

/// Limits of a document.
#[derive(Debug, Clone, Copy)]
pub struct DocumentLimits {
    /// What the document is, for messages: `manifest`.
    pub kind: &'static str,
    /// Maximum number of values and keys in the text.
    pub nodes: usize,
    /// Maximum depth of nested mappings and lists.
    pub depth: usize,
    /// Maximum size of the text of all values and keys, in bytes.
    pub text: usize,
    /// Maximum number of values and keys that aliases may add.
    pub replayed: usize,
}

/// Why a document cannot be decoded. Displays as `line 3, column 5: spec.hostNetwork: …`, without parts that are not
/// known, and without values, because they may be secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeError {
    /// Line, counted from 1.
    pub line: Option<u64>,
    /// Column in characters, counted from 1.
    pub column: Option<u64>,
    /// Path of the field, e.g. `spec.containers[0].env[1].value`; empty for the whole document.
    pub field: String,
    /// The message.
    pub message: String,
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

impl DecodeError {
    /// An error of a field whose position is not known.
    pub fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into(), ..Self::default() }
    }

    /// Converts the error of a part of a document, at `path`, to one of the document.
    pub fn within(mut self, path: &str) -> Self {
        if !path.is_empty() {
            let dot = if self.field.is_empty() { "" } else { "." };
            self.field = format!("{path}{dot}{}", self.field);
        }
        self
    }
}

/// A key that was given again in the same mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateKey {
    /// Path of the key.
    pub field: String,
    /// The position where it was given again.
    pub origin: DocumentOrigin,
    /// The position where it was given before.
    pub before: DocumentOrigin,
}

impl DocumentLimits {
    fn options(&self, duplicate_keys: DuplicateKeyPolicy) -> Options {
        serde_yaml::options! {
            duplicate_keys: duplicate_keys,
            budget: serde_yaml::budget! {
                max_nodes: self.nodes,
                max_events: self.nodes.saturating_mul(4),
                max_depth: self.depth,
                max_total_scalar_bytes: self.text,
                enforce_alias_anchor_ratio: false,
            },
            alias_limits: serde_yaml::alias_limits! {
                max_total_replayed_events: self.replayed,
            },
            emit_comments: false,
            legacy_octal_numbers: true,
            with_snippet: false,
        }
    }
}

/// Parses a text with one document; `file` is its name in positions. Empty documents may follow it.
///
/// # Errors
/// Invalid syntax, a duplicate key, a second document, or an exceeded limit.
pub fn parse(
    file: &Arc<str>,
    text: &str,
    limits: &DocumentLimits,
) -> Result<DocumentNode, DecodeError> {
    read(file, text, limits, None).map(|(node, _)| node)
}

/// As [`parse`], but of a key that is given more than once the last value counts, as in Go's YAML reader; these keys are
/// returned in the order of the document.
///
/// # Errors
/// Invalid syntax, a second document, or an exceeded limit.
pub fn parse_last_wins(
    file: &Arc<str>,
    text: &str,
    limits: &DocumentLimits,
) -> Result<(DocumentNode, Vec<DuplicateKey>), DecodeError> {
    read(file, text, limits, Some(Vec::new()))
}

fn read(
    file: &Arc<str>,
    text: &str,
    limits: &DocumentLimits,
    duplicates: Option<Vec<DuplicateKey>>,
) -> Result<(DocumentNode, Vec<DuplicateKey>), DecodeError> {
    let options = limits.options(match duplicates {
        Some(_) => DuplicateKeyPolicy::LastWins,
        None => DuplicateKeyPolicy::Error,
    });
    let mut reader = DocumentReader { file, path: Vec::new(), text: 0, bad_key: None, duplicates };
    let mut first = None;
    let read =
        serde_yaml::with_deserializer_from_str_with_options(text, options.clone(), |inner| {
            first = Some(NodeSeed(&mut reader).deserialize(inner)?);
            Ok(())
        });
    match (read, first) {
        (Ok(()), Some(node)) => Ok((node, reader.duplicates.unwrap_or_default())),
        (Err(error), Some(node))
            if is_second_document(&error) && !has_second_document(text, options) =>
        {
            Ok((node, reader.duplicates.unwrap_or_default()))
        }
        (Err(error), _) => Err(reader.decode_error(&error, limits)),
        (Ok(()), None) => Err(DecodeError::new("", "no document")),
    }
}

fn is_second_document(error: &serde_yaml::Error) -> bool {
    matches!(error.without_snippet(), serde_yaml::Error::MultipleDocuments { .. })
}

/// Whether the first document is followed by another one that is not empty.
fn has_second_document(text: &str, options: Options) -> bool {
    match serde_yaml::from_multiple_with_options::<IgnoredAny>(text, options) {
        Ok(documents) => documents.len() > 1,
        Err(_) => true,
    }
}

enum PathStep {
    Key(String),
    Index(usize),
}

/// The state of reading one document.
struct DocumentReader<'a> {
    file: &'a Arc<str>,
    /// The current path; after an error, the path of the error.
    path: Vec<PathStep>,
    /// Bytes of text read so far.
    text: usize,
    /// The position of a key that is not a string, if reading failed there.
    bad_key: Option<(u64, u64)>,
    /// The duplicate keys; `None` if the parser refuses them.
    duplicates: Option<Vec<DuplicateKey>>,
}

impl DocumentReader<'_> {
    fn origin(&self, location: &Location) -> DocumentOrigin {
        DocumentOrigin::File {
            path: Arc::clone(self.file),
            line: location.line(),
            column: location.column(),
        }
    }

    /// Limits the text that the aliases of a small document can expand to.
    fn string<E: Error>(&mut self, text: String) -> Result<DocumentValue, E> {
        self.text = self.text.saturating_add(text.len());
        if self.text > MAX_DECODED_TEXT {
            Err(E::custom("aliases expand to too much text"))
        } else {
            Ok(DocumentValue::String(text))
        }
    }

    /// Numbers and booleans as keys are converted to strings, as in JSON.
    fn text_of_key<E: Error>(&mut self, key: &DocumentNode) -> Result<String, E> {
        match &key.value {
            DocumentValue::String(text) => Ok(text.clone()),
            DocumentValue::Bool(value) => Ok(value.to_string()),
            DocumentValue::Int(value) => Ok(value.to_string()),
            DocumentValue::Float(value) => Ok(value.to_string()),
            _ => {
                if let DocumentOrigin::File { line, column, .. } = key.origin {
                    self.bad_key = Some((line, column));
                }
                Err(E::custom("a key that is not a string"))
            }
        }
    }

    fn field(&self) -> String {
        let mut field = String::new();
        for step in &self.path {
            match step {
                PathStep::Key(key) => push_key(&mut field, key),
                PathStep::Index(index) => field.push_str(&format!("[{index}]")),
            }
        }
        field
    }

    /// Adds an entry to a mapping. Where duplicate keys are accepted, it replaces the previous entry of its key.
    fn put(&mut self, entries: &mut Vec<DocumentEntry>, entry: DocumentEntry) {
        let find = || entries.iter().position(|other| other.key == entry.key);
        let index = self.duplicates.as_ref().and_then(|_| find());
        let Some(before) = index.and_then(|index| entries.get_mut(index)) else {
            entries.push(entry);
            return;
        };
        let mut field = self.field();
        push_key(&mut field, &entry.key);
        let duplicate =
            DuplicateKey { field, origin: entry.origin.clone(), before: before.origin.clone() };
        self.duplicates.get_or_insert_default().push(duplicate);
        *before = entry;
    }

    fn decode_error(&self, error: &serde_yaml::Error, limits: &DocumentLimits) -> DecodeError {
        let location = error.location().filter(|location| location.line() > 0);
        let location = location.map(|location| (location.line(), location.column()));
        let location = self.bad_key.or(location);
        let message = if self.text > MAX_DECODED_TEXT {
            "aliases expand to too much text".into()
        } else {
            message(error, limits)
        };
        DecodeError {
            line: location.map(|(line, _)| line),
            column: location.map(|(_, column)| column),
            field: self.field(),
            message,
        }
    }
}

/// The message of an error, without the parser's hints for programmers and without values.
fn message(error: &serde_yaml::Error, limits: &DocumentLimits) -> String {
    use serde_yaml::Error as E;
    match error.without_snippet() {
        E::AliasError { error, .. } => message(error, limits),
        E::MultipleDocuments { .. } => {
            format!("more than one document: a {} must have exactly one", limits.kind)
        }
        E::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key {:?}", key.chars().take(100).collect::<String>())
        }
        E::DuplicateMappingKey { key: None, .. } => "duplicate key".into(),
        E::Budget { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => {
            "too many nodes, too deep, or aliases that expand to too much".into()
        }
        E::NonFiniteFloat { .. } => "not a finite number".into(),
        E::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias refers to a node that contains it".into()
        }
        E::InvalidScalar { .. }
        | E::InvalidBinaryBase64 { .. }
        | E::BinaryNotUtf8 { .. }
        | E::TaggedScalarCannotDeserializeIntoString { .. } => {
            "a value that does not fit its tag".into()
        }
        E::SerdeInvalidType { .. } => "a key that is not a string".into(),
        // These errors are known to repeat at most one character of the document.
        other @ (E::Message { .. }
        | E::ExternalMessage { .. }
        | E::Eof { .. }
        | E::Unexpected { .. }
        | E::UnknownAnchor { .. }
        | E::MergeValueNotMapOrSeqOfMaps { .. }) => {
            let text = UserMessageFormatter.format_message(other);
            let shown = text.chars().filter(|c| !c.is_control());
            shown.take(300).collect()
        }
        _ => "invalid value or syntax".into(),
    }
}

/// The parts of a value with its position.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum SpannedPart {
    Value,
    Referenced,
    Defined,
    #[serde(other)]
    Other,
}

/// Deserializes a value with its position.
struct NodeSeed<'r, 'a>(&'r mut DocumentReader<'a>);

impl<'de> DeserializeSeed<'de> for NodeSeed<'_, '_> {
    type Value = DocumentNode;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<DocumentNode, D::Error> {
        inner.deserialize_newtype_struct(SPANNED, self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_, '_> {
    type Value = DocumentNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with its position")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        inner: D,
    ) -> Result<DocumentNode, D::Error> {
        inner.deserialize_any(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DocumentNode, A::Error> {
        let (mut value, mut position) = (None, None);
        while let Some(part) = map.next_key()? {
            match part {
                SpannedPart::Value => value = Some(map.next_value_seed(ValueSeed(self.0))?),
                SpannedPart::Referenced => position = Some(map.next_value::<Location>()?),
                SpannedPart::Defined => drop(map.next_value::<Location>()?),
                SpannedPart::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (value, position) {
            (Some(value), Some(position)) => {
                Ok(DocumentNode { value, origin: self.0.origin(&position) })
            }
            _ => Err(A::Error::custom("a value without its position")),
        }
    }
}

/// Deserializes a value.
struct ValueSeed<'r, 'a>(&'r mut DocumentReader<'a>);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_> {
    type Value = DocumentValue;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<DocumentValue, D::Error> {
        inner.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_, '_> {
    type Value = DocumentValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<DocumentValue, E> {
        self.0.string(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<DocumentValue, E> {
        self.0.string(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<DocumentValue, A::Error> {
        let mut items = Vec::new();
        loop {
            // After an error the path is kept for the message.
            self.0.path.push(PathStep::Index(items.len()));
            let item = seq.next_element_seed(NodeSeed(self.0))?;
            self.0.path.pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(DocumentValue::List(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DocumentValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key_seed(NodeSeed(self.0))? {
            let text = self.0.text_of_key(&key)?;
            self.0.path.push(PathStep::Key(text));
            let node = map.next_value_seed(NodeSeed(self.0))?;
            if let Some(PathStep::Key(text)) = self.0.path.pop() {
                let entry = DocumentEntry { key: text, origin: key.origin, node };
                self.0.put(&mut entries, entry);
            }
        }
        Ok(DocumentValue::Map(entries))
    }
}
