//! Updates from sources.

use super::{Pod, PodSource};
use std::{collections::BTreeSet, sync::Arc};

/// What happened to pods of a source, in the order in which the kinds are emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodOp {
    /// No longer in the source.
    Remove,
    /// New in the source.
    Add,
    /// Changed by the user.
    Update,
    /// Marked for graceful deletion (API pods).
    Delete,
    /// Only the status differs (API pods).
    Reconcile,
}

/// One update from a source to the sync loop. An [`PodOp::Add`] without pods only means that the
/// source has delivered, or whether its list is complete.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    /// The source.
    pub source: PodSource,
    /// What happened.
    pub op: PodOp,
    /// To which pods.
    pub pods: Vec<Arc<Pod>>,
    /// Whether everything that the source wants is known with this message.
    pub completeness: Completeness,
}

/// How much of what a source wants is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Completeness {
    /// More is to come.
    #[default]
    Partial,
    /// All but these, which could not be read: manifest files, or pods of the API server by UID.
    Except(Arc<BTreeSet<String>>),
    /// All of it.
    Complete,
}

impl Completeness {
    /// Whether a pod that is in no list is gone from its source. `item` is the file that it was made from, if that
    /// is known, or the UID of a pod of the API server.
    pub fn covers(&self, item: Option<&str>) -> bool {
        match self {
            Self::Partial => false,
            // What has no name may be any pod.
            Self::Except(unread) => {
                item.is_some_and(|item| !unread.contains(item) && !unread.contains(""))
            }
            Self::Complete => true,
        }
    }
}

impl From<BTreeSet<String>> for Completeness {
    /// All but these.
    fn from(unread: BTreeSet<String>) -> Self {
        if unread.is_empty() {
            Self::Complete
        } else {
            Self::Except(Arc::new(unread))
        }
    }
}
