//! Volumes whose size is measured. Pure.

use std::path::PathBuf;

/// A volume whose size is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurableVolume {
    /// Its name in the pod.
    pub name: String,
    /// Where it is on the node.
    pub path: PathBuf,
    /// It is a file system of its own, in memory.
    pub in_memory: bool,
}
