//! A device that is mounted once on the node is bound for each pod, which may give the files its group.

use super::programs;
use crate::base::{run_file_io, spawn_blocking};
use crate::host::program::Program;
use crate::volumes::error::cannot;
use crate::volumes::ownership::{self, ChangePolicy, OwnershipWalk};
use crate::volumes::pod_volumes::Attempt;
use crate::volumes::{Mounter, VolumeError, VolumeGroup, pod_dirs};
use anyhow::Context as _;
use rustix::fd::AsRawFd as _;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Timeout of `mount` for a bind mount.
const BIND_LIMIT: Duration = Duration::from_secs(60);
/// How long a walk over the files of a volume may take to end with its pod.
const WALK_END_TIMEOUT: Duration = Duration::from_secs(10);

/// The output of a program that was killed because its pod has ended is dropped.
pub(super) fn ended_or(ended: &CancellationToken, error: VolumeError) -> VolumeError {
    if ended.is_cancelled() { VolumeError::Cancelled } else { error }
}

/// Whether the path is a mount point, as the kernel lists it: the path itself may hang.
pub(super) fn is_mounted(mounter: &dyn Mounter, target: &Path) -> anyhow::Result<bool> {
    let mounts = mounter.list().with_context(cannot("read the mounts of", target))?;
    Ok(mounts.iter().any(|mount| mount.mount_point == target))
}

/// Makes the directory of a pod's volume, unless something is mounted there; whether that is so. `volume` is the name in
/// errors.
pub(super) async fn prepare(
    attempt: &Attempt,
    volume: &str,
    target: &Path,
) -> Result<bool, VolumeError> {
    let (pod, mounter) = (attempt.pod.clone(), attempt.manager.mounter.clone());
    let at = target.to_owned();
    let prepare = move || -> Result<anyhow::Result<bool>, VolumeError> {
        let _creating = pod.volumes.creation_guard()?;
        Ok(prepare_target(mounter.as_ref(), &at))
    };
    run_file_io(prepare).await??.map_err(|error| VolumeError::set_up(volume, error))
}

/// Blocking.
fn prepare_target(mounter: &dyn Mounter, target: &Path) -> anyhow::Result<bool> {
    if is_mounted(mounter, target)? {
        return Ok(true);
    }
    if let Some(plugin) = target.parent() {
        pod_dirs::create_dir(plugin, 0o750)?;
    }
    pod_dirs::create_dir(target, 0o750)?;
    Ok(false)
}

/// Makes a directory and those above it. Blocking.
pub(super) fn make_dir(path: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o750).create(path);
    made.with_context(cannot("make directory", path))
}

/// Binds the directory of a mounted device.
pub(super) async fn bind(
    attempt: &Attempt,
    device: &Path,
    target: &Path,
) -> Result<anyhow::Result<()>, VolumeError> {
    // Opened first, because this may hang, and the teardown waits for what follows.
    let (threads, ended) = attempt.threads();
    let open = {
        let device = device.to_owned();
        move || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = rustix::fs::open(&device, flags, Mode::empty());
            opened.with_context(cannot("open", &device))
        }
    };
    let opened = threads.run(device.to_owned(), &[], &ended, open);
    let opened = ended.run_until_cancelled(opened).await;
    let opened = match opened.ok_or(VolumeError::Cancelled)?? {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(error)),
    };
    let (pod, mounter) = (attempt.pod.clone(), attempt.manager.mounter.clone());
    let target = target.to_owned();
    let bind = move || -> Result<anyhow::Result<()>, VolumeError> {
        let _creating = pod.volumes.creation_guard()?;
        let source = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let bound = mounter.bind(&source, &target);
        Ok(bound.with_context(cannot("bind onto", &target)))
    };
    spawn_blocking(bind).await?
}

/// Remounts a bind mount with its options: `args` are those of `mount`.
///
/// # Errors
/// The text of `mount`.
pub(super) async fn remount(attempt: &Attempt, args: &[String]) -> Result<(), String> {
    let (mounter, ended) = (&attempt.manager.mounter, &attempt.pod.volumes.ended);
    let program =
        Program { ended: ended.clone(), ..Program::new(programs::MOUNT, args, BIND_LIMIT) };
    let end = mounter.execute(program).await;
    programs::success(programs::MOUNT, end).map_err(|failure| failure.of_mount(args))
}

/// Unmounts a bind mount that must not be used, because it lacks its options.
pub(super) async fn unbind(attempt: &Attempt, target: &Path) -> Result<(), VolumeError> {
    let (mounter, target) = (attempt.manager.mounter.clone(), target.to_owned());
    let _ = spawn_blocking(move || mounter.unmount(&target)).await?;
    Ok(())
}

/// Gives the files of a bound volume to the pod's group. That ends with the pod.
pub(super) async fn set_group(
    attempt: &Attempt,
    volume: &str,
    owner: (VolumeGroup, ChangePolicy),
    target: &Path,
) -> Result<(), VolumeError> {
    let (directory, name) = (attempt.pod.directory.clone(), volume.to_owned());
    let (path, walk) = (target.to_owned(), Arc::new(OwnershipWalk::default()));
    let (threads, ended) = attempt.threads();
    let give = {
        let walk = walk.clone();
        move || ownership::set_up(&directory, &name, &path, owner, || false, &walk)
    };
    let mut given = std::pin::pin!(threads.run(target.to_owned(), &[], &ended, give));
    let given = tokio::select! {
        given = &mut given => given?,
        () = ended.cancelled() => {
            walk.cancel();
            // What is being read cannot be unmounted. A file system that hangs keeps the thread.
            let _ = timeout(WALK_END_TIMEOUT, given).await;
            return Err(VolumeError::Cancelled);
        }
    };
    given.map_err(|error| VolumeError::set_up(volume, error))
}
