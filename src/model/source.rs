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
