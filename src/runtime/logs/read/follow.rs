//! Following one log from where its history ends: over rotations, until the container has ended.
//!
//! A follower reads for itself and holds one open file. It is woken by the watch on the directory, which the
//! followers of all logs in it share.

use super::history::{self, LiveLog, ReadStart};
use super::step::{Idle, ReadStep, step};
use super::watch::WatchedDirectory;
use super::{LogOptions, blocking};
use crate::base::clock::{self, Instant};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// When to check again without any event: events may be lost, and some file systems have none.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The same without a watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A log is complete once its container has ended and nothing was written for so long: the runtime still
/// writes what it has buffered.
const QUIET_END: Duration = Duration::from_millis(200);

/// One reader that follows a log.
pub(super) struct Follower {
    log: PathBuf,
    directory: Arc<WatchedDirectory>,
    /// The file that it reads; none before the runtime has created one.
    live: Option<Arc<LiveLog>>,
    offset: u64,
    changes: watch::Receiver<u64>,
    ended: BoxFuture<'static, ()>,
    /// When it was known that the container has ended.
    ended_at: Option<Instant>,
    /// When the first check began that found nothing at this offset.
    idle_since: Option<Instant>,
}

/// What a follower reads next.
pub(super) enum Piece {
    /// Bytes of the file.
    Bytes(Bytes),
    /// The end of one file; another one follows.
    FileEnd,
}

impl Follower {
    /// Begins where the options say. `ended` completes when the container has ended.
    pub(super) async fn begin(
        log: PathBuf,
        directory: Arc<WatchedDirectory>,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> io::Result<(ReadStart, Self)> {
        let changes = directory.changes();
        let path = log.clone();
        let (live, start) = blocking(move || {
            let live = history::open_live(&path)?;
            let length = match &live {
                Some(live) => live.segment.file.metadata()?.len(),
                None => 0,
            };
            let start = history::start(&path, live.as_ref(), length, &options)?;
            Ok((live, start))
        })
        .await?;
        let follower = Self {
            log,
            directory,
            live: live.map(Arc::new),
            offset: start.offset,
            changes,
            ended,
            ended_at: None,
            idle_since: None,
        };
        Ok((start, follower))
    }

    /// Waits for the next piece. `None` when the log is complete.
    pub(super) async fn next(&mut self) -> io::Result<Option<Piece>> {
        loop {
            // Before the check, so that a change during it is not missed.
            self.changes.borrow_and_update();
            let checked = clock::instant();
            let idle = match self.check().await? {
                ReadStep::Data(bytes) => {
                    self.offset += bytes.len() as u64;
                    self.idle_since = None;
                    return Ok(Some(Piece::Bytes(bytes)));
                }
                ReadStep::Next(live) => {
                    let before = self.live.replace(Arc::new(live));
                    self.offset = 0;
                    self.idle_since = None;
                    if before.is_some() {
                        return Ok(Some(Piece::FileEnd));
                    }
                    continue;
                }
                ReadStep::Idle(idle) => idle,
            };
            self.idle_since.get_or_insert(checked);
            let ended = self.ended_at.is_some_and(|ended| checked >= ended);
            if ended && !idle.rotated && idle.quiet >= QUIET_END {
                return Ok(None);
            }
            self.wait(checked, idle).await;
        }
    }

    // `&mut`, because the future must be `Send` and `ended` is not `Sync`.
    async fn check(&mut self) -> io::Result<ReadStep> {
        let (log, live, offset) = (self.log.clone(), self.live.clone(), self.offset);
        let idle_for = self.idle_since.map_or(Duration::ZERO, clock::since);
        let closed = self.directory.closed();
        blocking(move || match live {
            Some(live) => step(&log, &live, offset, idle_for, &closed),
            None => Ok(match history::open_live(&log)? {
                Some(live) => ReadStep::Next(live),
                None => ReadStep::Idle(Idle { quiet: Duration::MAX, rotated: false, again: None }),
            }),
        })
        .await
    }

    /// Waits until a check makes sense again.
    async fn wait(&mut self, checked: Instant, idle: Idle) {
        let interval = if self.directory.is_watched() { CHECK_INTERVAL } else { POLL_INTERVAL };
        let mut until = clock::instant() + idle.again.unwrap_or(interval).min(interval);
        if self.ended_at.is_some() && !idle.rotated {
            until = until.min(checked + QUIET_END.saturating_sub(idle.quiet));
        }
        tokio::select! {
            changed = self.changes.changed() => {
                if changed.is_err() {
                    // The directory is never dropped before its followers; this must not spin if it is.
                    sleep(POLL_INTERVAL).await;
                }
            }
            () = sleep_until(until) => {}
            () = &mut self.ended, if self.ended_at.is_none() => self.ended_at = Some(clock::instant()),
        }
    }
}
