//! Sources of pods.

use super::keys;
use k8s_openapi::api::core::v1::Pod;
use std::fmt;

/// The source of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodSource {
    /// A manifest file or directory (`staticPodPath`).
    File,
    /// A URL (`staticPodURL`).
    Http,
    /// Posted to this kubelet by a client.
    Posted,
    /// The API server.
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

    /// Parses the pod's `kubernetes.io/config.source` annotation; `None` if it is missing or unknown.
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
