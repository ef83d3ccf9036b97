//! Reading container logs: the options, where to begin, and how the log reaches the caller.
//!
//! A log is a chain of files: rotated ones, oldest first, then the one that the runtime writes to. A
//! reader decodes the chain piece by piece as its caller takes the pieces. A reader that follows holds one
//! open file and shares the watch on its directory ([`follow`]).

pub(super) mod choose;
mod container;
pub(super) mod decode;
mod follow;
mod history;
mod segment;
mod step;
mod stream;
mod watch;

#[cfg(test)]
mod tests;

pub use choose::{Unavailable, container_for_logs};
pub use container::{ContainerLogs, LogError};
pub use decode::Decoder;
pub use stream::{LogStream, Logs};

use crate::base::spawn_blocking;
use jiff::{SignedDuration, Timestamp};
use std::io;
use tokio::sync::Semaphore;

/// Which of a container's streams are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectedStreams {
    /// Both, in the order in which they were written.
    #[default]
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What to read, as `PodLogOptions` have it. `previous` is the choice of another file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Number of lines to return from the end; `None` returns all. A line that the runtime split counts once. Lines of
    /// both streams count, as upstream.
    pub tail_lines: Option<u64>,
    /// Most bytes to give, timestamps included.
    pub limit_bytes: Option<u64>,
    /// Only lines of this instant or later.
    pub since: Option<Timestamp>,
    /// Begin each line with its timestamp.
    pub timestamps: bool,
    /// Go on until the container has ended.
    pub follow: bool,
    /// The streams.
    pub streams: SelectedStreams,
}

/// The instant to begin at, from `sinceSeconds` and `sinceTime`: the later of both, as upstream has it.
pub fn since(
    now: Timestamp,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
) -> Option<Timestamp> {
    let ago = since_seconds.map(|seconds| {
        let ago = now.checked_sub(SignedDuration::from_secs(seconds));
        ago.unwrap_or(Timestamp::MIN)
    });
    ago.max(since_time)
}

/// Reads of log files at once. They are short, and must not use all blocking threads.
const MAX_READS: usize = 4;
static READERS: Semaphore = Semaphore::const_new(MAX_READS);

/// Runs a short piece of work on log files off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    // Never closed.
    let _permit = READERS.acquire().await.ok();
    spawn_blocking(work).await.map_err(io::Error::other)?
}
