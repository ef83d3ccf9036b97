//! A configuration document: its limits, and the problems found in it.

use std::fmt;
use std::sync::Arc;

use crate::base::document::{self, DocumentLimits, DocumentNode, DocumentOrigin, DuplicateKey};

/// A kubelet configuration has a few kilobytes.
const LIMITS: DocumentLimits = DocumentLimits {
    kind: "configuration file",
    nodes: 20_000,
    depth: 32,
    text: 1 << 20,
    replayed: 60_000,
};

/// A problem with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The path of the field, such as `crashLoopBackOff.maxContainerRestartPeriod`; empty for the whole document.
    pub field: String,
    /// Where the value was given, if it was.
    pub origin: Option<DocumentOrigin>,
    /// The message: what is wrong, and what would be valid.
    pub message: String,
}

impl ConfigProblem {
    /// A problem with a flag that is not a field of the file.
    pub(super) fn of_flag(flag: &'static str, message: String) -> Self {
        Self { field: String::new(), origin: Some(DocumentOrigin::Flag(flag)), message }
    }
}

impl fmt::Display for ConfigProblem {
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

/// All problems of a configuration; printed one per line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ConfigProblem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<ConfigProblem>);

/// The parsed configuration file and its drop-ins in the order in which they are merged over it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layers {
    /// The file of `--config`.
    pub file: Option<DocumentNode>,
    /// The files of `--config-dir`.
    pub drop_ins: Vec<DocumentNode>,
    /// The mistakes found when the files were read; these values are marked as rejected.
    pub problems: Vec<ConfigProblem>,
}

impl Layers {
    /// The names of the files, in order.
    pub(super) fn files(&self) -> Vec<Arc<str>> {
        let trees = self.file.iter().chain(&self.drop_ins);
        let names = trees.filter_map(|tree| match &tree.origin {
            DocumentOrigin::File { path, .. } => Some(Arc::clone(path)),
            DocumentOrigin::Flag(_) => None,
        });
        names.collect()
    }
}

/// Sorts problems by their place: those in files by file, in the order of `files`, and position; then those of flags.
pub(super) fn sort_by_place(problems: &mut [ConfigProblem], files: &[Arc<str>]) {
    problems.sort_by_key(|problem| match &problem.origin {
        Some(DocumentOrigin::File { path, line, column }) => {
            let file = files.iter().position(|file| file == path);
            (0, file.unwrap_or(files.len()), *line, *column)
        }
        Some(DocumentOrigin::Flag(_)) => (1, 0, 0, 0),
        None => (2, 0, 0, 0),
    });
}

/// Parses one document; `path` is its name in messages. Of a key that is given more than once the last value counts;
/// these keys are returned beside the tree.
///
/// # Errors
/// Invalid syntax, more than one document, or an exceeded limit; one problem with line and column.
pub(super) fn parse(
    path: &str,
    text: &str,
) -> Result<(DocumentNode, Vec<DuplicateKey>), ConfigProblem> {
    let path: Arc<str> = path.into();
    document::parse_last_wins(&path, text, &LIMITS).map_err(|error| ConfigProblem {
        field: error.field,
        origin: Some(DocumentOrigin::File {
            path,
            line: error.line.unwrap_or(1),
            column: error.column.unwrap_or(1),
        }),
        message: error.message,
    })
}
