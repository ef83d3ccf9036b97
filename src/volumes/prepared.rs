//! Where the volumes of a pod are.

use super::VolumeError;
use crate::model::ProjectId;
use std::{collections::BTreeMap, path::PathBuf};

/// Where one volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// On the node.
    pub host_path: PathBuf,
    /// The kubelet made it, so the runtime may give it the pod's SELinux label.
    pub managed: bool,
    /// Containers only read it, whatever their mounts say.
    pub read_only: bool,
    /// It is a file system of the node that is measured for its claim.
    pub measured: bool,
    /// It is a device, which containers do not mount.
    pub is_device: bool,
    /// A group that containers get besides their own.
    pub group: Option<i64>,
    /// The project of an emptyDir, by which its usage is read.
    pub project: Option<ProjectId>,
}

impl VolumePath {
    /// A path that is the node's, not the kubelet's.
    pub(super) fn of(host_path: PathBuf) -> Self {
        Self {
            host_path,
            managed: false,
            read_only: false,
            measured: false,
            is_device: false,
            group: None,
            project: None,
        }
    }
}

/// Where a pod's volumes are, by volume name.
pub type VolumePaths = BTreeMap<String, VolumePath>;

/// A pod's volumes.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Where they are.
    pub paths: VolumePaths,
    /// Volumes that are there and cannot be brought up to date: they show what they showed before.
    pub stale: Vec<VolumeError>,
}
