//! Updates from sources.

use super::{Pod, keys};
use std::{collections::BTreeSet, fmt, sync::Arc};

/// Where a pod came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodSource {
    /// A manifest file or directory (`staticPodPath`).
    File,
    /// A URL (`staticPodURL`).
    Http,
    /// A client that posted it to this kubelet.
    Posted,
    /// An API server.
    Api,
}

impl PodSource {
    /// The value of the `kubernetes.io/config.source` annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Posted => "posted",
            Self::Api => "api",
        }
    }

    /// Reads the pod's `kubernetes.io/config.source` annotation; `None` when it has none that we
    /// know.
    pub fn of(pod: &Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.as_ref()?;
        Self::parse(annotations.get(keys::CONFIG_SOURCE)?)
    }

    /// The inverse of [`PodSource::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "file" => Some(Self::File),
            "http" => Some(Self::Http),
            "posted" => Some(Self::Posted),
            "api" => Some(Self::Api),
            _ => None,
        }
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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

/// A small set of sources: which are configured, or which have delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSet(u8);

impl SourceSet {
    fn bit(source: PodSource) -> u8 {
        match source {
            PodSource::File => 1,
            PodSource::Http => 2,
            PodSource::Api => 4,
            PodSource::Posted => 8,
        }
    }

    /// Adds a source.
    pub fn insert(&mut self, source: PodSource) {
        self.0 |= Self::bit(source);
    }

    /// Whether the source is in the set.
    pub fn contains(self, source: PodSource) -> bool {
        self.0 & Self::bit(source) != 0
    }

    /// Whether every source of `other` is in the set.
    pub fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl FromIterator<PodSource> for SourceSet {
    fn from_iter<I: IntoIterator<Item = PodSource>>(iter: I) -> Self {
        let mut set = Self::default();
        iter.into_iter().for_each(|source| set.insert(source));
        set
    }
}
