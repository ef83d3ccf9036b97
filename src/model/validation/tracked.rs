//! A deserializer around another one that knows where it is and reads scalars as Kubernetes does.
//!
//! It remembers the field path of the first error, lists fields that no type knows, bounds how much
//! text the aliases of a small file may expand to, and settles the differences between a serde
//! reader and upstream's YAML-to-JSON-to-Go way: a null where a string belongs is "", a whole
//! number may be written as a float, a quoted number is not a number, a map key may be like a
//! number.

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use std::fmt::{self, Write as _};

/// Most unknown fields that are listed.
const MAX_UNKNOWN: usize = 20;

/// The longest text that a manifest may expand to once aliases are followed, in bytes.
const MAX_DECODED_TEXT: usize = 64 << 20;

/// Largest integer that a float can stand for exactly.
const MAX_WHOLE_FLOAT: f64 = 9_007_199_254_740_992.0;

enum PathStep {
    Key(String),
    Index(usize),
}

/// What the walk over one document has seen.
#[derive(Default)]
pub(super) struct Track {
    path: Vec<PathStep>,
    unknown: Vec<String>,
    failed: Option<String>,
    text: usize,
}

impl Track {
    /// Path of the innermost field that could not be read; empty for the document as a whole.
    pub(super) fn failed_path(&self) -> &str {
        self.failed.as_deref().unwrap_or_default()
    }

    /// Paths of fields that no type knows, the first [`MAX_UNKNOWN`].
    pub(super) fn into_unknown(self) -> Vec<String> {
        self.unknown
    }

    fn here(&self) -> String {
        let mut text = String::new();
        for step in &self.path {
            let _ = match step {
                PathStep::Key(key) if text.is_empty() => write!(text, "{}", shown(key)),
                PathStep::Key(key) => write!(text, ".{}", shown(key)),
                PathStep::Index(index) => write!(text, "[{index}]"),
            };
        }
        text
    }

    fn fail(&mut self) {
        if self.failed.is_none() {
            self.failed = Some(self.here());
        }
    }

    fn ignore(&mut self) {
        if self.unknown.len() < MAX_UNKNOWN {
            let here = self.here();
            self.unknown.push(here);
        }
    }

    fn count<E: Error>(&mut self, text: &str) -> Result<(), E> {
        self.text = self.text.saturating_add(text.len());
        if self.text > MAX_DECODED_TEXT {
            Err(E::custom("aliases expand to too much text"))
        } else {
            Ok(())
        }
    }
}

/// A key as a path shows it: short, one line.
fn shown(key: &str) -> String {
    key.chars().take(100).filter(|c| !c.is_control()).collect()
}

/// How a scalar is to be read.
#[derive(Clone, Copy, PartialEq)]
enum ScalarMode {
    /// As the inner deserializer has it.
    AsIs,
    /// An integer; a whole float will do.
    Integer,
    /// A map key: numbers and booleans become text.
    Key,
}

/// Deserializer, visitor, seed and access in one: each wraps its inner counterpart.
pub(super) struct Tracked<'t, T> {
    inner: T,
    track: &'t mut Track,
    mode: ScalarMode,
}

impl<'t, T> Tracked<'t, T> {
    /// Wraps a deserializer.
    pub(super) fn new(inner: T, track: &'t mut Track) -> Self {
        let mode = ScalarMode::AsIs;
        Self { inner, track, mode }
    }

    fn visitor<V>(self, visitor: V, mode: ScalarMode) -> (T, Tracked<'t, V>) {
        let track = self.track;
        let wrapped = Tracked {
            inner: visitor,
            track,
            mode,
        };
        (self.inner, wrapped)
    }
}

macro_rules! scalars {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let (inner, visitor) = self.visitor(visitor, ScalarMode::Integer);
            inner.deserialize_any(visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tracked<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.deserialize_any(visitor)
    }

    scalars! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_option(NullIsEmpty(visitor))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_option(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let (inner, visitor) = self.visitor(visitor, ScalarMode::AsIs);
        inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.track.ignore();
        self.inner.deserialize_ignored_any(visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum
    }
}

/// Visits null as "" and everything else as a string.
struct NullIsEmpty<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for NullIsEmpty<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_str("")
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_str("")
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        inner.deserialize_string(self.0)
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Tracked<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        match self.mode {
            ScalarMode::Key => self.inner.visit_str(if value { "true" } else { "false" }),
            _ => self.inner.visit_bool(value),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        match self.mode {
            ScalarMode::Key => self.inner.visit_string(value.to_string()),
            _ => self.inner.visit_i64(value),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        match self.mode {
            ScalarMode::Key => self.inner.visit_string(value.to_string()),
            _ => self.inner.visit_u64(value),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        match self.mode {
            ScalarMode::Key => self.inner.visit_string(value.to_string()),
            #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
            ScalarMode::Integer if value.fract() == 0.0 && value.abs() <= MAX_WHOLE_FLOAT => {
                self.inner.visit_i64(value as i64)
            }
            _ => self.inner.visit_f64(value),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        self.track.count(value)?;
        self.inner.visit_str(value)
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.track.count(value)?;
        self.inner.visit_borrowed_str(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<V::Value, E> {
        self.track.count(&value)?;
        self.inner.visit_string(value)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Tracked::new(inner, self.track))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner
            .visit_newtype_struct(Tracked::new(inner, self.track))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Items {
            inner,
            track: self.track,
            next: 0,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Tracked::new(inner, self.track))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(inner)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Tracked<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Tracked::new(inner, self.track))
    }
}

struct Items<'t, A> {
    inner: A,
    track: &'t mut Track,
    next: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.track.path.push(PathStep::Index(self.next));
        self.next = self.next.saturating_add(1);
        let result = self.inner.next_element_seed(Tracked::new(seed, self.track));
        if result.is_err() {
            self.track.fail();
        }
        self.track.path.pop();
        result
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Tracked<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let mut name = String::new();
        let seed = Key {
            inner: seed,
            name: &mut name,
            track: self.track,
        };
        let result = self.inner.next_key_seed(seed);
        match &result {
            Ok(Some(_)) => self.track.path.push(PathStep::Key(name)),
            Ok(None) => {}
            Err(_) => self.track.fail(),
        }
        result
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let result = self.inner.next_value_seed(Tracked::new(seed, self.track));
        if result.is_err() {
            self.track.fail();
        }
        self.track.path.pop();
        result
    }
}

/// Seed, deserializer and visitor of a map key: notes its text.
struct Key<'t, T> {
    inner: T,
    name: &'t mut String,
    track: &'t mut Track,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Key {
            inner,
            name: self.name,
            track: self.track,
        })
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Key<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let noting = Key {
            inner: visitor,
            name: self.name,
            track: &mut Track::default(),
        };
        self.inner.deserialize_any(Tracked {
            inner: noting,
            track: self.track,
            mode: ScalarMode::Key,
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Key<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        value.clone_into(self.name);
        self.inner.visit_str(value)
    }
}
