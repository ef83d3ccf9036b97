//! Repairs the volumes of a pod before containers of it start.

use super::csi::dead_mounts::DeadMount;
use super::mounter::unmount_beneath;
use super::{VolumeError, VolumeManager};
use crate::base::spawn_blocking;
use crate::model::{Pod, PodExt as _, PodUid};
use anyhow::anyhow;
use std::collections::BTreeSet;

impl VolumeManager {
    /// Has the CSI volumes of a pod mounted again whose mounts are dead; [`Self::prepare`] then waits for them. `in_use` are
    /// the names of the volumes that running containers mount: those stay as they are.
    ///
    /// # Errors
    /// The volumes that are dead and stay.
    pub async fn repair(&self, pod: &Pod, in_use: &BTreeSet<&str>) -> Vec<VolumeError> {
        let uid = pod.uid();
        if !self.shared.csi.has_volumes_of(&uid) {
            return Vec::new();
        }
        let mut errors = Vec::new();
        for dead in self.shared.csi.dead_mounts(&uid).await {
            let error = &dead.error;
            if in_use.contains(dead.volume.as_str()) {
                let why = anyhow!(
                    "its mount is dead ({error}), and running containers of the pod use it"
                );
                errors.push(VolumeError::set_up(&dead.spec_name, why));
                continue;
            }
            tracing::warn!(
                pod = %pod.log_name(), podUID = %uid, volume = dead.spec_name, err = error,
                "The mount of a CSI volume is dead; mounting it again"
            );
            if let Err(error) = self.remount(&uid, &dead).await {
                errors.push(error);
            }
        }
        errors
    }

    async fn remount(&self, uid: &PodUid, dead: &DeadMount) -> Result<(), VolumeError> {
        // Sub-paths are mounts of the dead file system as well.
        let directory = self.shared.root.pod(uid)?.sub_paths().join(&dead.spec_name);
        let mounter = self.shared.mounter.clone();
        let unmount = move || unmount_beneath(&directory, mounter.as_ref());
        spawn_blocking(unmount).await??;
        self.shared.csi.remount(uid, dead);
        if let Some(volumes) = self.shared.of(uid) {
            volumes.invalidate(&dead.volume);
        }
        Ok(())
    }
}
