//! The paths of a pod's volumes.

use super::{VolumeError, plan::HostPathCheck};
use crate::model::ProjectId;
use std::{collections::BTreeMap, path::PathBuf};

/// The path of one volume, and how containers may mount it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The path on the node.
    pub host_path: PathBuf,
    /// The type that the path has to have at every start of a container, for one that the kubelet did not create.
    pub check: HostPathCheck,
    /// The kubelet created it, so the runtime may relabel it for SELinux.
    pub managed: bool,
    /// Containers mount it read-only, whatever their `volumeMounts` say.
    pub read_only: bool,
    /// Its usage is reported for its claim.
    pub measured: bool,
    /// It is a block device, which containers cannot mount.
    pub is_device: bool,
    /// A supplemental group for containers.
    pub group: Option<i64>,
    /// The quota project of an emptyDir, from which its usage is read.
    pub project: Option<ProjectId>,
}

impl VolumePath {
    /// A path of the node that the kubelet did not create.
    pub(super) fn of(host_path: PathBuf) -> Self {
        Self {
            host_path,
            check: HostPathCheck::None,
            managed: false,
            read_only: false,
            measured: false,
            is_device: false,
            group: None,
            project: None,
        }
    }
}

/// The paths of a pod's volumes by volume name.
pub type VolumePaths = BTreeMap<String, VolumePath>;

/// The result of preparing a pod's volumes.
#[derive(Debug, Default)]
pub struct PreparedVolumes {
    /// Their host paths.
    pub paths: VolumePaths,
    /// Errors of volumes that are set up but could not be updated; they keep their old content.
    pub update_errors: Vec<VolumeError>,
}
