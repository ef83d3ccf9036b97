//! Where each value of a resolved configuration was given. Pure.

use crate::base::document::{DocumentNode, DocumentOrigin};

/// The merged files and flags.
#[derive(Clone, Debug)]
pub struct Origins(DocumentNode);

impl Origins {
    /// Of a tree that files and flags were merged to.
    pub(super) fn new(merged: DocumentNode) -> Self {
        Self(merged)
    }

    /// Where the value at this path of keys was given; `None` for a default.
    pub fn of(&self, path: &[&str]) -> Option<&DocumentOrigin> {
        let node = path.iter().try_fold(&self.0, |node, key| node.get(key))?;
        // Defaults that depend on the file have the place of the file.
        Some(&node.origin).filter(|origin| **origin != self.0.origin)
    }
}
