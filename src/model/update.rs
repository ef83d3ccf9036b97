//! Pod updates from sources.

use super::{Pod, PodSource};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The kind of change, in the order in which changes are emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodOp {
    /// Removed from the source.
    Remove,
    /// Added to the source.
    Add,
    /// Changed.
    Update,
    /// Marked for graceful deletion (API pods).
    Delete,
    /// Only the status differs (API pods).
    Reconcile,
}

/// An update from a source to the sync loop. A [`PodOp::Add`] without pods only carries the completeness of the
/// source's list.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    /// The source.
    pub source: PodSource,
    /// The kind of change.
    pub op: PodOp,
    /// The changed pods.
    pub pods: Vec<Arc<Pod>>,
    /// Whether all desired pods of the source are known after this update.
    pub completeness: Completeness,
}

/// How completely a source's desired pods are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Completeness {
    /// More pods may follow.
    #[default]
    Partial,
    /// All except these, which are invalid or could not be read: manifest files, or UIDs of API pods.
    Except(Arc<BTreeSet<String>>),
    /// All.
    Complete,
}

impl Completeness {
    /// Whether a pod that is not in the source's list was removed from it. `item` is the pod's manifest file, if
    /// known, or its UID for an API pod.
    pub fn covers(&self, item: Option<&str>) -> bool {
        match self {
            Self::Partial => false,
            // Without a file or UID it may be any of the unusable ones.
            Self::Except(unusable) => {
                item.is_some_and(|item| !unusable.contains(item) && !unusable.contains(""))
            }
            Self::Complete => true,
        }
    }
}

impl From<BTreeSet<String>> for Completeness {
    /// All except these.
    fn from(unusable: BTreeSet<String>) -> Self {
        if unusable.is_empty() { Self::Complete } else { Self::Except(Arc::new(unusable)) }
    }
}
