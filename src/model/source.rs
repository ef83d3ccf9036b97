//! Sources of pods.

use super::keys;
use crate::base::named_enum;
use k8s_openapi::api::core::v1::Pod;

named_enum! {
    /// The source of a pod, with its value of the `kubernetes.io/config.source` annotation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum PodSource {
        /// A manifest file or directory (`staticPodPath`).
        File = "file",
        /// A URL (`staticPodURL`).
        Http = "http",
        /// Posted to this kubelet by a client.
        Posted = "posted",
        /// The API server.
        Api = "api",
    }
}

impl PodSource {
    /// Parses the pod's `kubernetes.io/config.source` annotation; `None` if it is missing or unknown.
    pub fn of(pod: &Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.as_ref()?;
        Self::parse(annotations.get(keys::CONFIG_SOURCE)?)
    }
}

/// A set of sources, for example of those that are configured or have delivered.
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
