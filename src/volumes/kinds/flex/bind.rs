//! What the kubelet does for a driver that leaves `mount` to it: the device's directory is bound for the pod.

use crate::host::program::Program;
use crate::volumes::{VolumeError, error::cannot, kinds::programs, pod_volumes::Attempt};
use anyhow::Context as _;
use rustix::{
    fd::AsRawFd as _,
    fs::{Mode, OFlags},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::task::spawn_blocking;

/// Timeout of `mount` for a bind mount.
const BIND_LIMIT: Duration = Duration::from_secs(60);

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

/// Makes a bind mount read-only, or unmounts it: it must not be used writable.
pub(super) async fn remount_read_only(
    attempt: &Attempt,
    device: &Path,
    target: &Path,
) -> Result<Result<(), String>, VolumeError> {
    let (mounter, ended) = (&attempt.manager.mounter, &attempt.pod.volumes.ended);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let args = [
        "-o".to_owned(),
        "bind,remount,ro".to_owned(),
        text(device),
        text(target),
    ];
    let program = Program {
        ended: ended.clone(),
        ..Program::new(programs::MOUNT, &args, BIND_LIMIT)
    };
    let end = mounter.execute(program).await;
    let Err(failure) = programs::success(programs::MOUNT, end) else {
        return Ok(Ok(()));
    };
    let (mounter, target) = (mounter.clone(), target.to_owned());
    let _ = spawn_blocking(move || mounter.unmount(&target)).await?;
    Ok(Err(failure.of_mount(&args)))
}
