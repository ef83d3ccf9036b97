//! A YAML or JSON document as a tree that records where each value was written.
//!
//! - **Owns**: parsing of text to trees, with limits; merging of trees; lookup of a value's position; conversion to
//!   JSON.
//! - **Woken by**: nothing. Pure.
//! - **Publishes**: [`DocumentNode`] trees.
//! - **Must never**: read a file, guess a value, ignore a problem, or repeat a value in a [`DecodeError`].
//! - **Upstream**: `sigs.k8s.io/yaml`, and the JSON merge of `mergeKubeletConfigurations` in
//!   `cmd/kubelet/app/server.go`.

mod json;
mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use parse::{DecodeError, DocumentLimits, DuplicateKey, parse, parse_last_wins};

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentOrigin {
    /// A position in a file; line and column count from 1.
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

impl fmt::Display for DocumentOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DocumentOrigin::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            DocumentOrigin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One value with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentNode {
    /// The value.
    pub value: DocumentValue,
    /// Where it was written.
    pub origin: DocumentOrigin,
}

/// The types of values.
#[derive(Debug, Clone, PartialEq)]
pub enum DocumentValue {
    /// `null`, `~` or an empty value.
    Null,
    /// A boolean, including YAML 1.1 spellings.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A number with a fraction or exponent.
    Float(f64),
    /// Text.
    String(String),
    /// A sequence.
    List(Vec<DocumentNode>),
    /// A mapping, in the order of the document.
    Map(Vec<DocumentEntry>),
    /// A value for which an error was already reported; decoding skips it.
    Rejected,
}

/// One key of a mapping and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentEntry {
    /// The key.
    pub key: String,
    /// Where the key was written.
    pub origin: DocumentOrigin,
    /// The value.
    pub node: DocumentNode,
}

impl DocumentNode {
    /// An empty mapping, over which layers are merged.
    pub fn empty(origin: DocumentOrigin) -> Self {
        Self { value: DocumentValue::Map(Vec::new()), origin }
    }

    /// The value of `key`, if this is a mapping with that key.
    pub fn get(&self, key: &str) -> Option<&DocumentNode> {
        match &self.value {
            DocumentValue::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.node),
            _ => None,
        }
    }

    /// The value at these child indices.
    pub fn at_mut(&mut self, steps: &[usize]) -> Option<&mut DocumentNode> {
        steps.iter().try_fold(self, |node, step| match &mut node.value {
            DocumentValue::Map(entries) => entries.get_mut(*step).map(|entry| &mut entry.node),
            DocumentValue::List(items) => items.get_mut(*step),
            _ => None,
        })
    }

    /// The value at these child indices, its entry if it is in a mapping, and its path: `a.b[2].c`.
    pub fn at(&self, steps: &[usize]) -> Option<(&DocumentNode, Option<&DocumentEntry>, String)> {
        let (mut node, mut entry, mut path) = (self, None, String::new());
        for step in steps {
            (node, entry) = match &node.value {
                DocumentValue::Map(entries) => {
                    let entry = entries.get(*step)?;
                    push_key(&mut path, &entry.key);
                    (&entry.node, Some(entry))
                }
                DocumentValue::List(items) => {
                    path.push_str(&format!("[{step}]"));
                    (items.get(*step)?, None)
                }
                _ => return None,
            };
        }
        Some((node, entry, path))
    }

    /// The value at a dotted path of mapping keys.
    pub fn lookup(&self, path: &str) -> Option<&DocumentNode> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// The child indices along `path` (`a.b[2].c` or `a.b[key]`; keys may contain dots) as far as it exists, and the
    /// remaining path.
    pub fn steps_along<'p>(&self, path: &'p str) -> (Vec<usize>, &'p str) {
        let (mut node, mut rest, mut steps) = (self, path, Vec::new());
        while let Some((step, child, tail)) = node.step(rest) {
            (node, rest) = (child, tail);
            steps.push(step);
        }
        (steps, rest)
    }

    /// The origin of the value at `path`, or of its nearest existing parent.
    pub fn origin_of(&self, path: &str) -> Option<DocumentOrigin> {
        let (steps, _) = self.steps_along(path);
        let (node, _, _) = self.at(&steps).filter(|_| !steps.is_empty())?;
        Some(node.origin.clone())
    }

    /// The child that `path` starts with, its index, and the remaining path.
    fn step<'a, 'p>(&'a self, path: &'p str) -> Option<(usize, &'a DocumentNode, &'p str)> {
        let (step, child, rest) = match &self.value {
            DocumentValue::Map(entries) => entries
                .iter()
                .enumerate()
                .filter_map(|(step, entry)| Some((step, entry, after_key(path, &entry.key)?)))
                .filter(|(_, _, rest)| rest.is_empty() || rest.starts_with(['.', '[']))
                .max_by_key(|(_, entry, _)| entry.key.len())
                .map(|(step, entry, rest)| (step, &entry.node, rest))?,
            DocumentValue::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let step = index.parse::<usize>().ok()?;
                (step, items.get(step)?, rest)
            }
            _ => return None,
        };
        Some((step, child, rest.strip_prefix('.').unwrap_or(rest)))
    }

    /// Merges `over` into this tree as a JSON merge patch: mappings are merged by key, `null` removes a key, and
    /// everything else, including lists, is replaced.
    pub fn merge(&mut self, over: DocumentNode) {
        match (&mut self.value, over) {
            (
                DocumentValue::Map(entries),
                DocumentNode { value: DocumentValue::Map(additions), .. },
            ) => {
                for addition in additions {
                    merge_entry(entries, addition);
                }
            }
            (_, over) => {
                *self = over;
                self.remove_nulls();
            }
        }
    }

    /// Removes the keys with `null`, also in nested mappings: what a merge patch leaves of itself where it meets nothing.
    pub fn remove_nulls(&mut self) {
        if let DocumentValue::Map(entries) = &mut self.value {
            entries.retain(|entry| entry.node.value != DocumentValue::Null);
            for entry in entries {
                entry.node.remove_nulls();
            }
        }
    }

    /// Sets the value at a dotted path; replaces an existing value and creates missing parents.
    pub fn set(&mut self, path: &str, node: DocumentNode) {
        let (key, rest) = path.split_once('.').map_or((path, None), |(k, r)| (k, Some(r)));
        if !matches!(self.value, DocumentValue::Map(_)) {
            self.value = DocumentValue::Map(Vec::new());
        }
        let DocumentValue::Map(entries) = &mut self.value else {
            return;
        };
        let index = entries.iter().position(|e| e.key == key).unwrap_or_else(|| {
            let origin = node.origin.clone();
            let value = DocumentNode::empty(origin.clone());
            entries.push(DocumentEntry { key: key.to_owned(), origin, node: value });
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
        let (key, rest) = path.split_once('.').map_or((path, None), |(k, r)| (k, Some(r)));
        let DocumentValue::Map(entries) = &mut self.value else {
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

/// Appends a key to a path, truncated and on one line.
pub fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.extend(key.chars().take(100).filter(|c| !c.is_control()));
}

/// The rest of a path after a key, or a key in brackets, at its start.
fn after_key<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let bracketed =
        path.strip_prefix('[').and_then(|path| path.strip_prefix(key)?.strip_prefix(']'));
    bracketed.or_else(|| path.strip_prefix(key))
}

fn merge_entry(entries: &mut Vec<DocumentEntry>, mut addition: DocumentEntry) {
    if addition.node.value == DocumentValue::Null {
        entries.retain(|e| e.key != addition.key);
        return;
    }
    match entries.iter_mut().find(|e| e.key == addition.key) {
        Some(entry) => entry.node.merge(addition.node),
        None => {
            addition.node.remove_nulls();
            entries.push(addition);
        }
    }
}

impl fmt::Display for DocumentValue {
    /// Formats the value for a message: `the string "x"`, `the number 5`, `a list`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DocumentValue::Null => f.write_str("null"),
            DocumentValue::Bool(value) => write!(f, "{value}"),
            DocumentValue::Int(value) => write!(f, "the number {value}"),
            DocumentValue::Float(value) => write!(f, "the number {value}"),
            DocumentValue::String(text) => {
                let short: String = text.chars().take(80).collect();
                let dots = if short.len() < text.len() { "..." } else { "" };
                write!(f, "the string {short:?}{dots}")
            }
            DocumentValue::List(_) => f.write_str("a list"),
            DocumentValue::Map(_) => f.write_str("a mapping"),
            DocumentValue::Rejected => f.write_str("a rejected value"),
        }
    }
}
