//! What has to survive the kubelet's own death and the runtime cannot tell.
//!
//! * Owns: one small JSON file per pod below `<root-dir>/journal`, written only when a fact changes.
//! * Woken by: updates; a task writes coalesced changes, [`Journal::record`] waits for the write.
//! * Publishes: [`PodRecord`]s, read back at start.
//! * Must never hold what the runtime or the manifest already says, and never fail a pod because a
//!   disk is full: a fact that cannot be written is kept in memory and tried again.
//! * Upstream has no counterpart for static pods; there a restart forgets all of this.

use crate::{
    base::{DirtySet, atomic_file, chain},
    model::{ContainerId, PodUid, ProbeKind, ProbeVerdict, SandboxId},
};
use anyhow::Context as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Written into every file; a file with another number is left alone and ignored.
const VERSION: u32 = 1;
/// How long a failed write waits before the next try.
const RETRY: Duration = Duration::from_secs(5);
/// How long changes are gathered after a write.
const GATHER: Duration = Duration::from_millis(20);

/// Everything remembered of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct PodRecord {
    version: u32,
    /// The pod reached a terminal phase and must never run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// The sandbox in which the pod's init containers are known to have finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialized_in: Option<String>,
    /// Restart back-off per container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub back_off: BTreeMap<String, BackOffStep>,
    /// Settled probe verdicts per container instance.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub verdicts: BTreeMap<String, SavedVerdicts>,
    /// Since when the pod's conditions are as they are, by type.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, ConditionSince>,
    /// Container instances whose postStart hook has not been seen to finish.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_start_pending: Vec<String>,
}

/// A condition of a pod's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionSince {
    /// True or False.
    pub status: bool,
    /// When it became so.
    pub since: Timestamp,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminal {
    /// The pod's last API status, whole: phase, conditions and container states with exit codes.
    pub status: serde_json::Value,
}

/// One container's restart back-off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackOffStep {
    /// [`crate::model::back_off_key`].
    pub key: u64,
    /// Current delay in seconds.
    pub delay_seconds: u64,
    /// When the step was taken.
    pub since: Timestamp,
}

/// The verdicts of one container instance; true is success.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SavedVerdicts {
    /// Liveness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness: Option<bool>,
    /// Readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<bool>,
    /// Startup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup: Option<bool>,
}

impl SavedVerdicts {
    fn slot(&mut self, kind: ProbeKind) -> &mut Option<bool> {
        match kind {
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
            ProbeKind::Startup => &mut self.startup,
        }
    }
}

impl PodRecord {
    /// Remembers a verdict; `Unknown` forgets it.
    pub fn set_verdict(&mut self, id: &ContainerId, kind: ProbeKind, verdict: ProbeVerdict) {
        let saved = self.verdicts.entry(id.to_string()).or_default();
        *saved.slot(kind) = match verdict {
            ProbeVerdict::Success => Some(true),
            ProbeVerdict::Failure => Some(false),
            ProbeVerdict::Unknown => None,
        };
        if *saved == SavedVerdicts::default() {
            self.verdicts.remove(id.as_str());
        }
    }

    /// The remembered verdict of one probe.
    pub fn verdict(&self, id: &ContainerId, kind: ProbeKind) -> Option<ProbeVerdict> {
        let mut saved = self.verdicts.get(id.as_str())?.clone();
        saved.slot(kind).map(|ok| {
            if ok {
                ProbeVerdict::Success
            } else {
                ProbeVerdict::Failure
            }
        })
    }

    /// The sandbox of [`PodRecord::initialized_in`], typed.
    pub fn initialized_sandbox(&self) -> Option<SandboxId> {
        self.initialized_in.as_deref().map(SandboxId::from)
    }

    /// Forgets container instances that the predicate does not keep.
    pub fn retain_containers(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.verdicts.retain(|id, _| keep(id));
        self.post_start_pending.retain(|id| keep(id));
    }

    fn is_worth_a_file(&self) -> bool {
        *self
            != Self {
                version: self.version,
                ..Self::default()
            }
    }
}

/// The journal; cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    records: Mutex<HashMap<PodUid, PodRecord>>,
    dirty: DirtySet<PodUid>,
    writing: tokio::sync::Mutex<()>,
}

impl Journal {
    /// Opens (and creates) the directory and reads what is there. A file that cannot be understood is
    /// logged and skipped; it never stops the kubelet. Blocking.
    pub fn open(directory: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create the journal {}", directory.display()))?;
        let mut records = HashMap::new();
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot read the journal {}", directory.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if atomic_file::is_leftover(&name) {
                let _ = fs::remove_file(entry.path());
            } else if let Some(uid) = name.strip_suffix(".json") {
                match read_record(&entry.path()) {
                    Ok(record) => {
                        records.insert(PodUid::from(uid), record);
                    }
                    Err(error) => tracing::warn!(
                        path = %entry.path().display(),
                        err = %chain(error.as_ref()),
                        "Ignoring a journal file"
                    ),
                }
            }
        }
        Ok(Self {
            shared: Arc::new(Shared {
                directory,
                records: Mutex::new(records),
                dirty: DirtySet::default(),
                writing: tokio::sync::Mutex::new(()),
            }),
        })
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
    /// later; it does not hold the caller back.
    pub async fn record(&self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) {
        if self.change(uid, change) {
            let failed = self.write([uid.clone()]).await;
            self.shared.dirty.mark_all(failed);
        }
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &PodUid) {
        if self.shared.records.lock().remove(uid).is_some() {
            self.shared.dirty.mark(uid.clone());
        }
    }

    /// UIDs of all remembered pods.
    pub fn uids(&self) -> Vec<PodUid> {
        self.shared.records.lock().keys().cloned().collect()
    }

    /// Writes changes until shutdown, then what is left. Changes that come together are written
    /// together.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        loop {
            let (dirty, last) = tokio::select! {
                dirty = self.shared.dirty.take() => (dirty, false),
                () = shutdown.cancelled() => (self.shared.dirty.take_now(), true),
            };
            let failed = self.write(dirty).await;
            if last {
                return Ok(());
            }
            let pause = if failed.is_empty() { GATHER } else { RETRY };
            self.shared.dirty.mark_all(failed);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// Writes what has changed since [`Journal::run`] ended, once nothing changes any more.
    pub async fn flush(&self) {
        self.write(self.shared.dirty.take_now()).await;
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

    /// Writes or removes the files of some pods; returns those for which that failed.
    async fn write(&self, uids: impl IntoIterator<Item = PodUid>) -> Vec<PodUid> {
        let _one_at_a_time = self.shared.writing.lock().await;
        let batch: Vec<_> = {
            let records = self.shared.records.lock();
            let entry = |uid: PodUid| Some((self.path(&uid)?, records.get(&uid).cloned(), uid));
            uids.into_iter().filter_map(entry).collect()
        };
        if batch.is_empty() {
            return Vec::new();
        }
        tokio::task::spawn_blocking(move || write_all(batch))
            .await
            .unwrap_or_default()
    }

    /// A UID is outside input: one that is no plain file name is remembered in memory only.
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

/// Blocking. Returns the pods whose file could not be written or removed.
fn write_all(batch: Vec<(PathBuf, Option<PodRecord>, PodUid)>) -> Vec<PodUid> {
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
            let path = path.display();
            tracing::warn!(%path, err = %error, "Cannot write the journal, will retry");
            failed.push(uid);
        }
    }
    failed
}

fn read_record(path: &Path) -> anyhow::Result<PodRecord> {
    let record: PodRecord = serde_json::from_slice(&fs::read(path)?)?;
    anyhow::ensure!(
        record.version == VERSION,
        "version {} is not known",
        record.version
    );
    Ok(record)
}

#[cfg(test)]
mod tests;
