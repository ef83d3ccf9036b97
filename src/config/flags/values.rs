//! Parses flag values by Go's rules (`pflag`, `strconv`, and the map flags of `component-base/cli/flag`).

use serde_json::Value;

use crate::base::GoDuration;
use crate::base::document::{DocumentEntry, DocumentNode, DocumentOrigin, DocumentValue};
use crate::config::fields::FlagKind;

/// Parses the values given for one flag, in order. For scalars the last one counts; lists and maps are joined.
///
/// # Errors
/// Why a value is invalid, without the flag's name.
pub(super) fn convert(
    kind: FlagKind,
    flag: &'static str,
    texts: &[String],
) -> Result<DocumentValue, String> {
    let last = texts.last().map(String::as_str).unwrap_or_default();
    let make = Maker { flag };
    match kind {
        FlagKind::Text | FlagKind::Path => Ok(DocumentValue::String(last.to_owned())),
        FlagKind::Bool => parse_bool(last).map(DocumentValue::Bool),
        FlagKind::Int32 => {
            parse_int(last, i32::MIN.into(), i32::MAX.into()).map(DocumentValue::Int)
        }
        FlagKind::Int64 => {
            parse_int(last, i64::MIN.into(), i64::MAX.into()).map(DocumentValue::Int)
        }
        FlagKind::Duration => match last.parse::<GoDuration>() {
            Ok(duration) => Ok(DocumentValue::String(duration.to_string())),
            Err(error) => Err(format!("{last:?} {error}")),
        },
        FlagKind::List => {
            let items = texts.iter().flat_map(|text| pieces(text, ','));
            Ok(DocumentValue::List(items.map(|item| make.text(item)).collect()))
        }
        FlagKind::Map => make.map(texts, '=', |text| Ok(make.text(text))),
        FlagKind::Thresholds => make.map(texts, '<', |text| Ok(make.text(text))),
        FlagKind::BoolMap => make.map(texts, '=', |text| {
            parse_bool(text).map(|value| make.node(DocumentValue::Bool(value)))
        }),
        FlagKind::Headers => make.headers(texts),
        FlagKind::Taints => make.list(texts, ',', |text| make.taint(text)),
        FlagKind::ReservedMemory => make.list(texts, ';', |text| make.reserved_memory(text)),
        FlagKind::VModule => make.list(texts, ',', |text| {
            let (pattern, level) = split(text, '=', "pattern=N")?;
            let level = parse_int(level, 0, i32::MAX.into())?;
            Ok(make.record([
                ("filePattern", make.text(pattern)),
                ("verbosity", make.node(DocumentValue::Int(level))),
            ]))
        }),
    }
}

/// The values that `strconv.ParseBool` accepts.
fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// An integer in base 10, or with a base prefix (`0x`, `0o`, `0b`, or `0` for octal).
fn parse_int(text: &str, low: i128, high: i128) -> Result<i128, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, lower.get(2..)),
        Some("0o") => (8, lower.get(2..)),
        Some("0b") => (2, lower.get(2..)),
        Some(_) if lower.starts_with('0') => (8, lower.get(1..)),
        _ => (10, Some(lower.as_str())),
    };
    let plain = digits.filter(|digits| !digits.starts_with(['-', '+']));
    let value = plain
        .and_then(|digits| i128::from_str_radix(digits, radix).ok())
        .map(|value| if negative { -value } else { value })
        .ok_or_else(|| format!("{text:?} is not an integer"))?;
    if value < low || value > high {
        return Err(format!("{text} is out of range: must be between {low} and {high}"));
    }
    Ok(value)
}

/// The parts of a separated list, trimmed and without empty ones.
fn pieces(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).map(str::trim).filter(|piece| !piece.is_empty())
}

fn split<'a>(text: &'a str, at: char, form: &str) -> Result<(&'a str, &'a str), String> {
    match text.split_once(at) {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim(), value.trim())),
        _ => Err(format!("{text:?} is not of the form {form}")),
    }
}

/// Builds nodes whose origin is one flag.
#[derive(Clone, Copy)]
struct Maker {
    flag: &'static str,
}

impl Maker {
    fn node(self, value: DocumentValue) -> DocumentNode {
        DocumentNode { value, origin: DocumentOrigin::Flag(self.flag) }
    }

    fn text(self, text: &str) -> DocumentNode {
        self.node(DocumentValue::String(text.to_owned()))
    }

    fn record<const N: usize>(self, fields: [(&str, DocumentNode); N]) -> DocumentNode {
        let entry = |(key, node): (&str, DocumentNode)| DocumentEntry {
            key: key.to_owned(),
            origin: DocumentOrigin::Flag(self.flag),
            node,
        };
        self.node(DocumentValue::Map(fields.into_iter().map(entry).collect()))
    }

    fn list(
        self,
        texts: &[String],
        separator: char,
        convert: impl Fn(&str) -> Result<DocumentNode, String>,
    ) -> Result<DocumentValue, String> {
        let items = texts.iter().flat_map(|text| pieces(text, separator));
        items.map(convert).collect::<Result<_, _>>().map(DocumentValue::List)
    }

    /// `key<separator>value` pairs; for a repeated key the last one counts.
    fn map(
        self,
        texts: &[String],
        separator: char,
        convert: impl Fn(&str) -> Result<DocumentNode, String>,
    ) -> Result<DocumentValue, String> {
        let form = format!("key{separator}value");
        let mut map = self.record([]);
        for pair in texts.iter().flat_map(|text| pieces(text, ',')) {
            let (key, value) = split(pair, separator, &form)?;
            self.put(&mut map, key, convert(value)?);
        }
        Ok(map.value)
    }

    /// Sets one key; keys may contain dots, so this is not `DocumentNode::set`.
    fn put(self, map: &mut DocumentNode, key: &str, node: DocumentNode) {
        if let DocumentValue::Map(entries) = &mut map.value {
            entries.retain(|entry| entry.key != key);
            entries.push(DocumentEntry {
                key: key.to_owned(),
                origin: DocumentOrigin::Flag(self.flag),
                node,
            });
        }
    }

    /// `name:value` pairs; a repeated name has several values. Values may be secret, so errors do not repeat them.
    fn headers(self, texts: &[String]) -> Result<DocumentValue, String> {
        let mut map = self.record([]);
        for pair in texts.iter().flat_map(|text| pieces(text, ',')) {
            let (name, value) = pair
                .split_once(':')
                .map(|(name, value)| (name.trim(), value.trim()))
                .filter(|(name, _)| !name.is_empty())
                .ok_or("a header is not of the form name:value")?;
            let mut values = match map.get(name) {
                Some(DocumentNode { value: DocumentValue::List(values), .. }) => values.clone(),
                _ => Vec::new(),
            };
            values.push(self.text(value));
            self.put(&mut map, name, self.node(DocumentValue::List(values)));
        }
        Ok(map.value)
    }

    fn taint(self, text: &str) -> Result<DocumentNode, String> {
        let (key, effect) = split(text, ':', "key=value:effect")?;
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        let (key, value) = (self.text(key), self.text(value));
        Ok(self.record([("key", key), ("value", value), ("effect", self.text(effect))]))
    }

    fn reserved_memory(self, text: &str) -> Result<DocumentNode, String> {
        let (numa_node, limits) = split(text, ':', "node:resource=quantity,...")?;
        let numa_node = parse_int(numa_node, 0, i32::MAX.into())?;
        let limits = self.map(&[limits.to_owned()], '=', |text| Ok(self.text(text)))?;
        Ok(self.record([
            ("numaNode", self.node(DocumentValue::Int(numa_node))),
            ("limits", self.node(limits)),
        ]))
    }
}

/// The value of the field at a dotted path, in the syntax of flags; empty if there is none.
pub(in crate::config) fn value_of_field(configuration: &Value, path: &str) -> String {
    let value = configuration.pointer(&format!("/{}", path.replace('.', "/")));
    value.map(flag_text).unwrap_or_default()
}

/// A value in the syntax of flags, as far as possible; `null` is empty.
pub(in crate::config) fn flag_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(flag_text).collect::<Vec<_>>().join(","),
        Value::Object(entries) => {
            let pairs = entries.iter().map(|(key, value)| format!("{key}={}", flag_text(value)));
            pairs.collect::<Vec<_>>().join(",")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
