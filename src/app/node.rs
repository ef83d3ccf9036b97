//! What the process asks of the node before it starts.

use crate::{config::KubeletConfig, host::Machine};
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
    /// What becomes of the file, if that is to be watched.
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
                    tracing::warn!(err = ?ended.and_then(Result::err), "Nobody watches the lock file any more")
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

/// Tells the kernel how gladly it may kill the kubelet. Without the right to, it stays as it is.
pub(super) fn set_oom_score_adj(value: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", value.to_string()) {
        tracing::warn!(value, err = %error, "Cannot set the kubelet's own oom_score_adj");
    }
}

/// Lets the kubelet have so many files open (upstream's `SetNumFiles`), or as many as it has the right to.
pub(super) fn set_open_files(most: u64) {
    let before = getrlimit(Resource::Nofile);
    let hard = before.maximum.unwrap_or(u64::MAX);
    let both = |current: u64, maximum: Option<u64>| Rlimit {
        current: Some(current),
        maximum,
    };
    let raised = match hard < most {
        true => setrlimit(Resource::Nofile, both(most, Some(most))),
        false => setrlimit(Resource::Nofile, both(most, before.maximum)),
    };
    let settled = raised.or_else(|_| {
        let most = most.min(hard);
        setrlimit(Resource::Nofile, both(most, before.maximum))
    });
    if let Err(error) = settled {
        tracing::warn!(most, err = %error, "Cannot set how many files the kubelet may have open");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn who_opens_the_lock_file_is_noticed_where_that_is_wanted() {
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
