//! `Debug` of messages with secrets: names of the volume, paths and keys of maps, but no value of a map. Pure.

use super::proto::volume_capability::MountVolume;
use super::proto::{NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest};
use std::collections::BTreeMap;
use std::fmt;

/// Shows the keys of a map.
struct Keys<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("publish_context", &Keys(&self.publish_context))
            .field("volume_context", &Keys(&self.volume_context))
            .field("secrets", &Keys(&self.secrets))
            .finish()
    }
}

impl fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("publish_context", &Keys(&self.publish_context))
            .field("volume_context", &Keys(&self.volume_context))
            .field("secrets", &Keys(&self.secrets))
            .finish()
    }
}

impl fmt::Debug for NodeExpandVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeExpandVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_path", &self.volume_path)
            .field("staging_target_path", &self.staging_target_path)
            .field("capacity_range", &self.capacity_range)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &Keys(&self.secrets))
            .finish()
    }
}

/// Mount flags may be confidential, says the specification.
impl fmt::Debug for MountVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountVolume")
            .field("fs_type", &self.fs_type)
            .field("mount_flags", &self.mount_flags.len())
            .field("volume_mount_group", &self.volume_mount_group)
            .finish()
    }
}
