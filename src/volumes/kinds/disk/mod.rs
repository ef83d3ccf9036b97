//! Disks that are formatted if they are empty, checked and mounted.

mod rules;

pub(super) use rules::{device_options as options, fs_type};

use super::programs;
use crate::base::spawn_blocking;
use crate::host::program::Program;
use crate::volumes::pod_volumes::Attempt;
use crate::volumes::{Mounter, VolumeError};
use rules::DeviceStep;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// Timeout of programs that only read a little.
const SHORT_LIMIT: Duration = Duration::from_secs(60);
/// Timeout of programs that process a whole disk (`mkfs`, `fsck`).
const LONG_LIMIT: Duration = Duration::from_secs(60 * 60);
/// How many bytes of a device must be readable before it counts as empty.
const DEVICE_HEAD: usize = 4096;

/// A disk to mount.
pub(super) struct Disk {
    pub(super) mounter: Arc<dyn Mounter>,
    /// The name of its volume.
    pub(super) volume: String,
    /// The path of the device.
    pub(super) device: String,
    pub(super) fs_type: String,
    /// Its mount options; see [`options`].
    pub(super) options: Vec<String>,
    /// When this fires, the programs end and nothing is begun any more. Only what formats the disk goes on: half a file system
    /// could neither be mounted nor formatted again.
    pub(super) ended: CancellationToken,
}

/// Formats the disk if it is empty, and mounts it, on a thread. Nothing waits for the programs once the pod has ended, but the
/// disk stays locked until the last one has.
///
/// # Errors
/// The pod has ended; inside, as of [`Disk::format_and_mount`].
pub(super) async fn mount(
    attempt: &Attempt,
    disk: Disk,
    target: PathBuf,
    lock: OwnedMutexGuard<()>,
) -> Result<Result<OwnedMutexGuard<()>, String>, VolumeError> {
    let ended = &attempt.pod.volumes.ended;
    // The programs may keep the thread for hours.
    let permit = attempt.manager.local_threads.clone().acquire_owned();
    let permit = ended.run_until_cancelled(permit).await;
    let permit = permit.ok_or(VolumeError::Cancelled)?;
    let mount = move || {
        let _held = permit;
        disk.format_and_mount(&target).map(|()| lock)
    };
    let mounted = ended.run_until_cancelled(spawn_blocking(mount)).await;
    Ok(mounted.ok_or(VolumeError::Cancelled)??)
}

impl Disk {
    /// Formats the disk if it is empty, else checks it, and mounts it. Blocking.
    ///
    /// # Errors
    /// Upstream's texts.
    pub(super) fn format_and_mount(&self, target: &Path) -> Result<(), String> {
        let (device, fs_type, options) = (&self.device, &self.fs_type, &self.options);
        let found = self.format()?;
        self.is_wanted()?;
        match rules::device_step(found.as_deref(), rules::is_read_only(options)) {
            None => {
                return Err(format!(
                    "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
                ));
            }
            Some(DeviceStep::Format) => self.make_file_system(target)?,
            Some(DeviceStep::Check) => self.check()?,
            Some(DeviceStep::Nothing) => {}
        }
        self.is_wanted()?;
        if let Some(found) = found.filter(|found| found != fs_type) {
            tracing::warn!(
                volume = self.volume,
                device,
                fsType = fs_type,
                found,
                "Device has another file system than its volume requests"
            );
        }
        let args = rules::mount_args(device, fs_type, options, &target.to_string_lossy());
        programs::mount(self.mounter.as_ref(), &args, LONG_LIMIT, &self.ended)
    }

    fn is_wanted(&self) -> Result<(), String> {
        if self.ended.is_cancelled() {
            return Err("the pod does not want the volume any more".to_owned());
        }
        Ok(())
    }

    /// A program that ends early if the disk is not wanted any more.
    fn program(&self, name: &str, args: &[String], limit: Duration) -> Program {
        Program { ended: self.ended.clone(), ..Program::new(name, args, limit) }
    }

    /// The format of the device; `None` if it is empty.
    fn format(&self) -> Result<Option<String>, String> {
        let device = &self.device;
        let failed = |why| format!("failed to get disk format of disk {device}: {why}");
        let blkid = self.program("blkid", &rules::probe_args(device), SHORT_LIMIT);
        let end = programs::run(self.mounter.as_ref(), blkid);
        let found = end.and_then(|end| rules::format_of(&end)).map_err(failed)?;
        if found.is_none() {
            // `blkid` also finds nothing on a device that cannot be read.
            let read =
                fs::File::open(device).and_then(|mut it| it.read_exact(&mut [0; DEVICE_HEAD]));
            read.map_err(|error| failed(error.to_string()))?;
        }
        Ok(found)
    }

    fn make_file_system(&self, target: &Path) -> Result<(), String> {
        let (device, fs_type) = (&self.device, &self.fs_type);
        let (program, args) = rules::format_command(fs_type, device);
        tracing::info!(
            volume = self.volume,
            device,
            fsType = fs_type,
            "Formatting an empty device"
        );
        let end = self.mounter.run(Program::new(&program, &args, LONG_LIMIT));
        programs::success(&program, end).map_err(|failure| {
            format!(
                "format of disk {device:?} failed: type:({fs_type:?}) target:({:?}) options:({:?}) errcode:({}) output:({}) ",
                target.to_string_lossy(),
                self.options.join(","),
                failure.status,
                failure.output,
            )
        })
    }

    /// Checks the file system. It is not mounted only if errors are left.
    fn check(&self) -> Result<(), String> {
        let device = &self.device;
        let fsck = self.program("fsck", &rules::check_args(device), LONG_LIMIT);
        match programs::run(self.mounter.as_ref(), fsck) {
            Ok(end) if rules::has_errors_left(&end) => Err(format!(
                "'fsck' found errors on device {device} but could not correct them: {}",
                programs::output(&end)
            )),
            Ok(end) => {
                if end.code != Some(0) {
                    let (status, output) = (programs::status(&end), programs::output(&end));
                    tracing::warn!(volume = self.volume, device, status, output, "fsck has ended");
                }
                Ok(())
            }
            Err(error) => {
                tracing::warn!(volume = self.volume, device, err = error, "Failed to run fsck");
                Ok(())
            }
        }
    }
}
