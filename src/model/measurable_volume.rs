//! Volumes whose usage is measured. Pure.

use std::path::PathBuf;

/// A volume whose usage is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurableVolume {
    /// Its name in the pod.
    pub name: String,
    /// Its path on the node.
    pub path: PathBuf,
    /// Whether it is a file system of its own, whose usage the kernel reports.
    pub filesystem: bool,
    /// The quota project of its files, from which its usage is read.
    pub project: Option<ProjectId>,
    /// The claim, if it is the volume of one.
    pub claim: Option<ClaimRef>,
}

/// A quota project of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectId(pub u32);

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}
