//! Checks and settings of the process and its node before it starts.

use super::cluster_node;
use crate::{
    config::KubeletConfig,
    host::{self, HostMachine},
    resources::NodeFacts,
};
use anyhow::Context as _;
use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use std::{
    fs::{File, OpenOptions},
    path::Path,
};

/// Refuses to start on cgroup v1 or with swap unless the configuration allows it, as upstream.
pub(super) fn check(config: &KubeletConfig, machine: &HostMachine) -> anyhow::Result<()> {
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

/// The lock file, locked until this is dropped.
pub(super) struct Lock {
    _file: File,
    /// Events of the file, if it is watched for contention.
    events: Option<EventStream<[u8; 1024]>>,
}

impl Lock {
    /// Ends when another process opens the file, as one does that wants the lock, or when it is gone
    /// (upstream's `watchForLockfileContention`); never when it is not watched.
    pub(super) async fn contention(&mut self) {
        if let Some(events) = &mut self.events {
            match events.next().await {
                Some(Ok(_)) => return,
                ended => {
                    tracing::warn!(err = ?ended.and_then(Result::err), "Failed to watch the lock file; contention is no longer detected")
                }
            }
        }
        std::future::pending().await
    }
}

/// Waits for the lock file, if one is configured; `watch` is for [`Lock::contention`].
pub(super) async fn take_lock(path: Option<&Path>, watch: bool) -> anyhow::Result<Option<Lock>> {
    let Some(path) = path.map(Path::to_path_buf) else {
        return Ok(None);
    };
    let shown = path.display().to_string();
    tracing::info!(path = shown, "Acquiring the file lock");
    let taken = tokio::task::spawn_blocking(move || -> std::io::Result<_> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let watched = || {
            let inotify = Inotify::init()?;
            let mask = WatchMask::OPEN | WatchMask::DELETE_SELF;
            inotify.watches().add(&path, mask)?;
            Ok::<_, std::io::Error>(inotify)
        };
        Ok((file, watch.then(watched).transpose()?))
    });
    let (file, inotify) = taken
        .await?
        .with_context(|| format!("cannot lock {shown}"))?;
    let events = inotify.map(|inotify| inotify.into_event_stream([0; 1024]));
    Ok(Some(Lock {
        _file: file,
        events: events.transpose().context("cannot watch the lock file")?,
    }))
}

/// Sets the kubelet's `oom_score_adj`; a failure is logged.
pub(super) fn set_oom_score_adj(value: i32) {
    let set = host::ProcDir::default().set_oom_score_adj(std::process::id(), value);
    if let Err(error) = set {
        tracing::warn!(value, err = %error, "Failed to set the kubelet's oom_score_adj");
    }
}

/// Sets the limit of open files (`maxOpenFiles`), or the highest limit that is allowed. Zero leaves it unchanged.
pub(super) fn allow_open_files(wanted: u64) {
    if wanted == 0 {
        return;
    }
    let before = getrlimit(Resource::Nofile);
    let set = |limit| setrlimit(Resource::Nofile, limit);
    if let Err(error) = set(raised(before.maximum, wanted)) {
        tracing::warn!(wanted, may = ?before.maximum, err = %error, "Failed to set RLIMIT_NOFILE to maxOpenFiles; using the allowed maximum");
        let most = before.maximum.map_or(wanted, |most| most.min(wanted));
        if let Err(error) = set(raised(before.maximum, most)) {
            tracing::warn!(err = %error, "Failed to raise RLIMIT_NOFILE");
        }
    }
}

/// The limits for `wanted` files. The hard limit, which child processes inherit, is not lowered.
fn raised(maximum: Option<u64>, wanted: u64) -> Rlimit {
    Rlimit {
        current: Some(wanted),
        maximum: maximum.map(|most| most.max(wanted)),
    }
}

/// Facts of the node, gathered once and outside any pod's path (P-43).
pub(super) fn facts(config: &KubeletConfig, machine: &HostMachine) -> anyhow::Result<NodeFacts> {
    let there = config.root_dir.ancestors().find(|path| path.exists());
    let storage = host::filesystem_bytes(there.unwrap_or(&config.root_dir))
        .with_context(|| format!("cannot read {}", config.root_dir.display()))?;
    let facts = NodeFacts::of(machine, storage, &config.node_ips);
    let huge_pages = host::huge_pages().into_iter();
    let huge_pages = huge_pages.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
    let huge_pages = i64::try_from(huge_pages).unwrap_or(i64::MAX);
    let reservation = &config.node.reservation;
    Ok(cluster_node::reserve(facts, reservation, huge_pages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn the_limit_of_open_files_is_raised_and_the_hard_limit_never_lowered() {
        let rows = [
            (Some(4096), 1024, (1024, Some(4096))),
            (Some(4096), 8192, (8192, Some(8192))),
            (None, 8192, (8192, None)),
        ];
        for (maximum, wanted, (current, most)) in rows {
            let limit = raised(maximum, wanted);
            assert_eq!((limit.current, limit.maximum), (Some(current), most));
        }
    }

    #[tokio::test]
    async fn opening_a_watched_lock_file_is_contention() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let take = async |watch| take_lock(Some(&path), watch).await.unwrap().unwrap();
        let mut unwatched = take(false).await;
        File::open(&path).unwrap();
        assert!(unwatched.contention().now_or_never().is_none());
        drop(unwatched);
        let mut watched = take(true).await;
        assert!(watched.contention().now_or_never().is_none());
        File::open(&path).unwrap();
        let patience = std::time::Duration::from_secs(60);
        let noticed = tokio::time::timeout(patience, watched.contention());
        noticed.await.unwrap();
    }
}
