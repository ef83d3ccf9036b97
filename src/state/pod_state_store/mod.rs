//! Facts about pods that have to survive a restart of the kubelet and that the runtime does not keep.
//!
//! * Owns: one small JSON file per pod below `<root-dir>/journal` (the name of earlier versions), written only when a
//!   fact changes.
//! * Woken by: updates. A task writes coalesced changes; [`PodStateStore::update_and_wait`] waits for the write.
//! * Publishes: [`PodRecord`]s, which are read at start.
//! * Must never duplicate facts of the runtime or the manifest, nor fail a pod because the disk is full: a failed write
//!   is retried, and the fact kept in memory.
//! * Upstream has no counterpart: there a restart loses these facts.

mod exits;
mod record;

use crate::{
    base::{
        DirtySet, atomic_file, error_chain, if_exists,
        panics::{PanicScope, catch_panic_sync},
        run_file_io,
    },
    model::{PodSource, PodUid},
};
use anyhow::Context as _;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

pub use exits::{Exit, Exits, is_newest_exit};
pub use record::{
    PodOrigin, PodRecord, RestartAll, SavedBackOff, SavedProbeResults, TerminalRecord,
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

/// The store; cheap to clone.
#[derive(Clone, Debug)]
pub struct PodStateStore {
    shared: Arc<PodStateStoreInner>,
}

#[derive(Debug)]
struct PodStateStoreInner {
    directory: PathBuf,
    records: Mutex<HashMap<PodUid, PodRecord>>,
    dirty: DirtySet<PodUid>,
    writing: Arc<tokio::sync::Mutex<()>>,
    /// Whether the last write failed; then the failure is already in the log.
    failing: AtomicBool,
}

impl PodStateStore {
    /// Opens the directory, creates it if needed, and reads its records. A file that cannot be decoded is logged and
    /// skipped; it never prevents a start. Blocking.
    pub fn open(directory: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&directory).with_context(|| {
            format!("cannot create the pod state store {}", directory.display())
        })?;
        let records = read_records(&directory, |leftover| {
            let _ = fs::remove_file(leftover);
        })?;
        Ok(Self::of(directory, records))
    }

    fn of(directory: PathBuf, records: HashMap<PodUid, PodRecord>) -> Self {
        Self {
            shared: Arc::new(PodStateStoreInner {
                directory,
                records: Mutex::new(records),
                dirty: DirtySet::default(),
                writing: Arc::default(),
                failing: AtomicBool::new(false),
            }),
        }
    }

    /// A copy of the record of a pod.
    pub fn get(&self, uid: &PodUid) -> PodRecord {
        self.shared
            .records
            .lock()
            .get(uid)
            .cloned()
            .unwrap_or_default()
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
        self.change(uid, change);
    }

    /// Changes the record of a pod and waits for the write. A failed write is logged and retried later, and this
    /// returns. If the caller drops the future, the record is written all the same.
    pub async fn update_and_wait(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        if self.change(uid, change) {
            self.shared.dirty.mark(uid.clone());
            self.write(Some(uid.clone())).await;
        }
    }

    /// Removes the record of a pod.
    pub fn forget(&self, uid: &PodUid) {
        if self.shared.records.lock().remove(uid).is_some() {
            self.shared.dirty.mark(uid.clone());
        }
    }

    /// Removes everything from the record of a pod but its origin: that of the record, or else the source that the
    /// runtime's labels name. The origin decides which source may clean up the rest of the pod.
    pub fn forget_except_origin(&self, uid: &PodUid, by_runtime: Option<PodSource>) {
        self.update(uid, |record| {
            let by_runtime = || {
                Some(PodOrigin {
                    source: by_runtime?.as_str().into(),
                    ..PodOrigin::default()
                })
            };
            let origin = record.origin.take().or_else(by_runtime);
            let without_digest = |origin| PodOrigin {
                manifest_digest: None,
                ..origin
            };
            *record = PodRecord {
                origin: origin.map(without_digest),
                ..PodRecord::default()
            };
        });
    }

    /// UIDs of all pods with a record.
    pub fn uids(&self) -> Vec<PodUid> {
        self.shared.records.lock().keys().cloned().collect()
    }

    /// Number of pods with a record.
    pub fn count(&self) -> usize {
        self.shared.records.lock().len()
    }

    /// Writes pending changes and waits for that. Without any it returns at once.
    pub async fn flush(&self) {
        let idle = self.shared.dirty.is_empty() && self.shared.writing.try_lock().is_ok();
        if !idle {
            self.write(None).await;
        }
    }

    /// Writes changes, in batches, until shutdown, and then the rest.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            // Changes stay marked during the delay, so that a concurrent flush writes them.
            tokio::select! {
                () = self.shared.dirty.marked() => {}
                () = shutdown.cancelled() => {}
            }
            tokio::select! {
                () = tokio::time::sleep(BATCH_DELAY) => {}
                () = shutdown.cancelled() => {}
            }
            let last = shutdown.is_cancelled();
            let written = self.write(None).await;
            if last {
                return Ok(());
            }
            let pause = match (written.all, written.number >= LARGE_BATCH) {
                (true, false) => continue,
                (true, true) => LARGE_BATCH_DELAY,
                (false, _) => RETRY_INTERVAL,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    fn change(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) -> bool {
        let mut records = self.shared.records.lock();
        let mut record = records.get(uid).cloned().unwrap_or_default();
        change(&mut record);
        record.version = VERSION;
        let before = records.get(uid);
        if before == Some(&record) || (before.is_none() && record.is_empty()) {
            return false;
        }
        if record.is_empty() {
            records.remove(uid);
        } else {
            records.insert(uid.clone(), record);
        }
        true
    }

    /// Writes the pending changes of one pod or of all. Once begun, it completes even if the caller is dropped, and no later
    /// write can overtake it.
    async fn write(&self, only: Option<PodUid>) -> WriteResult {
        let one_at_a_time = self.shared.writing.clone().lock_owned().await;
        // An earlier write may have included the changes.
        let dirty = &self.shared.dirty;
        let is_written = only
            .as_ref()
            .map_or_else(|| dirty.is_empty(), |uid| !dirty.contains(uid));
        if is_written {
            return WriteResult {
                number: 0,
                all: true,
            };
        }
        let state_store = self.clone();
        let write = move || {
            let written = state_store.write_marked(only);
            drop(one_at_a_time);
            written
        };
        match run_file_io(write).await {
            Ok(written) => written,
            // The tokio runtime is shutting down. The caller must not go on as if this was written.
            Err(_) => std::future::pending().await,
        }
    }

    /// Blocking; one at a time.
    fn write_marked(&self, only: Option<PodUid>) -> WriteResult {
        let dirty = &self.shared.dirty;
        let uids: Vec<PodUid> = match only {
            Some(uid) => dirty.unmark(&uid).then_some(uid).into_iter().collect(),
            None => dirty.take_now().into_iter().collect(),
        };
        let number = uids.len();
        let batch: Vec<_> = {
            let records = self.shared.records.lock();
            let entry = |uid: &PodUid| {
                let path = self.path(uid)?;
                Some((path, records.get(uid).cloned(), uid.clone()))
            };
            uids.iter().filter_map(entry).collect()
        };
        let failed = match catch_panic_sync(PanicScope::StateWrite, || write_all(batch)) {
            Ok(failed) => {
                self.report(&failed);
                failed.into_iter().map(|failure| failure.uid).collect()
            }
            Err(error) => {
                tracing::error!(err = %error, "Writing pod state panicked");
                uids
            }
        };
        let all = failed.is_empty();
        dirty.mark_all(failed);
        WriteResult { number, all }
    }

    /// Logs a failed write once until writes succeed again, not once per pod and retry.
    fn report(&self, failed: &[WriteFailure]) {
        let before = self
            .shared
            .failing
            .swap(!failed.is_empty(), Ordering::Relaxed);
        match failed.first() {
            Some(first) if !before => tracing::warn!(
                path = %first.path.display(),
                err = %first.error,
                pods = failed.len(),
                "Failed to write pod state, retrying"
            ),
            None if before => tracing::info!("Writing pod state recovered"),
            _ => {}
        }
    }

    /// The path of a pod's file. A UID comes from outside: `None`, and the record is kept in memory only, if the UID is
    /// not a plain file name.
    fn path(&self, uid: &PodUid) -> Option<PathBuf> {
        let uid = uid.as_str();
        let plain = !uid.is_empty()
            && uid.len() <= 128
            && uid
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        plain.then(|| self.shared.directory.join(format!("{uid}.json")))
    }
}

#[derive(Clone, Copy, Debug)]
struct WriteResult {
    number: usize,
    /// Whether all writes succeeded; failed ones are marked as pending again.
    all: bool,
}

/// A pod whose file could not be written or removed.
struct WriteFailure {
    uid: PodUid,
    path: PathBuf,
    error: io::Error,
}

/// Writes or removes the files and returns the failures. Blocking.
fn write_all(batch: Vec<(PathBuf, Option<PodRecord>, PodUid)>) -> Vec<WriteFailure> {
    let mut failed = Vec::new();
    for (path, record, uid) in batch {
        let written = match &record {
            Some(record) => serde_json::to_vec(record)
                .map_err(io::Error::from)
                .and_then(|bytes| atomic_file::write(&path, &bytes)),
            None => if_exists(fs::remove_file(&path)).map(drop),
        };
        if let Err(error) = written {
            failed.push(WriteFailure { uid, path, error });
        }
    }
    failed
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
    anyhow::ensure!(
        record.version == VERSION,
        "version {} is not known",
        record.version
    );
    if record.last_status().is_none() && record.terminal.is_none() {
        record.status = serde_json::from_slice::<record::PartialStatus>(&bytes)?.status();
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
