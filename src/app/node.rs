//! What the process asks of the node before it starts.

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    path::Path,
};

/// A lock that is held as long as this lives.
pub(super) struct Lock {
    _file: File,
}

/// Waits for the lock file, if one is configured.
pub(super) async fn take_lock(path: Option<&Path>) -> anyhow::Result<Option<Lock>> {
    let Some(path) = path.map(Path::to_path_buf) else {
        return Ok(None);
    };
    let shown = path.display().to_string();
    tracing::info!(path = shown, "Acquiring the file lock");
    let taken = tokio::task::spawn_blocking(move || -> std::io::Result<File> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    });
    let file = taken
        .await?
        .with_context(|| format!("cannot lock {shown}"))?;
    Ok(Some(Lock { _file: file }))
}

/// Tells the kernel how gladly it may kill the kubelet. Without the right to, it stays as it is.
pub(super) fn set_oom_score_adj(value: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", value.to_string()) {
        tracing::warn!(value, err = %error, "Cannot set the kubelet's own oom_score_adj");
    }
}
