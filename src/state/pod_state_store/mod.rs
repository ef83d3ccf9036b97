//! Facts about pods that have to survive a restart of the kubelet and that the runtime does not keep.
//!
//! * Owns: one small JSON file per pod below `<root-dir>/journal` (the name of earlier versions), written only when a
//!   fact changes.
//! * Woken by: updates. A task collects changes; the record of a pod is written by a task of its own, so that no pod waits for
//!   the write of another one. [`PodStateStore::update_and_wait`] waits for it, with a deadline.
//! * Publishes: [`PodRecord`]s, which are read at start.
//! * Must never duplicate facts of the runtime or the manifest, nor fail a pod because the disk is full: a failed write
//!   is retried, and the fact kept in memory.
//! * Upstream has no counterpart: there a restart loses these facts.

mod exits;
mod record;
mod records;

use crate::base::panics::{PanicScope, catch_panic_sync};
use crate::base::{DirtySet, atomic_file, clock, error_chain, if_exists, run_file_io, wait_until};
use crate::model::{PodSource, PodUid};
use anyhow::Context as _;
use futures::future::join_all;
use parking_lot::Mutex;
use records::{ChangeAhead, Records, WriteAttempt};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, fs, io};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use exits::{Exit, Exits, is_newest_exit};
pub use record::{
    KilledToRestart, PodOrigin, PodRecord, RestartAll, SavedBackOff, SavedProbeResults,
    TerminalRecord, was_killed_to_restart,
};

/// Version of the file format, in every file; a file with another version is ignored and left in place.
const VERSION: u32 = 1;
/// Delay before a failed write is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long changes are collected before a write, so that the steps of one container start share it. Shorter than a
/// client takes to react to a status.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// Like [`BATCH_DELAY`], after a batch of at least [`LARGE_BATCH`].
const LARGE_BATCH_DELAY: Duration = Duration::from_millis(20);
const LARGE_BATCH: usize = 16;
/// How long a caller waits for the disk. The write goes on after that: a disk that hangs must not make a pod unstoppable.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes a file, or removes it without content. Blocking.
type WriteFile = Arc<dyn Fn(&Path, Option<&[u8]>) -> io::Result<()> + Send + Sync>;

/// The store; cheap to clone.
#[derive(Clone)]
pub struct PodStateStore {
    shared: Arc<PodStateStoreInner>,
}

struct PodStateStoreInner {
    directory: PathBuf,
    records: Mutex<Records>,
    /// Pods with changes that the task has to write.
    dirty: DirtySet<PodUid>,
    /// Pods whose last write failed, until it is retried.
    failed: DirtySet<PodUid>,
    /// Pods whose last write failed. While there is one, the log says so.
    failing: Mutex<HashSet<PodUid>>,
    /// Whether the log says that the disk is slow.
    slow: AtomicBool,
    write_file: WriteFile,
}

impl fmt::Debug for PodStateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = &self.shared.directory;
        f.debug_tuple("PodStateStore").field(directory).finish()
    }
}

impl PodStateStore {
    /// Opens the directory, creates it if needed, and reads its records. A file that cannot be decoded is logged and
    /// skipped; it never prevents a start. Blocking.
    pub fn open(directory: PathBuf) -> anyhow::Result<Self> {
        Self::open_with(directory, Arc::new(write_file))
    }

    fn open_with(directory: PathBuf, write_file: WriteFile) -> anyhow::Result<Self> {
        fs::create_dir_all(&directory).with_context(|| {
            format!("cannot create the pod state store {}", directory.display())
        })?;
        let records = read_records(&directory, |leftover| {
            let _ = fs::remove_file(leftover);
        })?;
        Ok(Self {
            shared: Arc::new(PodStateStoreInner {
                directory,
                records: Mutex::new(Records::of(records)),
                dirty: DirtySet::default(),
                failed: DirtySet::default(),
                failing: Mutex::default(),
                slow: AtomicBool::new(false),
                write_file,
            }),
        })
    }

    /// A copy of the record of a pod.
    pub fn get(&self, uid: &PodUid) -> PodRecord {
        self.read(uid, PodRecord::clone)
    }

    /// Reads from the record of a pod without copying it.
    pub fn read<T>(&self, uid: &PodUid, read: impl FnOnce(&PodRecord) -> T) -> T {
        match self.shared.records.lock().get(uid) {
            Some(record) => read(record),
            None => read(&PodRecord::default()),
        }
    }

    /// Changes the record of a pod; it is written later, by [`Self::run`].
    pub fn update(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        if self.change(uid, change) {
            self.shared.dirty.mark(uid.clone());
        }
    }

    /// Changes the record of a pod without scheduling a write, for changes that no later kubelet needs. The next write
    /// of the record includes it.
    pub fn update_in_memory(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        self.shared.records.lock().change(uid, change);
    }

    /// Changes the record of a pod and waits for the write, for five seconds at most. A failed write is logged and
    /// retried later, and this returns. If the caller drops the future, the record is written all the same.
    pub async fn update_and_wait(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        if self.change(uid, change) {
            self.wait_for_write(uid).await;
        }
    }

    /// Writes a change of a pod's record and makes it in memory only then: who reads it knows that a later kubelet will read
    /// it as well. If the write fails or takes longer than five seconds, the change is made all the same, and written
    /// later. It may be made more than once.
    pub async fn write_and_update(
        &self,
        uid: &PodUid,
        change: impl Fn(&mut PodRecord) + Send + Sync + 'static,
    ) {
        let mut changed = self.get(uid);
        change(&mut changed);
        if self.read(uid, |record| *record == changed) {
            return;
        }
        let change: ChangeAhead = Arc::new(change);
        let ahead = change.clone();
        self.shared.records.lock().change_ahead(uid, ahead);
        self.wait_for_write(uid).await;
        self.update(uid, |record| change(record));
    }

    /// Removes the record of a pod.
    pub fn forget(&self, uid: &PodUid) {
        let mut records = self.shared.records.lock();
        if records.remove(uid) {
            records.mark_unwritten(uid);
            self.shared.dirty.mark(uid.clone());
        }
    }

    /// Removes everything from the record of a pod but its origin: that of the record, or else the source that the
    /// runtime's labels name. The origin decides which source may clean up the rest of the pod.
    pub fn forget_except_origin(&self, uid: &PodUid, by_runtime: Option<PodSource>) {
        self.update(uid, |record| {
            let by_runtime =
                || Some(PodOrigin { source: by_runtime?.as_str().into(), ..PodOrigin::default() });
            let origin = record.origin.take().or_else(by_runtime);
            let without_digest = |origin| PodOrigin { manifest_digest: None, ..origin };
            *record = PodRecord { origin: origin.map(without_digest), ..PodRecord::default() };
        });
    }

    /// UIDs of all pods with a record.
    pub fn uids(&self) -> Vec<PodUid> {
        self.shared.records.lock().uids().cloned().collect()
    }

    /// Number of pods with a record.
    pub fn count(&self) -> usize {
        self.shared.records.lock().count()
    }

    /// Writes pending changes and waits for that. Without any it returns at once.
    pub async fn flush(&self) {
        let unwritten = self.shared.records.lock().unwritten();
        let writes = unwritten.iter().filter_map(|uid| self.start_write(uid));
        join_all(writes.map(WriteAttempt::ended)).await;
    }

    /// As [`Self::flush`], for one pod.
    pub async fn flush_pod(&self, uid: &PodUid) {
        if let Some(write) = self.start_write(uid) {
            write.ended().await;
        }
    }

    /// Writes changes, in batches, until shutdown, and then the rest.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (dirty, failed) = (&self.shared.dirty, &self.shared.failed);
        let mut retry_at = None;
        while !shutdown.is_cancelled() {
            // Failed writes wait alone: a pod whose file cannot be written must not delay those of others.
            let retries = async {
                if retry_at.is_none() {
                    failed.marked().await;
                    retry_at = Some(clock::instant() + RETRY_INTERVAL);
                }
                wait_until(retry_at).await;
            };
            let is_retry = tokio::select! {
                () = dirty.marked() => false,
                () = retries => true,
                () = shutdown.cancelled() => break,
            };
            if is_retry {
                retry_at = None;
                dirty.mark_all(failed.take_now());
            }
            shutdown.run_until_cancelled(sleep(BATCH_DELAY)).await;
            let batch = dirty.take_now();
            for uid in &batch {
                self.start_write(uid);
            }
            if batch.len() >= LARGE_BATCH {
                shutdown.run_until_cancelled(sleep(LARGE_BATCH_DELAY)).await;
            }
        }
        self.flush().await;
        Ok(())
    }

    fn change(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) -> bool {
        let mut records = self.shared.records.lock();
        let changed = records.change(uid, change);
        if changed {
            records.mark_unwritten(uid);
        }
        changed
    }

    async fn wait_for_write(&self, uid: &PodUid) {
        let written = timeout(WRITE_TIMEOUT, self.flush_pod(uid)).await;
        if written.is_err() && !self.shared.slow.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                podUID = %uid,
                path = %self.shared.directory.display(),
                seconds = WRITE_TIMEOUT.as_secs(),
                "Timed out waiting for a write of pod state, going on without it"
            );
        }
    }

    /// Has the record of a pod written in a task of its own, which completes whether or not the caller waits for it.
    fn start_write(&self, uid: &PodUid) -> Option<WriteAttempt> {
        let (attempt, starts) = self.shared.records.lock().write_attempt(uid)?;
        if starts {
            let writing = self.clone().write(uid.clone());
            crate::base::spawn(PanicScope::StateWrite, writing);
        }
        Some(attempt)
    }

    /// Writes the record of a pod until its file is as the record, or a write has failed.
    async fn write(self, uid: PodUid) {
        loop {
            let (state_store, uid) = (self.clone(), uid.clone());
            match run_file_io(move || state_store.write_once(&uid)).await {
                Ok(true) => {}
                Ok(false) => return,
                // The tokio runtime is shutting down. No caller may continue, because this was not written.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Returns whether the record has changed meanwhile. Blocking; one at a time for a pod.
    fn write_once(&self, uid: &PodUid) -> bool {
        let Some(write) = self.shared.records.lock().begin_write(uid) else {
            return false;
        };
        let result = match self.path(uid) {
            Some(path) => {
                let write = || self.write_record(&path, write.record.as_ref());
                let result = catch_panic_sync(PanicScope::StateWrite, write);
                let result = result.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
                self.report(uid, &path, &result);
                result
            }
            None => Ok(()),
        };
        let mut records = self.shared.records.lock();
        let changed = records.end_write(uid, &write, result.is_ok());
        if result.is_err() && !changed {
            self.shared.failed.mark(uid.clone());
        }
        changed
    }

    fn write_record(&self, path: &Path, record: Option<&PodRecord>) -> io::Result<()> {
        let bytes = record.map(serde_json::to_vec).transpose()?;
        (self.shared.write_file)(path, bytes.as_deref())
    }

    /// Logs a failed write once until all writes succeed again, not once per pod and retry.
    fn report(&self, uid: &PodUid, path: &Path, result: &io::Result<()>) {
        let mut failing = self.shared.failing.lock();
        match result {
            Err(error) => {
                if failing.is_empty() {
                    let path = path.display();
                    tracing::warn!(%path, err = %error, "Failed to write pod state, retrying");
                }
                failing.insert(uid.clone());
            }
            Ok(()) => {
                self.shared.slow.store(false, Ordering::Relaxed);
                if failing.remove(uid) && failing.is_empty() {
                    tracing::info!("Writing pod state recovered");
                }
            }
        }
    }

    /// The path of a pod's file. A UID comes from outside: `None`, and the record is kept in memory only, if the UID is
    /// not a plain file name.
    fn path(&self, uid: &PodUid) -> Option<PathBuf> {
        let uid = uid.as_str();
        let plain = !uid.is_empty()
            && uid.len() <= 128
            && uid.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        plain.then(|| self.shared.directory.join(format!("{uid}.json")))
    }
}

fn write_file(path: &Path, bytes: Option<&[u8]>) -> io::Result<()> {
    match bytes {
        Some(bytes) => atomic_file::write(path, bytes),
        None => if_exists(fs::remove_file(path)).map(drop),
    }
}

/// Reads the records in a directory without opening a store; none if the directory does not exist. Blocking.
///
/// # Errors
/// The directory cannot be listed.
pub fn read_pod_records(directory: &Path) -> anyhow::Result<HashMap<PodUid, PodRecord>> {
    let metadata = if_exists(fs::metadata(directory));
    if metadata.is_ok_and(|found| found.is_none()) {
        return Ok(HashMap::new());
    }
    read_records(directory, |_| {})
}

/// Reads all records. A file that cannot be decoded is logged and skipped; temporary files of interrupted writes are
/// passed to `leftover`.
fn read_records(
    directory: &Path,
    leftover: impl Fn(&Path),
) -> anyhow::Result<HashMap<PodUid, PodRecord>> {
    let mut records = HashMap::new();
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read the pod state store {}", directory.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if atomic_file::is_leftover(&name) {
            leftover(&entry.path());
        } else if let Some(uid) = name.strip_suffix(".json") {
            match read_record(&entry.path()) {
                Ok(record) => {
                    records.insert(PodUid::from(uid), record);
                }
                Err(error) => tracing::warn!(
                    path = %entry.path().display(),
                    err = %error_chain(error.as_ref()),
                    "Ignoring a pod state file"
                ),
            }
        }
    }
    Ok(records)
}

fn read_record(path: &Path) -> anyhow::Result<PodRecord> {
    let bytes = fs::read(path)?;
    let mut record: PodRecord = serde_json::from_slice(&bytes)?;
    anyhow::ensure!(record.version == VERSION, "version {} is not known", record.version);
    if record.last_status().is_none() && record.terminal.is_none() {
        record.status = serde_json::from_slice::<record::PartialStatus>(&bytes)?.status();
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
