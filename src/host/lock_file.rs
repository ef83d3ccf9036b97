//! The lock file, which prevents two kubelets from running on one machine.

use crate::base::spawn_blocking;
use anyhow::Context as _;
use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// The lock file; the lock is released when this is dropped.
pub struct LockFile {
    _file: File,
    /// inotify events of the file, if it is watched for contention.
    events: Option<EventStream<[u8; 1024]>>,
}

impl LockFile {
    /// Returns when another process opens the file, which means that it waits for the lock, or when the file is
    /// removed (upstream's `watchForLockfileContention`). Never returns if the file is not watched.
    pub async fn contention(&mut self) {
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

/// Acquires the lock file, if one is configured; waits for the lock. `watch` enables [`LockFile::contention`].
pub async fn take_lock(path: Option<&Path>, watch: bool) -> anyhow::Result<Option<LockFile>> {
    let Some(path) = path.map(Path::to_path_buf) else {
        return Ok(None);
    };
    let shown = path.display().to_string();
    tracing::info!(path = shown, "Acquiring the file lock");
    let taken = spawn_blocking(move || -> std::io::Result<_> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let watched = || {
            let inotify = Inotify::init()?;
            let mask = WatchMask::OPEN | WatchMask::DELETE_SELF;
            inotify.watches().add(&path, mask)?;
            Ok::<_, std::io::Error>(inotify)
        };
        Ok((file, watch.then(watched).transpose()?))
    });
    let (file, inotify) = taken.await?.with_context(|| format!("cannot lock {shown}"))?;
    let events = inotify.map(|inotify| inotify.into_event_stream([0; 1024]));
    Ok(Some(LockFile {
        _file: file,
        events: events.transpose().context("cannot watch the lock file")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

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
