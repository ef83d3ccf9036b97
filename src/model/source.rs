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
