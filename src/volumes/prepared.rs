//! The paths of a pod's volumes.

use super::VolumeError;
use crate::base::named_enum;
use crate::model::ProjectId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

named_enum! {
    /// `hostPath.type`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum HostPathCheck {
        /// Anything; need not exist.
        #[default]
        None = "",
        /// A directory; created with mode 0755 if nothing exists.
        DirectoryOrCreate = "DirectoryOrCreate",
        /// A directory.
        Directory = "Directory",
        /// A file; created with mode 0644 if nothing exists.
        FileOrCreate = "FileOrCreate",
        /// A file.
        File = "File",
        /// A unix socket.
        Socket = "Socket",
        /// A character device.
        CharDevice = "CharDevice",
        /// A block device.
        BlockDevice = "BlockDevice",
    }
}

/// The path of one volume, and how containers may mount it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumePath {
    /// The path on the node.
    pub host_path: PathBuf,
    /// The name of a claim's PersistentVolume.
    pub persistent_volume: Option<String>,
    /// The type that the path has to have at every start of a container, for one that the kubelet did not create.
    pub check: HostPathCheck,
    /// The kubelet created it, so the runtime may relabel it for SELinux.
    pub managed: bool,
    /// Containers mount it read-only, whatever their `volumeMounts` say.
    pub read_only: bool,
    /// The plugin of a claim's volume, in metrics; `None` for a path of the node.
    pub plugin: Option<&'static str>,
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
        Self { host_path, ..Self::default() }
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
