//! Volumes whose usage is measured. Pure.

use std::path::PathBuf;

/// A volume whose usage is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurableVolume {
    /// Its name in the pod.
    pub name: String,
    /// Its path on the node.
    pub path: PathBuf,
    /// Where its usage is read.
    pub source: UsageSource,
    /// The claim, if it is the volume of one.
    pub claim: Option<ClaimRef>,
}

/// Where the usage of a volume is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageSource {
    /// From its files, or from their quota project.
    Files(Option<ProjectId>),
    /// From the kernel: it is a file system of its own.
    Filesystem,
    /// From its driver; `None` until the driver has reported it.
    Driver(Option<ReportedUsage>),
}

/// The usage of a volume as its driver has reported it. What the driver does not know is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ReportedUsage {
    /// When the driver reported it, nanoseconds since the epoch.
    pub at: i64,
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
    /// Whether the volume is abnormal, if the driver reports that and it is asked for.
    pub is_abnormal: Option<bool>,
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
