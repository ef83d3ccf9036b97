//! Undoes what a volume has on the node: the call of the driver, then what the driver has left, then the directory.

use super::client::NodeClient;
use super::error::CsiError;
use super::files;
use super::machine::{CallOutcome, Step};
use super::manager::CsiVolumesInner;
use super::mount_table::MountTable;
use super::paths::{PublishDir, StageDir, pod_volumes};
use super::proto::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use super::steps::{StepResult, not_called, outcome, text};
use super::volume::CsiVolume;
use crate::host::remove;
use crate::model::PodUid;
use crate::volumes::Mounter;
use crate::volumes::error::cannot;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};
use tonic::Code;

/// The maximum number of mounts on one directory that are unmounted.
const MAX_STACKED: usize = 16;

/// The directory of a staged or published volume.
enum VolumeDir {
    Stage(StageDir),
    Publish(PublishDir),
}

impl VolumeDir {
    fn path(&self) -> &Path {
        match self {
            Self::Stage(directory) => directory.path(),
            Self::Publish(directory) => directory.path(),
        }
    }

    /// What the driver mounts.
    fn target(&self) -> PathBuf {
        match self {
            Self::Stage(directory) => directory.target(),
            Self::Publish(directory) => directory.target(),
        }
    }

    /// Removes what the driver has left in the staging directory of a block volume, as upstream does.
    fn empty(&self, mounts: &MountTable) -> anyhow::Result<()> {
        match self {
            Self::Stage(directory) if directory.devices().is_some() => {
                let target = directory.target();
                let is_mounted = mounts.is_mounted(&target);
                anyhow::ensure!(!is_mounted, "{} has a mount", target.display());
                remove::tree(&target).with_context(cannot("remove", &target))
            }
            _ => Ok(()),
        }
    }

    /// Removes the directory, if nothing is mounted there.
    fn remove(&self, mounts: &MountTable) -> io::Result<()> {
        match self {
            Self::Stage(directory) => files::remove_stage(directory, mounts),
            Self::Publish(directory) => files::remove_published(directory, mounts),
        }
    }
}

impl CsiVolumesInner {
    pub(super) async fn unpublish(
        &self,
        volume: &Arc<CsiVolume>,
        client: &NodeClient,
        uid: &PodUid,
    ) -> StepResult {
        let directory = self.publish_dir(volume, uid)?;
        self.unmap_device(volume, uid, &directory).await?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.identity.handle(),
            target_path: text(&directory.target())?,
        };
        let called = client.unpublish(request).await;
        self.check_undone(volume, called, directory.target()).await?;
        self.clean_up(volume, VolumeDir::Publish(directory)).await?;
        self.sources.tokens.forget(uid);
        Ok(())
    }

    pub(super) async fn unstage(&self, volume: &Arc<CsiVolume>, client: &NodeClient) -> StepResult {
        let directory = StageDir::new(&self.root, &volume.identity);
        let capabilities = client.capabilities().await.map_err(not_called)?;
        self.check_devices(volume, &directory).await?;
        if capabilities.stage_unstage {
            self.check_references(volume, &directory).await?;
            let request = NodeUnstageVolumeRequest {
                volume_id: volume.identity.handle(),
                staging_target_path: text(&directory.target())?,
            };
            let called = client.unstage(request).await;
            self.check_undone(volume, called, directory.target()).await?;
        }
        self.clean_up(volume, VolumeDir::Stage(directory)).await
    }

    /// The outcome of a call that undoes something. A driver that does not know the volume has nothing to undo if nothing
    /// is mounted at the path: another kubelet has undone it, and the volume was deleted since.
    async fn check_undone(
        &self,
        volume: &Arc<CsiVolume>,
        called: Result<(), CsiError>,
        target: PathBuf,
    ) -> StepResult {
        let Err(error) = called else {
            return Ok(());
        };
        if error.code() == Some(Code::NotFound) {
            let mounter = self.mounter.clone();
            let find = move || is_there(&target, &MountTable::new(mounter.list()));
            if !self.on_files(volume, CallOutcome::Failed, find).await? {
                return Ok(());
            }
        }
        Err(outcome(error))
    }

    /// Unmounts what the driver has left, and removes the directory.
    async fn clean_up(&self, volume: &Arc<CsiVolume>, directory: VolumeDir) -> StepResult {
        let (mounter, driver) = (self.mounter.clone(), volume.identity.driver().to_owned());
        let undo = move || {
            unmount_leftover(mounter.as_ref(), &directory.target(), &driver)?;
            directory.empty(&MountTable::new(mounter.list()))?;
            let removed = directory.remove(&MountTable::new(mounter.list()));
            removed.with_context(|| format!("cannot remove {}", directory.path().display()))
        };
        self.after_call(volume, undo).await
    }

    /// Refuses to unstage what is mounted for a pod that no volume of this kubelet knows: its data would be lost.
    async fn check_references(&self, volume: &Arc<CsiVolume>, stage: &StageDir) -> StepResult {
        let (mounter, pods) = (self.mounter.clone(), self.root.pods_dir());
        let (target, known) = (stage.target(), self.directories_of_others(volume));
        let find = move || {
            let mounts = MountTable::new(mounter.list());
            (mounts.references(&target, &pods, &known), target)
        };
        let found = self.on_files(volume, CallOutcome::NotCalled, find).await?;
        let (references, target) = found;
        if references.is_empty() {
            return Ok(());
        }
        Err(not_called(format!(
            "GetDeviceMountRefs check failed: the device mount path {target:?} is still mounted by other references {references:?}"
        )))
    }

    /// The directories of other volumes in pods. Several volumes may have one device, such as an export of a server.
    fn directories_of_others(&self, volume: &Arc<CsiVolume>) -> Vec<PathBuf> {
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        let others = volumes.iter().filter(|other| !Arc::ptr_eq(other, volume));
        let mut directories = Vec::new();
        for other in others {
            let state = other.state.lock();
            for (uid, pod) in &state.pods {
                let Ok(directory) = self.root.pod(uid) else {
                    continue;
                };
                directories.push(directory.sub_paths());
                directories.push(pod_volumes(&directory).join(&pod.spec_name));
            }
        }
        directories
    }

    /// Removes the directories of a setup that the driver refused for good, if nothing is mounted there.
    pub(super) async fn remove_refused(&self, volume: &Arc<CsiVolume>, step: &Step) {
        let directory = match step.pod() {
            Some(uid) => match self.publish_dir(volume, uid) {
                Ok(directory) => VolumeDir::Publish(directory),
                Err(_) => return,
            },
            None if *step == Step::Stage => {
                VolumeDir::Stage(StageDir::new(&self.root, &volume.identity))
            }
            None => return,
        };
        let mounter = self.mounter.clone();
        let work = move || directory.remove(&MountTable::new(mounter.list()));
        // What cannot be removed now is found at the next start.
        if let Ok(Err(error)) = self.on_files(volume, CallOutcome::Unknown, work).await {
            let volume = volume.identity.unique_name();
            tracing::info!(volume, err = %error, "Failed to remove the directory of a CSI volume");
        }
    }
}

/// Whether a driver has mounted something at a path, or created a device there.
fn is_there(target: &Path, mounts: &MountTable) -> bool {
    let is_device = || {
        let found = fs::symlink_metadata(target);
        found.is_ok_and(|found| !found.is_dir())
    };
    mounts.is_mounted(target) || is_device()
}

/// Unmounts what a driver has left mounted, although it reported that it was done.
fn unmount_leftover(mounter: &dyn Mounter, target: &Path, driver: &str) -> anyhow::Result<()> {
    for _ in 0..MAX_STACKED {
        let mounts = mounter.list().context("cannot list the mounts")?;
        if !MountTable::new(Ok(mounts)).is_mount_point(target) {
            return Ok(());
        }
        let path = target.display();
        tracing::warn!(driverName = driver, %path, "The CSI driver has left a mount; unmounting it");
        mounter.unmount(target).with_context(|| format!("cannot unmount {path}"))?;
    }
    anyhow::bail!("{} is still mounted", target.display())
}
