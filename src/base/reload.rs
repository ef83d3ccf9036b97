//! Values that are read from files, and read again when the files change.

use super::chain;
use parking_lot::Mutex;
use std::{
    fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

/// How often the files are checked at most, and only when the value is used.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a use of the value waits for a check.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Makes the value of the files. Blocking.
type ReadFiles<T> = Box<dyn Fn() -> anyhow::Result<T> + Send + Sync>;

/// A value made of files. If they change into something that cannot be used, the value stays.
pub struct Reloaded<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    read: ReadFiles<T>,
    /// Whether a value has to be made again although `files` have not changed. Blocking.
    is_stale: fn(&T) -> bool,
    state: Mutex<ReloadState<T>>,
}

struct ReloadState<T> {
    value: Arc<T>,
    versions: Vec<FileVersion>,
    next_check: Instant,
    /// A check is under way.
    checking: bool,
    /// What was last reported in the log, so that it is reported once.
    reported: Option<String>,
}

/// Distinguishes versions of a file; that of a missing file is the default. Links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    /// The present version of the file at a path. Blocking.
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

/// Takes the mark of a check away when it ends, even by a panic.
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
    /// That of `read`.
    pub fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> anyhow::Result<T> + Send + Sync + 'static,
        is_stale: fn(&T) -> bool,
    ) -> anyhow::Result<Self> {
        // Before they are read, here and below: what changes meanwhile is read again.
        let versions = versions(&files);
        let value = Arc::new(read()?);
        Ok(Self {
            what,
            files,
            read: Box::new(read),
            is_stale,
            state: Mutex::new(ReloadState {
                value,
                versions,
                next_check: Instant::now() + CHECK_INTERVAL,
                checking: false,
                reported: None,
            }),
        })
    }

    /// The value that was read last.
    pub fn latest(&self) -> Arc<T> {
        self.state.lock().value.clone()
    }

    /// The value of the files as they were at most a second before, or the earlier one if they cannot be read within
    /// another. Does not wait for a check that is under way already.
    pub async fn current(self: &Arc<Self>) -> Arc<T> {
        {
            let mut state = self.state.lock();
            let now = Instant::now();
            if state.checking || now < state.next_check {
                return state.value.clone();
            }
            (state.checking, state.next_check) = (true, now + CHECK_INTERVAL);
        }
        let own = self.clone();
        // It goes on if the caller is cancelled or waits no longer, so the mark is always taken away again.
        let checked = timeout(MAX_WAIT, spawn_blocking(move || own.check())).await;
        if let Ok(Err(error)) = checked {
            tracing::error!(what = self.what, %error, "Checking files for changes failed");
        }
        self.latest()
    }

    /// Blocking.
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
                let text = chain(error.as_ref());
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
