//! Volumes of flexVolume drivers that are attached: their device is mounted once on the node.
//!
//! The directory of a device is the record that it is in use: it is created before the volume is attached, and removed
//! when the device is unmounted. So the next kubelet knows what to undo, also of pods that it never sees.

use super::{
    FlexSpec,
    drivers::FlexDriver,
    protocol::{CallError, DriverName},
};
use crate::base::{panics::PanicScope, run_file_io, spawn};
use crate::volumes::{
    FlexDevice, VolumeError, VolumeManagerInner,
    error::{cannot, io_error},
    kinds::{
        disk::{self, Disk},
        local::RELEASE_TIMEOUT,
    },
    pod_dirs,
    pod_volumes::Attempt,
};
use anyhow::{Context as _, anyhow};
use futures::future::join_all;
use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{task::spawn_blocking, time::timeout};
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
    let _lock = lock.ok_or(VolumeError::Cancelled)?;
    let target = manager.root.flex_device(&device);
    let fail = |error: anyhow::Error| VolumeError::MountDevice {
        volume: spec.name.clone(),
        source: error,
    };
    let make = target.clone();
    let made = run_file_io(move || {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o750).create(&make);
        made.with_context(cannot("make directory", &make))
    });
    made.await?.map_err(fail)?;
    manager.report_devices().await?;
    let path = manager.csi.wait_until_attached(&name, ended).await?;
    let (flex, done) = (&manager.flex, |why| ended_or(ended, fail(anyhow!("{why}"))));
    let path = match flex
        .call(driver, "waitforattach", &[&path, options], ended)
        .await
    {
        Ok(answer) if answer.device.is_empty() => path,
        Ok(answer) => answer.device,
        Err(CallError::NotSupported) => path,
        Err(CallError::Failed(why)) => return Err(done(why)),
    };
    let (mounter, at) = (manager.mounter.clone(), target.clone());
    let is_mounted = run_file_io(move || super::is_mounted(mounter.as_ref(), &at)).await?;
    if is_mounted.map_err(fail)? {
        return Ok(target);
    }
    let directory = target.to_string_lossy();
    let args = [&*directory, &path, options];
    match flex.call(driver, "mountdevice", &args, ended).await {
        Ok(_) => Ok(target),
        Err(CallError::Failed(why)) => Err(done(why)),
        Err(CallError::NotSupported) => {
            let mounted = mount_disk(manager.clone(), spec.clone(), path, target.clone(), ended);
            mounted.await?.map_err(|why| fail(anyhow!(why)))?;
            Ok(target)
        }
    }
}

/// What a program that was killed because its pod has ended has to say is nobody's.
pub(super) fn ended_or(ended: &CancellationToken, error: VolumeError) -> VolumeError {
    if ended.is_cancelled() {
        VolumeError::Cancelled
    } else {
        error
    }
}

/// What the kubelet does for a driver that leaves `mountdevice` to it.
async fn mount_disk(
    manager: Arc<VolumeManagerInner>,
    spec: FlexSpec,
    device: String,
    target: PathBuf,
    ended: &CancellationToken,
) -> Result<Result<(), String>, VolumeError> {
    let Some(fs_type) = disk::fs_type(Some(&spec.fs_type)) else {
        return Ok(Err(format!(
            "the file system {:?} is invalid",
            spec.fs_type
        )));
    };
    if device.is_empty() {
        return Ok(Err(
            "the volume is attached without a device path".to_owned()
        ));
    }
    // The programs may keep the thread for hours.
    let permit = manager.local_threads.clone().acquire_owned();
    let permit = ended.run_until_cancelled(permit).await;
    let permit = permit.ok_or(VolumeError::Cancelled)?;
    let mount = move || {
        let _held = permit;
        let disk = Disk {
            mounter: manager.mounter.as_ref(),
            volume: &spec.name,
            device: &device,
            fs_type: &fs_type,
            options: disk::options(&[], spec.read_only),
        };
        disk.format_and_mount(&target)
    };
    Ok(spawn_blocking(mount).await?)
}

impl VolumeManagerInner {
    /// Reports the volumes of flexVolume drivers that are in use.
    async fn report_devices(&self) -> Result<(), VolumeError> {
        let csi = self.csi.clone();
        Ok(run_file_io(move || csi.read_flex_devices()).await?)
    }
}

/// Unmounts the devices that no pod uses any more. If that takes long, it continues in the background.
pub(super) async fn release(manager: Arc<VolumeManagerInner>) {
    let release = async move {
        let root = manager.root.clone();
        let devices = run_file_io(move || root.flex_devices()).await;
        let devices = devices.unwrap_or_default().into_iter();
        join_all(devices.map(|device| release_device(manager.clone(), device))).await;
    };
    let _ = timeout(RELEASE_TIMEOUT, spawn(PanicScope::Sync, release)).await;
}

async fn release_device(manager: Arc<VolumeManagerInner>, device: FlexDevice) {
    let name = device.unique_name();
    // Who holds it uses the device.
    let Some(_lock) = manager.locks.try_lock(&name) else {
        return;
    };
    if let Err(error) = unmount(&manager, &device).await {
        let why = format!("{error:#}");
        tracing::warn!(
            volume = name,
            err = why,
            "Failed to unmount the device of a flexVolume"
        );
    }
}

async fn unmount(manager: &Arc<VolumeManagerInner>, device: &FlexDevice) -> anyhow::Result<()> {
    let target = manager.root.flex_device(device);
    let check = {
        let (manager, device) = (manager.clone(), device.clone());
        run_file_io(move || is_used(&manager, &device))
    };
    if check.await?? {
        return Ok(());
    }
    let driver = DriverName::parse(&device.driver).context("its driver has an invalid name")?;
    let driver = manager
        .flex
        .get(&driver)
        .await
        .map_err(anyhow::Error::msg)?;
    let driver = driver.context("its driver is not installed")?;
    let (args, never) = ([&*target.to_string_lossy()], CancellationToken::new());
    let called = manager
        .flex
        .call(&driver, "unmountdevice", &args, &never)
        .await;
    let is_left = match called {
        Ok(_) => false,
        Err(CallError::NotSupported) => true,
        Err(CallError::Failed(why)) => return Err(anyhow!(why)),
    };
    let mounter = manager.mounter.clone();
    let remove = move || {
        if is_left {
            mounter
                .unmount(&target)
                .with_context(cannot("unmount", &target))?;
        }
        remove_directory(&target)
    };
    spawn_blocking(remove).await??;
    manager.report_devices().await?;
    Ok(())
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
        let mut names = entries.into_iter().flatten().flatten();
        if names.any(|entry| entry.file_name() == *device.name) {
            return Ok(true);
        }
    }
    Ok(false)
}
