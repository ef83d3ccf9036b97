//! Volumes that are not ready. Pure.

/// A volume that is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingVolume {
    /// Its name in the pod.
    pub name: String,
    /// Why it is not ready.
    pub reason: String,
    /// What it failed with, if nothing is under way for it.
    pub error: Option<String>,
}
