//! A configuration document: its limits, and what is wrong with it.

use std::fmt;
use std::sync::Arc;

use crate::base::document::{self, DocumentLimits, DocumentNode, DocumentOrigin};

/// A kubelet configuration is a few kilobytes.
const LIMITS: DocumentLimits = DocumentLimits {
    holder: "configuration file",
    nodes: 20_000,
    depth: 32,
    text: 1 << 20,
    replayed: 60_000,
};

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The field, dotted from the top: `crashLoopBackOff.maxContainerRestartPeriod`; empty when the
    /// document as a whole is meant.
    pub field: String,
    /// Where it was given, if it was.
    pub origin: Option<DocumentOrigin>,
    /// What is wrong and what would be right.
    pub message: String,
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

/// Everything wrong with a configuration, one problem a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ConfigProblem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<ConfigProblem>);

/// Parses one document named `path` in messages.
///
/// # Errors
/// Broken syntax, a duplicate key, more than one document, or a document past the limits: one
/// problem with its line and column.
pub(super) fn parse(path: &str, text: &str) -> Result<DocumentNode, ConfigProblem> {
    let path: Arc<str> = path.into();
    document::parse(&path, text, &LIMITS).map_err(|error| ConfigProblem {
        field: error.field,
        origin: Some(DocumentOrigin::File {
            path,
            line: error.line.unwrap_or(1),
            column: error.column.unwrap_or(1),
        }),
        message: error.message,
    })
}
