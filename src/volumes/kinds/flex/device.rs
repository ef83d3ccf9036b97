//! Volumes of flexVolume drivers that are attached: their device is mounted once on the node.
//!
//! The directory of a device is the record that it is in use: it is created before the volume is attached, and removed
//! when the device is unmounted. So the next kubelet knows what to undo, also of pods that it never sees.

use super::FlexSpec;
use super::drivers::FlexDriver;
use super::protocol::{CallError, DriverName};
use crate::base::{run_file_io, spawn_blocking};
use crate::volumes::error::{cannot, io_error};
use crate::volumes::kinds::bind::{ended_or, is_mounted, make_dir};
use crate::volumes::kinds::disk::{self, Disk};
use crate::volumes::kinds::releases::MountedDevices;
use crate::volumes::pod_volumes::Attempt;
use crate::volumes::{FlexDevice, VolumeError, VolumeManagerInner, pod_dirs};
use anyhow::{Context as _, anyhow};
use futures::future::BoxFuture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// Waits until the volume is attached, and mounts its device unless it is mounted for another pod. `options` are the
/// volume's, as drivers are given them.
pub(super) async fn set_up(
    attempt: &Attempt,
    spec: &FlexSpec,
    driver: &FlexDriver,
    options: &str,
) -> Result<PathBuf, VolumeError> {
    let (manager, ended) = (&attempt.manager, &attempt.pod.volumes.ended);
    let device = FlexDevice::new(driver.name.as_str(), &spec.name);
    let name = device.unique_name();
    let lock = manager.locks.lock(&name);
    let lock = ended.run_until_cancelled(lock).await;
    let lock = lock.ok_or(VolumeError::Cancelled)?;
    let target = manager.root.flex_device(&device);
    let fail = |error: anyhow::Error| VolumeError::MountDevice {
        volume: spec.name.clone(),
        source: error,
    };
    let make = target.clone();
    run_file_io(move || make_dir(&make)).await?.map_err(fail)?;
    // Without it in the Node's list the volume would not be attached.
    let devices = manager.read_devices().await?;
    devices.context("cannot list the devices of flexVolumes").map_err(fail)?;
    let path = manager.csi.wait_until_attached(&name, ended).await?;
    let (flex, done) = (&manager.flex, |why| ended_or(ended, fail(anyhow!("{why}"))));
    let path = match flex.call(driver, "waitforattach", &[&path, options], ended).await {
        Ok(answer) if answer.device.is_empty() => path,
        Ok(answer) => answer.device,
        Err(CallError::NotSupported) => path,
        Err(CallError::Failed(why)) => return Err(done(why)),
    };
    let (mounter, at) = (manager.mounter.clone(), target.clone());
    let is_mounted = run_file_io(move || is_mounted(mounter.as_ref(), &at)).await?;
    if is_mounted.map_err(fail)? {
        return Ok(target);
    }
    let directory = target.to_string_lossy();
    let args = [&*directory, &path, options];
    match flex.call(driver, "mountdevice", &args, ended).await {
        Ok(_) => Ok(target),
        Err(CallError::Failed(why)) => Err(done(why)),
        Err(CallError::NotSupported) => {
            let disk = disk_of(attempt, spec, path).map_err(done)?;
            disk::mount(attempt, disk, target.clone(), lock).await?.map_err(done)?;
            Ok(target)
        }
    }
}

/// The disk of a driver that leaves `mountdevice` to the kubelet.
fn disk_of(attempt: &Attempt, spec: &FlexSpec, device: String) -> Result<Disk, String> {
    let Some(fs_type) = disk::fs_type(Some(&spec.fs_type)) else {
        return Err(format!("the file system {:?} is invalid", spec.fs_type));
    };
    if device.is_empty() {
        return Err("the volume is attached without a device path".to_owned());
    }
    Ok(Disk {
        mounter: attempt.manager.mounter.clone(),
        volume: spec.name.clone(),
        device,
        fs_type,
        options: disk::options(&[], spec.read_only),
        ended: attempt.pod.volumes.ended.clone(),
    })
}

impl VolumeManagerInner {
    /// Lists the devices of flexVolume drivers, which are the volumes in use, and reports them.
    async fn read_devices(&self) -> Result<io::Result<Vec<FlexDevice>>, JoinError> {
        let csi = self.csi.clone();
        run_file_io(move || csi.read_flex_devices()).await
    }
}

/// The devices of drivers.
pub(super) struct FlexDevices;

impl MountedDevices for FlexDevices {
    type Device = FlexDevice;

    fn kind(&self) -> &'static str {
        "flexVolume"
    }

    fn list(
        &self,
        manager: Arc<VolumeManagerInner>,
    ) -> BoxFuture<'static, io::Result<Vec<FlexDevice>>> {
        Box::pin(async move { manager.read_devices().await.map_err(io::Error::other)? })
    }

    fn lock_key(&self, _manager: &VolumeManagerInner, device: &FlexDevice) -> String {
        device.unique_name()
    }

    fn release<'a>(
        &'a self,
        manager: &'a Arc<VolumeManagerInner>,
        device: &'a FlexDevice,
    ) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(unmount(manager, device))
    }
}

/// Unmounts a device unless a pod uses it.
async fn unmount(manager: &Arc<VolumeManagerInner>, device: &FlexDevice) -> anyhow::Result<()> {
    let target = manager.root.flex_device(device);
    let check = {
        let (manager, device, target) = (manager.clone(), device.clone(), target.clone());
        move || -> anyhow::Result<Option<bool>> {
            if is_used(&manager, &device)? {
                return Ok(None);
            }
            is_mounted(manager.mounter.as_ref(), &target).map(Some)
        }
    };
    let Some(is_mounted) = run_file_io(check).await?? else {
        return Ok(());
    };
    // As upstream: the directory is made before the volume is attached, and its driver may know nothing of it.
    let is_left = is_mounted && unmount_by_driver(manager, device, &target).await?;
    let mounter = manager.mounter.clone();
    let remove = move || {
        if is_left {
            mounter.unmount(&target).with_context(cannot("unmount", &target))?;
        }
        remove_directory(&target)
    };
    spawn_blocking(remove).await??;
    manager.read_devices().await?.context("cannot list the devices of flexVolumes")?;
    Ok(())
}

/// Has the driver unmount a device. Returns whether it leaves that to the kubelet.
async fn unmount_by_driver(
    manager: &VolumeManagerInner,
    device: &FlexDevice,
    target: &Path,
) -> anyhow::Result<bool> {
    let driver = DriverName::parse(&device.driver).context("its driver has an invalid name")?;
    let driver = manager.flex.get(&driver).await;
    let driver = driver.map_err(anyhow::Error::msg)?.context("its driver is not installed")?;
    let (args, never) = ([&*target.to_string_lossy()], CancellationToken::new());
    let call = manager.flex.call(&driver, "unmountdevice", &args, &never);
    match call.await {
        Ok(_) => Ok(false),
        Err(CallError::NotSupported) => Ok(true),
        Err(CallError::Failed(why)) => Err(anyhow!(why)),
    }
}

/// Removes an empty directory, which the driver may have removed.
pub(super) fn remove_directory(directory: &Path) -> anyhow::Result<()> {
    let removed = crate::base::if_exists(fs::remove_dir(directory)).map(drop);
    removed.with_context(cannot("remove", directory))
}

/// Whether a pod has a directory of the volume. Blocking; nothing below a mount is read.
fn is_used(manager: &VolumeManagerInner, device: &FlexDevice) -> Result<bool, VolumeError> {
    let Some(driver) = DriverName::parse(&device.driver) else {
        return Ok(true);
    };
    for uid in pod_dirs::list(&manager.root)? {
        let volumes = manager.root.pod(&uid)?.volumes().join(driver.directory());
        let entries = crate::base::if_exists(fs::read_dir(&volumes));
        let entries = entries.map_err(io_error("list", &volumes))?;
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(io_error("list", &volumes))?;
            if entry.file_name() == *device.name {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
