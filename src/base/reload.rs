//! Values that are read from files, and read again when the files change.

use super::clock::{self, Instant};
use super::{error_chain, spawn_blocking};
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};
use tokio::time::timeout;

/// Minimum interval between checks; files are only checked when the value is used.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a use of the value waits for a check.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Builds the value from the files. Blocking.
type ReadFiles<T> = Box<dyn Fn() -> anyhow::Result<T> + Send + Sync>;

/// A value read from files. If the new content is invalid, the old value is kept.
pub struct Reloaded<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    read: ReadFiles<T>,
    /// Whether the value has to be read again although `files` have not changed. Blocking.
    is_stale: Box<dyn Fn(&T) -> bool + Send + Sync>,
    state: Mutex<ReloadState<T>>,
}

struct ReloadState<T> {
    value: Arc<T>,
    versions: Vec<FileVersion>,
    next_check: Instant,
    /// Whether a check is in progress.
    checking: bool,
    /// The error logged last, so that it is logged once.
    reported: Option<String>,
}

/// Identifies the version of a file; the default for a missing file. Follows symbolic links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    /// The current version of the file at a path. Blocking.
    pub fn of(path: &Path) -> Self {
        let Ok(meta) = fs::metadata(path) else {
            return Self::default();
        };
        Self {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            written: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Resets `checking` when a check ends, even by a panic.
struct Checking<'a, T>(&'a Mutex<ReloadState<T>>);

impl<T> Drop for Checking<'_, T> {
    fn drop(&mut self) {
        self.0.lock().checking = false;
    }
}

fn versions(files: &[PathBuf]) -> Vec<FileVersion> {
    files.iter().map(|path| FileVersion::of(path)).collect()
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reloaded").field(&self.what).finish()
    }
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads the files for the first time. Blocking.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> anyhow::Result<T> + Send + Sync + 'static,
        is_stale: impl Fn(&T) -> bool + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        // Before the files are read, here and below, so that concurrent changes are noticed by the next check.
        let versions = versions(&files);
        let value = Arc::new(read()?);
        Ok(Self {
            what,
            files,
            read: Box::new(read),
            is_stale: Box::new(is_stale),
            state: Mutex::new(ReloadState {
                value,
                versions,
                next_check: clock::instant() + CHECK_INTERVAL,
                checking: false,
                reported: None,
            }),
        })
    }

    /// The last value that was read, without a check.
    pub fn latest(&self) -> Arc<T> {
        self.state.lock().value.clone()
    }

    /// The value, at most one second out of date, or an older one if the check takes more than one second. Does not
    /// wait for a check that another caller started.
    pub async fn current(self: &Arc<Self>) -> Arc<T> {
        {
            let mut state = self.state.lock();
            let now = clock::instant();
            if state.checking || now < state.next_check {
                return state.value.clone();
            }
            (state.checking, state.next_check) = (true, now + CHECK_INTERVAL);
        }
        let own = self.clone();
        // The check continues if this is cancelled or times out, so `checking` is always reset.
        let checked = timeout(MAX_WAIT, spawn_blocking(move || own.check())).await;
        if let Ok(Err(error)) = checked {
            tracing::error!(what = self.what, err = %error, "Checking files for changes failed");
        }
        self.latest()
    }

    /// Reads the files again if they changed. Blocking.
    fn check(&self) {
        let _checking = Checking(&self.state);
        let versions = versions(&self.files);
        let (value, known) = {
            let state = self.state.lock();
            (state.value.clone(), state.versions.clone())
        };
        let read = (known != versions || (self.is_stale)(&value)).then(|| (self.read)());
        let mut state = self.state.lock();
        match read {
            None => {}
            Some(Ok(new)) => {
                state.versions = versions;
                state.value = Arc::new(new);
                state.reported = None;
                tracing::info!(what = self.what, "Reloaded changed files");
            }
            Some(Err(error)) => {
                let text = error_chain(error.as_ref());
                if state.reported.as_ref() != Some(&text) {
                    tracing::warn!(
                        what = self.what,
                        err = text,
                        "Reloading changed files failed; the earlier version stays in use"
                    );
                    state.reported = Some(text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::runtime::Handle;

    #[tokio::test]
    async fn a_check_that_panics_after_the_caller_went_on_does_not_end_the_checks() {
        let reads = AtomicUsize::new(0);
        let read = move || match reads.fetch_add(1, Ordering::SeqCst) {
            0 => Ok("first"),
            1 => {
                let late = tokio::time::sleep(MAX_WAIT + Duration::from_millis(300));
                Handle::current().block_on(late);
                panic!("scripted");
            }
            _ => Ok("renewed"),
        };
        let is_stale = |value: &&str| *value == "first";
        let value = Arc::new(Reloaded::open("value", Vec::new(), read, is_stale).unwrap());
        let renewed = async {
            while *value.current().await != "renewed" {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(20), renewed).await.unwrap();
    }
}
