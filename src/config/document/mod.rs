//! A configuration document as a tree that remembers where each value was written.
//!
//! - **Owns**: the YAML/JSON text-to-tree step, merging of layers (file, drop-ins, flags), and the
//!   lookup of a value's origin for error messages.
//! - **Woken by**: nothing; pure functions called once at start.
//! - **Publishes**: [`Node`] trees; [`decode()`] turns one into the typed configuration.
//! - **Must never**: read a file, guess a value, or drop a problem silently.
//! - **Upstream**: `pkg/kubelet/kubeletconfig/util/codec` and the JSON merge of
//!   `mergeKubeletConfigurations` in `cmd/kubelet/app/server.go`.

mod decode;
mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use decode::{closest, decode};
pub use parse::parse;

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A place in a file; line and column count from 1.
    File {
        /// The file as the user named it.
        path: Arc<str>,
        /// Line, from 1.
        line: u64,
        /// Column in characters, from 1.
        column: u64,
    },
    /// A command-line flag, by its name without dashes.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One value with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it was written.
    pub origin: Origin,
}

/// What a document can say.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// A boolean, YAML 1.1 spellings included.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A number with a fraction or exponent.
    Float(f64),
    /// Text.
    String(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping in the order written.
    Map(Vec<Entry>),
    /// A value already reported as wrong; decoding passes over it.
    Rejected,
}

/// One key of a mapping and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key was written.
    pub origin: Origin,
    /// The value.
    pub node: Node,
}

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field, dotted from the top: `crashLoopBackOff.maxContainerRestartPeriod`; empty when the
    /// document as a whole is meant.
    pub field: String,
    /// Where it was given, if it was.
    pub origin: Option<Origin>,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything wrong with a configuration, one problem a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

impl Node {
    /// An empty mapping, the base that layers are merged over.
    pub fn empty(origin: Origin) -> Self {
        Self {
            value: Value::Map(Vec::new()),
            origin,
        }
    }

    /// The value of `key`, when this is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.node),
            _ => None,
        }
    }

    /// The value at a dotted path of mapping keys.
    pub fn lookup(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// The origin of the value at `path` (`a.b[2].c` or `a.b[key]`; keys may have dots in them), or of
    /// the nearest parent that was given.
    pub fn origin_of(&self, path: &str) -> Option<Origin> {
        let (mut node, mut rest, mut found) = (self, path, None);
        while let Some((child, tail)) = node.step(rest) {
            (node, rest, found) = (child, tail, Some(child.origin.clone()));
        }
        found
    }

    /// The child that `path` starts with, and the rest of the path.
    fn step<'a, 'p>(&'a self, path: &'p str) -> Option<(&'a Node, &'p str)> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .filter_map(|entry| Some((entry, after_key(path, &entry.key)?)))
                .filter(|(_, rest)| rest.is_empty() || rest.starts_with(['.', '[']))
                .max_by_key(|(entry, _)| entry.key.len())
                .map(|(entry, rest)| (&entry.node, rest.strip_prefix('.').unwrap_or(rest))),
            Value::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let item = items.get(index.parse::<usize>().ok()?)?;
                Some((item, rest.strip_prefix('.').unwrap_or(rest)))
            }
            _ => None,
        }
    }

    /// Lays `over` upon this tree as a JSON merge patch does: mappings merge key by key, `null`
    /// removes a key, and everything else (lists too) is replaced.
    pub fn merge(&mut self, over: Node) {
        match (&mut self.value, over) {
            (
                Value::Map(entries),
                Node {
                    value: Value::Map(additions),
                    ..
                },
            ) => {
                for addition in additions {
                    merge_entry(entries, addition);
                }
            }
            (_, over) => *self = over,
        }
    }

    /// Sets the value at a dotted path, replacing what is there and making parents as needed.
    pub fn set(&mut self, path: &str, node: Node) {
        let (key, rest) = path
            .split_once('.')
            .map_or((path, None), |(k, r)| (k, Some(r)));
        if !matches!(self.value, Value::Map(_)) {
            self.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        let index = entries
            .iter()
            .position(|e| e.key == key)
            .unwrap_or_else(|| {
                let origin = node.origin.clone();
                let value = Node::empty(origin.clone());
                entries.push(Entry {
                    key: key.to_owned(),
                    origin,
                    node: value,
                });
                entries.len() - 1
            });
        if let Some(entry) = entries.get_mut(index) {
            match rest {
                Some(rest) => entry.node.set(rest, node),
                None => entry.node = node,
            }
        }
    }

    /// Removes the value at a dotted path.
    pub fn remove(&mut self, path: &str) {
        let (key, rest) = path
            .split_once('.')
            .map_or((path, None), |(k, r)| (k, Some(r)));
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        match rest {
            Some(rest) => {
                if let Some(entry) = entries.iter_mut().find(|e| e.key == key) {
                    entry.node.remove(rest);
                }
            }
            None => entries.retain(|e| e.key != key),
        }
    }
}

/// What follows a key, or a key in brackets, at the beginning of a path.
fn after_key<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let bracketed = path
        .strip_prefix('[')
        .and_then(|path| path.strip_prefix(key)?.strip_prefix(']'));
    bracketed.or_else(|| path.strip_prefix(key))
}

fn merge_entry(entries: &mut Vec<Entry>, addition: Entry) {
    if addition.node.value == Value::Null {
        entries.retain(|e| e.key != addition.key);
        return;
    }
    match entries.iter_mut().find(|e| e.key == addition.key) {
        Some(entry) => entry.node.merge(addition.node),
        None => entries.push(addition),
    }
}

impl fmt::Display for Value {
    /// Describes the value for a message: `the string "x"`, `the number 5`, `a list`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "the number {value}"),
            Value::Float(value) => write!(f, "the number {value}"),
            Value::String(text) => {
                let short: String = text.chars().take(80).collect();
                let dots = if short.len() < text.len() { "..." } else { "" };
                write!(f, "the string {short:?}{dots}")
            }
            Value::List(_) => f.write_str("a list"),
            Value::Map(_) => f.write_str("a mapping"),
            Value::Rejected => f.write_str("a rejected value"),
        }
    }
}
