//! What is read from files and read again when they change.

use crate::base::{chain, with_own_files};
use parking_lot::Mutex;
use std::{
    fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// The files are looked at this often at most, and only when somebody asks.
const LOOK: Duration = Duration::from_secs(1);

/// Makes the value of the files. Blocking.
type Read<T> = Box<dyn Fn() -> anyhow::Result<T> + Send + Sync>;

/// A value made of files. Should they change into something that cannot be read, the value stays.
pub(super) struct Reloaded<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    read: Read<T>,
    /// Whether a value has to be made anew though its files are what they were.
    is_stale: fn(&T) -> bool,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    marks: Vec<Mark>,
    next_look: Instant,
    /// What was last said in the log, so that it is said once.
    complaint: Option<String>,
}

/// What a file looks like from outside; a file that is not there looks like nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Mark {
    /// Of what is found there; links are followed.
    fn of(path: &Path) -> Self {
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

fn marks(files: &[PathBuf]) -> Vec<Mark> {
    files.iter().map(|path| Mark::of(path)).collect()
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
    pub(super) fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> anyhow::Result<T> + Send + Sync + 'static,
        is_stale: fn(&T) -> bool,
    ) -> anyhow::Result<Self> {
        // Before they are read, here and below: what changes meanwhile is read again.
        let marks = marks(&files);
        let value = Arc::new(read()?);
        Ok(Self {
            what,
            files,
            read: Box::new(read),
            is_stale,
            state: Mutex::new(State {
                value,
                marks,
                next_look: Instant::now() + LOOK,
                complaint: None,
            }),
        })
    }

    /// The value that was read last.
    pub(super) fn first(&self) -> Arc<T> {
        self.state.lock().value.clone()
    }

    /// The value of the files as they were at most a second before.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<T> {
        {
            let mut state = self.state.lock();
            let now = Instant::now();
            if now < state.next_look {
                return state.value.clone();
            }
            // Whoever asks meanwhile is served with the old one.
            state.next_look = now + LOOK;
        }
        let own = self.clone();
        if let Err(error) = with_own_files(move || own.look()).await {
            tracing::error!(what = self.what, %error, "looking at files failed");
        }
        self.state.lock().value.clone()
    }

    /// Blocking.
    fn look(&self) {
        let marks = marks(&self.files);
        {
            let state = self.state.lock();
            if state.marks == marks && !(self.is_stale)(&state.value) {
                return;
            }
        }
        match (self.read)() {
            Ok(new) => {
                let mut state = self.state.lock();
                state.marks = marks;
                state.value = Arc::new(new);
                state.complaint = None;
                tracing::info!(what = self.what, "read anew");
            }
            Err(error) => {
                let text = chain(error.as_ref());
                let mut state = self.state.lock();
                if state.complaint.as_ref() != Some(&text) {
                    tracing::warn!(
                        what = self.what,
                        err = text,
                        "What has changed cannot be used; what was read before stays in force"
                    );
                    state.complaint = Some(text);
                }
            }
        }
    }
}
