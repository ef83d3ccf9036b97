//! Volumes of a pod that are not ready. Pure.

/// A volume that is not ready, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingVolume {
    /// Its name in the pod.
    pub name: String,
    /// Why it is not ready.
    pub reason: String,
    /// The error of the last attempt, if no attempt is in progress.
    pub error: Option<String>,
}
