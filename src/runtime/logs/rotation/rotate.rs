//! Carries out one rotation.

use super::plan::{self, RotationPlan, RotationPolicy};
use crate::base::{clock, error_chain, if_exists, spawn_blocking};
use crate::cri::RuntimeClient;
use crate::model::ContainerId;
use crate::runtime::logs::files;
use crate::runtime::logs::names::{GZIP, UNFINISHED};
use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Bytes compressed between two looks whether the kubelet is to stop.
const BLOCK: usize = 256 * 1024;

/// A log to rotate.
#[derive(Clone)]
pub(super) struct RotationJob {
    pub(super) runtime: RuntimeClient,
    pub(super) id: ContainerId,
    pub(super) log: PathBuf,
    pub(super) policy: RotationPolicy,
    /// Compressing may be cut short; it is made up for at the next rotation.
    pub(super) shutdown: CancellationToken,
}

/// Rotates a log. Takes a place of `workers` for each of its two halves, so that no log waits for the
/// compression of another's.
pub(super) async fn rotate(job: RotationJob, workers: &Semaphore) -> anyhow::Result<()> {
    let plan = {
        let _place = workers.acquire().await?;
        move_aside(&job).await?
    };
    let _place = workers.acquire().await?;
    spawn_blocking(move || {
        for name in plan.excess {
            let file = job.log.with_file_name(&name);
            if let Err(error) = if_exists(fs::remove_file(&file)) {
                tracing::warn!(file = %file.display(), err = %error_chain(&error), "Failed to remove a rotated log");
            }
        }
        for name in plan.compress {
            if job.shutdown.is_cancelled() {
                return;
            }
            let file = job.log.with_file_name(&name);
            if let Err(error) = compress_file(&file, &job.shutdown) {
                tracing::warn!(file = %file.display(), err = %error_chain(&error), "Failed to compress a rotated log");
            }
        }
    })
    .await?;
    Ok(())
}

/// Renames the log and has the runtime make a new one. Returns the plan, of which the rest is to be done.
async fn move_aside(job: &RotationJob) -> anyhow::Result<RotationPlan> {
    let (log, policy) = (job.log.clone(), job.policy);
    let plan = spawn_blocking(move || rename(&log, policy)).await??;
    let rotated = job.log.with_file_name(&plan.rotate_to);
    let Err(error) = job.runtime.reopen_container_log(job.id.as_str()).await else {
        tracing::debug!(containerID = %job.id, log = %job.log.display(), "Rotated a container's log");
        return Ok(plan);
    };
    let log = job.log.clone();
    let put_back = spawn_blocking(move || put_back(&rotated, &log)).await?;
    match put_back {
        // The runtime failed to say so, but it has made a new log.
        Ok(false) => Ok(plan),
        Ok(true) => Err(error).context("cannot reopen the log; it was put back"),
        Err(back) => Err(anyhow::Error::from(error)
            .context(format!("cannot reopen the log, nor put it back: {back}"))),
    }
}

/// Blocks.
fn rename(log: &Path, policy: RotationPolicy) -> anyhow::Result<RotationPlan> {
    let name = files::log_name(log)?;
    let plan = plan::plan(name, &files::rotated(log)?, policy, clock::local_time().datetime())
        .context("there is no later name for a rotated log")?;
    for name in &plan.leftovers {
        let removed = if_exists(fs::remove_file(log.with_file_name(name)));
        removed.with_context(|| format!("cannot remove {name}"))?;
    }
    fs::rename(log, log.with_file_name(&plan.rotate_to))
        .with_context(|| format!("cannot rename the log to {}", plan.rotate_to))?;
    Ok(plan)
}

/// Gives a log its name back, unless there is a new one: the runtime may have made it after all, and
/// have written to it. Returns whether it was given back. Blocks.
pub(super) fn put_back(rotated: &Path, log: &Path) -> io::Result<bool> {
    match renameat_with(CWD, rotated, CWD, log, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(Errno::INVAL | Errno::NOSYS) => {
            if log.try_exists()? {
                Ok(false)
            } else {
                fs::rename(rotated, log).map(|()| true)
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Puts a compressed file in the place of a rotated one: complete, with its mode and time. Blocks.
pub(in crate::runtime::logs) fn compress_file(
    file: &Path,
    shutdown: &CancellationToken,
) -> io::Result<()> {
    let Some((source, metadata)) = if_exists(files::open(file))? else {
        return Ok(());
    };
    let with_ending = |ending: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let detached = with_ending(UNFINISHED);
    if_exists(fs::remove_file(&detached))?;
    let target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(metadata.permissions().mode() & 0o777)
        .open(&detached)?;
    let done = write_compressed(source, &target, shutdown).and_then(|complete| {
        // Gone with its container meanwhile.
        if !complete || !file.try_exists()? {
            return Ok(false);
        }
        if let Ok(modified) = metadata.modified() {
            target.set_times(FileTimes::new().set_modified(modified))?;
        }
        target.sync_all()?;
        fs::rename(&detached, with_ending(GZIP))?;
        Ok(true)
    });
    match done {
        Ok(true) => if_exists(fs::remove_file(file)).map(drop),
        Ok(false) => if_exists(fs::remove_file(&detached)).map(drop),
        Err(error) => {
            // It would be removed at the next rotation, but its space may be what is missing.
            let _ = fs::remove_file(&detached);
            Err(error)
        }
    }
}

/// Returns false when it was cut short.
fn write_compressed(
    mut source: File,
    target: &File,
    shutdown: &CancellationToken,
) -> io::Result<bool> {
    let mut encoder = GzEncoder::new(target, Compression::default());
    loop {
        if shutdown.is_cancelled() {
            return Ok(false);
        }
        let block = &mut source.by_ref().take(BLOCK as u64);
        if io::copy(block, &mut encoder)? == 0 {
            encoder.finish()?;
            return Ok(true);
        }
    }
}
