//! Facts that have to survive the kubelet and that the runtime does not keep.
//!
//! * Owns: one small JSON file per pod below `<root-dir>/journal`, written only when a fact changes.
//! * Woken by: updates; a task writes coalesced changes, [`PodStateStore::record`] waits for the write.
//! * Publishes: [`PodRecord`]s, read back at start.
//! * Must never hold what the runtime or the manifest has, and never fail a pod because a
//!   disk is full: a fact that cannot be written is kept in memory and tried again.
//! * Upstream has no counterpart for static pods; there a restart forgets all of this.

mod exits;
mod record;

use crate::{
    base::{DirtySet, atomic_file, chain, panics::PanicScope, spawn},
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

pub use exits::{Exit, Exits, is_last_exit};
pub use record::{BackOffStep, PodOrigin, PodRecord, RestartAll, SavedProbeResults, Terminal};

/// Written into every file; a file with another number is left alone and ignored.
const VERSION: u32 = 1;
/// How long a failed write waits before the next try.
const RETRY: Duration = Duration::from_secs(5);
/// How long changes are gathered, so that the steps of one start make one write: shorter than
/// a client takes to act on a status.
const GATHER: Duration = Duration::from_millis(5);
/// The same after a batch of at least [`MANY`].
const GATHER_MANY: Duration = Duration::from_millis(20);
const MANY: usize = 16;

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
    writing: tokio::sync::Mutex<()>,
    /// The last write failed, and that was logged.
    failing: AtomicBool,
}

impl PodStateStore {
    /// Opens (and creates) the directory and reads what is there. A file that cannot be understood is
    /// logged and skipped; it never stops the kubelet. Blocking.
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
                writing: tokio::sync::Mutex::new(()),
                failing: AtomicBool::new(false),
            }),
        }
    }

    /// What is remembered of a pod.
    pub fn get(&self, uid: &PodUid) -> PodRecord {
        self.shared
            .records
            .lock()
            .get(uid)
            .cloned()
            .unwrap_or_default()
    }

    /// Reads one thing out of a pod's record without copying all of it.
    pub fn read<T>(&self, uid: &PodUid, read: impl FnOnce(&PodRecord) -> T) -> T {
        match self.shared.records.lock().get(uid) {
            Some(record) => read(record),
            None => read(&PodRecord::default()),
        }
    }

    /// Changes a pod's record; it is written soon.
    pub fn update(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        if self.change(uid, change) {
            self.shared.dirty.mark(uid.clone());
        }
    }

    /// Changes a pod's record and waits until it is on disk. A failed write is logged and tried again
    /// later; it does not hold the caller back. A caller that stops waiting changes nothing: the
    /// record is written all the same.
    pub async fn record(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        if self.change(uid, change) {
            self.shared.dirty.mark(uid.clone());
            self.write(Some(uid.clone())).await;
        }
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &PodUid) {
        if self.shared.records.lock().remove(uid).is_some() {
            self.shared.dirty.mark(uid.clone());
        }
    }

    /// Forgets all of a pod but where it came from: from its record, or else by the runtime. By that it is
    /// known who may remove what is left of it.
    pub fn forget_but_origin(&self, uid: &PodUid, by_runtime: Option<PodSource>) {
        self.update(uid, |record| {
            let by_runtime = || {
                Some(PodOrigin {
                    source: by_runtime?.as_str().into(),
                    ..PodOrigin::default()
                })
            };
            let origin = record.origin.take().or_else(by_runtime);
            let undated = |origin| PodOrigin {
                spec_digest: None,
                ..origin
            };
            *record = PodRecord {
                origin: origin.map(undated),
                ..PodRecord::default()
            };
        });
    }

    /// UIDs of all remembered pods.
    pub fn uids(&self) -> Vec<PodUid> {
        self.shared.records.lock().keys().cloned().collect()
    }

    /// How many pods are remembered.
    pub fn len(&self) -> usize {
        self.shared.records.lock().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes what has been changed so far. Costs nothing when nothing has.
    pub async fn flush(&self) {
        let idle = self.shared.dirty.is_empty() && self.shared.writing.try_lock().is_ok();
        if !idle {
            self.write(None).await;
        }
    }

    /// Writes changes until shutdown, then what is left. Changes that come together are written
    /// together.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            // They stay marked while they wait, so that a flush finds them.
            tokio::select! {
                () = self.shared.dirty.marked() => {}
                () = shutdown.cancelled() => {}
            }
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = shutdown.cancelled() => {}
            }
            let last = shutdown.is_cancelled();
            let written = self.write(None).await;
            if last {
                return Ok(());
            }
            let pause = match (written.all, written.number >= MANY) {
                (true, false) => continue,
                (true, true) => GATHER_MANY,
                (false, _) => RETRY,
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
        if before == Some(&record) || (before.is_none() && !record.is_worth_a_file()) {
            return false;
        }
        if record.is_worth_a_file() {
            records.insert(uid.clone(), record);
        } else {
            records.remove(uid);
        }
        true
    }

    /// Writes what is marked, of one pod or of all. It runs as a task of its own: once begun it is
    /// finished, also when its caller stops waiting, so no later write can overtake it.
    async fn write(&self, only: Option<PodUid>) -> WriteResult {
        let state_store = self.clone();
        let writing = async move { state_store.write_marked(only).await };
        match spawn(PanicScope::StateWrite, writing).await {
            Ok(written) => written.unwrap_or_default(),
            // The tokio runtime is shutting down. The caller must not go on as if this was written.
            Err(_) => std::future::pending().await,
        }
    }

    async fn write_marked(&self, only: Option<PodUid>) -> WriteResult {
        let dirty = &self.shared.dirty;
        let _one_at_a_time = self.shared.writing.lock().await;
        // Only now: what another write has written meanwhile need not be written again.
        let uids: Vec<PodUid> = match only {
            Some(uid) => dirty.unmark(&uid).then_some(uid).into_iter().collect(),
            None => dirty.take_now().into_iter().collect(),
        };
        let number = uids.len();
        if number == 0 {
            return WriteResult { number, all: true };
        }
        let batch: Vec<_> = {
            let records = self.shared.records.lock();
            let entry = |uid: &PodUid| {
                let path = self.path(uid)?;
                Some((path, records.get(uid).cloned(), uid.clone()))
            };
            uids.iter().filter_map(entry).collect()
        };
        let failed = match tokio::task::spawn_blocking(move || write_all(batch)).await {
            Ok(failed) => {
                self.report(&failed);
                failed.into_iter().map(|failure| failure.uid).collect()
            }
            // The runtime of the process ends: nothing may go on as if it were written.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            Err(error) => {
                tracing::error!(err = %error, "Writing pod state panicked");
                uids
            }
        };
        let all = failed.is_empty();
        dirty.mark_all(failed);
        WriteResult { number, all }
    }

    /// A disk that is full is one line in the log, not one for every pod and every try.
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

    /// A UID is outside input: one that is not a plain file name is remembered in memory only.
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

/// What became of a write.
#[derive(Clone, Copy, Debug, Default)]
struct WriteResult {
    /// Of how many pods.
    number: usize,
    /// Nothing failed; what did is marked again.
    all: bool,
}

/// A pod whose file could not be written or removed.
struct WriteFailure {
    uid: PodUid,
    path: PathBuf,
    error: io::Error,
}

/// Blocking. Returns what failed.
fn write_all(batch: Vec<(PathBuf, Option<PodRecord>, PodUid)>) -> Vec<WriteFailure> {
    let mut failed = Vec::new();
    for (path, record, uid) in batch {
        let written = match &record {
            Some(record) => serde_json::to_vec(record)
                .map_err(io::Error::from)
                .and_then(|bytes| atomic_file::write(&path, &bytes)),
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        if let Err(error) = written {
            failed.push(WriteFailure { uid, path, error });
        }
    }
    failed
}

/// Reads all records. A file that cannot be understood is logged and skipped; what a killed kubelet
/// left half written is given to `leftover`.
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
                    err = %chain(error.as_ref()),
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
