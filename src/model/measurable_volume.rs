//! Volumes whose size is measured. Pure.

use std::path::PathBuf;

/// A volume whose size is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurableVolume {
    /// Its name in the pod.
    pub name: String,
    /// Where it is on the node.
    pub path: PathBuf,
    /// It is measured as a file system of its own.
    pub filesystem: bool,
    /// The project that its files belong to, and nothing else: the file system counts them.
    pub project: Option<ProjectId>,
    /// The claim that it is the volume of.
    pub claim: Option<ClaimRef>,
}

/// A project of a file system with project quotas.
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
