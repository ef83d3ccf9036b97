//! A log as a stream of bytes, which are read when the stream is polled.

use super::follow::{Follower, Piece};
use super::history::{self, Older, ReadStart};
use super::segment::{BLOCK, Cursor};
use super::watch::LogWatcher;
use super::{Decoder, LogOptions, blocking};
use crate::runtime::logs::files;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, Stream};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::sleep;

/// How much of older files is read at once when nothing of it is selected.
const MAX_CHUNK_BYTES: usize = 4 << 20;
/// How often to check for the directory of a log to follow that does not exist yet.
const DIRECTORY_INTERVAL: Duration = Duration::from_millis(200);

/// Opens logs for reading. Clones share the watches of followers.
#[derive(Clone, Default)]
pub struct Logs {
    watcher: Arc<LogWatcher>,
}

/// What a container wrote, in pieces of at most about 128 KiB that end anywhere. A piece is read when it
/// is polled for, so a reader that stops costs its open files and no more. Dropping it ends it.
pub struct LogStream {
    inner: BoxStream<'static, io::Result<Bytes>>,
}

impl Stream for LogStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.as_mut().poll_next(context)
    }
}

impl Logs {
    /// No log is open yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the log at `log` (an absolute path), rotated files included as far as the options reach. Neither
    /// the log nor the two directories around it, its container's and its pod's, may be links.
    /// With `follow` it goes on until `ended` completes and everything is read; without, it ends where
    /// the log ended when it was opened, and `ended` is not waited for.
    ///
    /// # Errors
    /// Those of opening and reading files. Without `follow`, a log that does not exist is "not found";
    /// with it, it is waited for. A rotated file that cannot be read is left out with a warning.
    pub async fn open(
        &self,
        log: PathBuf,
        options: LogOptions,
        ended: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<LogStream> {
        let decoder = Decoder::new(&options);
        let (start, follower) = if options.follow {
            let (start, follower) = self.follow(log, options, ended.boxed()).await?;
            (start, Some(follower))
        } else {
            (snapshot(log, options).await?, None)
        };
        let reader = LogReader { older: start.older, follower, decoder };
        Ok(LogStream { inner: Box::pin(stream::unfold(Some(reader), LogReader::step)) })
    }

    /// How many directories are watched.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.watcher.watched()
    }

    async fn follow(
        &self,
        log: PathBuf,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> io::Result<(ReadStart, Follower)> {
        let ended = ended.shared();
        await_directory(&log, ended.clone()).await?;
        let (watcher, path) = (self.watcher.clone(), log.clone());
        let watch = move || Ok(watcher.watch(path.parent().unwrap_or(Path::new("/"))));
        let directory = blocking(watch).await?;
        Follower::begin(log, directory, options, ended.boxed()).await
    }
}

/// Waits for the directory of a log, in which all there is of it will be.
async fn await_directory(log: &Path, ended: impl Future<Output = ()>) -> io::Result<()> {
    files::log_name(log)?;
    tokio::pin!(ended);
    loop {
        let path = log.to_owned();
        if blocking(move || files::has_directory(&path)).await? {
            return Ok(());
        }
        tokio::select! {
            () = sleep(DIRECTORY_INTERVAL) => {}
            () = &mut ended => return Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// All of a log as it is now.
async fn snapshot(log: PathBuf, options: LogOptions) -> io::Result<ReadStart> {
    blocking(move || {
        let live = history::open_live(&log)?;
        let length = match &live {
            Some(live) => live.segment.file.metadata()?.len(),
            None => 0,
        };
        let mut start = history::start(&log, live.as_ref(), length, &options)?;
        match live {
            Some(live) => start.older.push_back(Older {
                name: files::log_name(&log)?.to_owned(),
                cursor: Cursor::Plain { segment: live.segment, offset: start.offset, end: length },
            }),
            None if files::history(&log)?.is_empty() => {
                return Err(io::ErrorKind::NotFound.into());
            }
            None => {}
        }
        Ok(start)
    })
    .await
}

struct LogReader {
    older: VecDeque<Older>,
    follower: Option<Follower>,
    decoder: Decoder,
}

impl LogReader {
    /// The next piece and the reader after it; none after an error.
    async fn step(reader: Option<Self>) -> Option<(io::Result<Bytes>, Option<Self>)> {
        match reader?.next().await {
            Ok((reader, Some(bytes))) => Some((Ok(bytes), Some(reader))),
            Ok((_, None)) => None,
            Err(error) => Some((Err(error), None)),
        }
    }

    async fn next(mut self) -> io::Result<(Self, Option<Bytes>)> {
        loop {
            if self.decoder.is_done() {
                return Ok((self, None));
            }
            let mut out = Vec::new();
            if !self.older.is_empty() {
                (self, out) = blocking(move || self.read_older()).await?;
            } else {
                match &mut self.follower {
                    None => return Ok((self, None)),
                    Some(follower) => match follower.next().await? {
                        None => return Ok((self, None)),
                        Some(Piece::Bytes(bytes)) => self.decoder.feed(&bytes, &mut out),
                        Some(Piece::FileEnd) => self.decoder.end_file(&mut out),
                    },
                }
            }
            if !out.is_empty() {
                return Ok((self, Some(out.into())));
            }
        }
    }

    /// Reads older files until there is something to give. Blocks.
    fn read_older(mut self) -> io::Result<(Self, Vec<u8>)> {
        let (mut out, mut read) = (Vec::new(), 0);
        while let Some(file) = self.older.front_mut() {
            let bytes = file.cursor.read();
            let is_last = self.older.len() == 1 && self.follower.is_none();
            match bytes {
                Ok(bytes) if !bytes.is_empty() => {
                    read += bytes.len();
                    self.decoder.feed(&bytes, &mut out);
                    if out.len() >= BLOCK || read >= MAX_CHUNK_BYTES || self.decoder.is_done() {
                        break;
                    }
                    continue;
                }
                Ok(_) => {}
                Err(error) if is_last => return Err(error),
                Err(error) => {
                    let name = self.older.front().map(|file| file.name.clone());
                    tracing::warn!(file = name, err = %error, "Failed to read the rest of a rotated log, skipping it");
                }
            }
            self.older.pop_front();
            if !is_last {
                self.decoder.end_file(&mut out);
            }
        }
        Ok((self, out))
    }
}
