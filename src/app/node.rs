//! What the process asks of the node before it starts.

use crate::{config::KubeletConfig, host::Machine};
use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    path::Path,
};

/// Refuses a node that the configuration rules out, as upstream does.
pub(super) fn check(config: &KubeletConfig, machine: &Machine) -> anyhow::Result<()> {
    anyhow::ensure!(
        machine.cgroup_v2 || !config.fail_cgroup_v1,
        "this host uses cgroup v1, which failCgroupV1 (default true) rules out; set it to false to run here"
    );
    anyhow::ensure!(
        !machine.swap_on || !config.fail_swap_on,
        "running with swap on is not supported: disable swap, or set failSwapOn to false"
    );
    Ok(())
}

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
