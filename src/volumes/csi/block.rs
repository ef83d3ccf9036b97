//! What the steps of a block volume do besides calling the driver.

use super::devices;
use super::identity::VolumeMode;
use super::machine::CallOutcome;
use super::manager::{CsiVolumes, CsiVolumesInner};
use super::paths::{PublishDir, StageDir};
use super::requests::MountingPod;
use super::steps::{StepResult, chain, create, not_called, unknown};
use super::vol_data::{self, PublishData};
use super::volume::{CsiVolume, PublishRequest};
use crate::model::PodUid;
use crate::model::reasons::event;
use crate::state::events::ObjectRef;
use crate::volumes::error::cannot;
use anyhow::Context as _;
use std::path::Path;
use std::sync::Arc;

impl CsiVolumes {
    /// Upstream's event about the device of a pod.
    pub(in crate::volumes) fn report_map(
        &self,
        pod: &MountingPod,
        volume: &str,
        what: &str,
        path: Option<&Path>,
    ) {
        self.0.report_map(pod, volume, what, path);
    }
}

impl CsiVolumesInner {
    /// Refuses to stage a volume while another one has its directories, which are named after the PersistentVolume: that
    /// was deleted and made anew with another handle.
    pub(super) fn check_stage_is_free(&self, volume: &Arc<CsiVolume>) -> StepResult {
        let VolumeMode::Block { volume: name } = volume.identity.mode() else {
            return Ok(());
        };
        let volumes = self.volumes.lock();
        let mut others = volumes.values().filter(|other| {
            let mode = other.identity.mode();
            let has_name = matches!(mode, VolumeMode::Block { volume } if volume == name);
            has_name && !Arc::ptr_eq(other, volume)
        });
        let holder = others.find(|other| !other.state.lock().machine.is_undone());
        match holder {
            None => Ok(()),
            Some(holder) => Err(not_called(format!(
                "the volume {:?} is still staged for the PersistentVolume {name}",
                holder.identity.handle()
            ))),
        }
    }

    /// Writes the record and upstream's file, and creates the staging directory.
    pub(super) async fn prepare_block(
        &self,
        volume: &Arc<CsiVolume>,
        directory: StageDir,
    ) -> StepResult {
        let data = PublishData {
            identity: volume.identity.clone(),
            spec_name: volume.state.lock().spec_name.clone(),
            node: self.sources.node_name.clone(),
            selinux: None,
        };
        let root = self.root.clone();
        self.with_record(volume, move || {
            create(&root, &directory.target())?;
            let path = directory.vol_data();
            path.parent().map_or(Ok(()), |data| create(&root, data))?;
            vol_data::write_block(&directory, &data).with_context(cannot("write", &path))
        })
        .await
    }

    /// Binds and links the device that the driver has published. The volume is published, whatever the outcome.
    pub(super) async fn map_device(
        &self,
        volume: &Arc<CsiVolume>,
        request: &PublishRequest,
        directory: PublishDir,
    ) -> StepResult {
        let Some(device) = directory.device().cloned() else {
            return Ok(());
        };
        let (root, mounter) = (self.root.clone(), self.mounter.clone());
        let (pod, paths) = (request.directory.clone(), device.clone());
        let map = move || {
            // A pod without other volumes may have no directory yet.
            create(&root, pod.path())?;
            for path in [&paths.map, &paths.link] {
                path.parent().map_or(Ok(()), |parent| create(&root, parent))?;
            }
            devices::map(&directory.target(), &paths, mounter.as_ref())
        };
        let mapped = self.on_files(volume, CallOutcome::Unknown, map).await?;
        let opened = mapped.map_err(|error| unknown(chain(&error)))?;
        let uid = &request.pod.uid;
        volume.state.lock().devices.insert(uid.clone(), opened);
        let (pod, name) = (&request.pod, &request.spec.spec_name);
        self.report_map(pod, name, "globalMapPath", device.map.parent());
        self.report_map(pod, name, "volumeMapPath", device.link.parent());
        Ok(())
    }

    /// Upstream's event.
    fn report_map(&self, pod: &MountingPod, volume: &str, what: &str, path: Option<&Path>) {
        let pod = ObjectRef {
            kind: "Pod",
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            field_path: String::new(),
        };
        let path = path.unwrap_or(Path::new(""));
        let text =
            format!("MapVolume.MapPodDevice succeeded for volume {volume:?} {what} {path:?}");
        let reason = event::SUCCESSFUL_MOUNT_VOLUME;
        self.sources.events.normal(&pod, reason, text);
    }

    /// Undoes what [`Self::map_device`] has done, before the driver is called: it may refuse to take away a device that is
    /// open.
    pub(super) async fn unmap_device(
        &self,
        volume: &Arc<CsiVolume>,
        uid: &PodUid,
        directory: &PublishDir,
    ) -> StepResult {
        let Some(device) = directory.device().cloned() else {
            return Ok(());
        };
        let opened = volume.state.lock().devices.remove(uid);
        let mounter = self.mounter.clone();
        let unmap = move || {
            drop(opened);
            devices::unmap(&device, mounter.as_ref())
        };
        self.after_call(volume, unmap).await
    }

    /// Refuses to unstage what is mapped for a pod that no volume of this kubelet knows.
    pub(super) async fn check_devices(
        &self,
        volume: &Arc<CsiVolume>,
        directory: &StageDir,
    ) -> StepResult {
        let Some(dirs) = directory.devices().cloned() else {
            return Ok(());
        };
        let maps = dirs.maps.clone();
        let find = move || devices::left_devices(&maps);
        let left = self.on_files(volume, CallOutcome::NotCalled, find).await?;
        let left = left.map_err(not_called)?;
        if left.is_empty() {
            return Ok(());
        }
        let maps = dirs.maps;
        Err(not_called(format!("the device {maps:?} is still referenced from other Pods {left:?}")))
    }
}
