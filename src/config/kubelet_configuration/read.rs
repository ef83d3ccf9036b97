//! Parses one configuration document: syntax, `apiVersion` and `kind`, and decoding.

use super::{API_VERSION, KIND, KubeletConfiguration};
use crate::base::document::{DocumentNode, DocumentValue, DuplicateKey};
use crate::config::decode::{UnknownField, decode};
use crate::config::document::{ConfigProblem, Problems, parse, sort_by_place};

/// What to do about fields that the format does not have, and about keys that are given more than once.
///
/// Upstream decodes a file that fails the strict decoder once more without it, and logs that; of drop-ins, it ignores
/// unknown fields and refuses duplicate keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoding {
    /// They are errors.
    Strict,
    /// They are warnings: an unknown field is ignored, and of a duplicate key the last value counts. A node must start
    /// with the configuration of a cluster of a newer version.
    Lenient,
}

/// Which file a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The configuration file.
    File,
    /// A drop-in, in which `null` removes a key of the layers below.
    DropIn,
}

/// A file with mistakes.
#[derive(Debug, thiserror::Error)]
#[error("{problems}")]
pub struct MistakenFile {
    /// All of them.
    pub problems: Problems,
    /// The tree with the mistaken values marked as rejected, so that the rest can be checked; `None` if the document as
    /// a whole is unusable.
    pub rest: Option<DocumentNode>,
}

impl From<Problems> for MistakenFile {
    fn from(problems: Problems) -> Self {
        Self { problems, rest: None }
    }
}

/// Parses a file or drop-in (`path` is its name in messages) and returns its tree for merging, and warnings.
///
/// # Errors
/// Invalid syntax, another `apiVersion` or `kind`, or all fields of the wrong type; if strict, also unknown fields and
/// duplicate keys.
pub fn read(
    path: &str,
    text: &str,
    part: Part,
    decoding: Decoding,
) -> Result<(DocumentNode, Vec<ConfigProblem>), MistakenFile> {
    let (mut tree, duplicates) = parse(path, text).map_err(|problem| Problems(vec![problem]))?;
    header(&tree)?;
    let mut checked = tree.clone();
    if part == Part::DropIn {
        checked.remove_nulls();
    }
    let (decoded, unknown) = decode::<KubeletConfiguration>(&checked);
    let mut lenient: Vec<ConfigProblem> = unknown
        .into_iter()
        .map(|field| unknown_field(field, decoding))
        .chain(duplicates.into_iter().map(|key| duplicate_key(key, decoding)))
        .collect();
    let mut problems = decoded.err().unwrap_or_default();
    for problem in &problems {
        reject(&mut tree, &problem.field);
    }
    if decoding == Decoding::Strict {
        problems.append(&mut lenient);
    }
    if problems.is_empty() {
        sort_by_place(&mut lenient, &[]);
        Ok((tree, lenient))
    } else {
        sort_by_place(&mut problems, &[]);
        Err(MistakenFile { problems: Problems(problems), rest: Some(tree) })
    }
}

/// Marks the value at `path` as rejected.
fn reject(tree: &mut DocumentNode, path: &str) {
    let (steps, _) = tree.steps_along(path);
    if let Some(node) = tree.at_mut(&steps).filter(|_| !steps.is_empty()) {
        node.value = DocumentValue::Rejected;
    }
}

fn unknown_field(unknown: UnknownField, decoding: Decoding) -> ConfigProblem {
    let what = match decoding {
        Decoding::Strict => "unknown field",
        Decoding::Lenient => "unknown field is ignored",
    };
    ConfigProblem {
        field: unknown.field,
        origin: Some(unknown.origin),
        message: match unknown.near {
            Some(near) => format!("{what}; did you mean {near:?}?"),
            None => what.to_owned(),
        },
    }
}

fn duplicate_key(duplicate: DuplicateKey, decoding: Decoding) -> ConfigProblem {
    let before = duplicate.before;
    ConfigProblem {
        field: duplicate.field,
        origin: Some(duplicate.origin),
        message: match decoding {
            Decoding::Strict => format!("duplicate key, also given at {before}"),
            Decoding::Lenient => format!("duplicate key; the value given at {before} is ignored"),
        },
    }
}

/// Checks `apiVersion` and `kind`; the fields of another kind of object are not checked.
fn header(tree: &DocumentNode) -> Result<(), Problems> {
    let about_document = |message: &str| {
        let message = format!("{message}; expected apiVersion: {API_VERSION} and kind: {KIND}");
        ConfigProblem { field: String::new(), origin: Some(tree.origin.clone()), message }
    };
    match tree.value {
        DocumentValue::Map(_) => {}
        DocumentValue::Null => return Err(Problems(vec![about_document("the document is empty")])),
        _ => {
            return Err(Problems(vec![about_document("the document is not a mapping")]));
        }
    }
    let check = |field: &str, expected: &str| match tree.get(field) {
        Some(node) if node.value == DocumentValue::String(expected.to_owned()) => None,
        Some(node) => Some(ConfigProblem {
            field: field.to_owned(),
            origin: Some(node.origin.clone()),
            message: format!("must be {expected:?}, got {}", node.value),
        }),
        None => Some(ConfigProblem {
            field: field.to_owned(),
            origin: Some(tree.origin.clone()),
            message: format!("is missing: must be {expected:?}"),
        }),
    };
    let problems: Vec<_> =
        [check("apiVersion", API_VERSION), check("kind", KIND)].into_iter().flatten().collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
}
