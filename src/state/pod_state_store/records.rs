//! The records in memory, and which of them differ from their files.

use super::{PodRecord, VERSION};
use crate::model::PodUid;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// A change that is made in memory after it is on disk.
pub(super) type ChangeAhead = Arc<dyn Fn(&mut PodRecord) + Send + Sync>;

/// All records.
#[derive(Default)]
pub(super) struct Records {
    by_pod: HashMap<PodUid, PodRecord>,
    unwritten: HashMap<PodUid, Unwritten>,
    /// Number of the last change.
    last_change: u64,
}

/// A record that differs from its file.
#[derive(Default)]
struct Unwritten {
    /// Number of its last change.
    change: u64,
    ahead: Vec<ChangeAhead>,
    /// A task writes it. There is one at most, so writes of a pod do not overtake each other.
    is_writing: bool,
    /// Number of the last change that a write, successful or not, has included.
    attempted: watch::Sender<u64>,
}

/// What a write of a record has to do.
pub(super) struct RecordWrite {
    /// The record; `None` if its file is to be removed.
    pub(super) record: Option<PodRecord>,
    change: u64,
    ahead: usize,
}

/// Waits for a write that includes a change.
pub(super) struct WriteAttempt {
    attempted: watch::Receiver<u64>,
    change: u64,
}

impl WriteAttempt {
    /// Returns when the write has succeeded or failed.
    pub(super) async fn ended(mut self) {
        // The sender is gone once the file is as the record.
        let _ = self.attempted.wait_for(|at| *at >= self.change).await;
    }
}

impl Records {
    pub(super) fn of(by_pod: HashMap<PodUid, PodRecord>) -> Self {
        Self { by_pod, ..Self::default() }
    }

    pub(super) fn get(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.by_pod.get(uid)
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.by_pod.keys()
    }

    pub(super) fn count(&self) -> usize {
        self.by_pod.len()
    }

    /// Pods whose records differ from their files.
    pub(super) fn unwritten(&self) -> Vec<PodUid> {
        self.unwritten.keys().cloned().collect()
    }

    /// Changes a record in memory; false if that changed nothing.
    pub(super) fn change(&mut self, uid: &PodUid, change: impl FnOnce(&mut PodRecord)) -> bool {
        let before = self.by_pod.get(uid);
        let mut record = before.cloned().unwrap_or_default();
        change(&mut record);
        record.version = VERSION;
        if before == Some(&record) || (before.is_none() && record.is_empty()) {
            return false;
        }
        if record.is_empty() {
            self.by_pod.remove(uid);
        } else {
            self.by_pod.insert(uid.clone(), record);
        }
        true
    }

    /// Removes a record; false if there is none.
    pub(super) fn remove(&mut self, uid: &PodUid) -> bool {
        self.by_pod.remove(uid).is_some()
    }

    /// Notes that a record has to be written.
    pub(super) fn mark_unwritten(&mut self, uid: &PodUid) {
        self.last_change += 1;
        self.unwritten.entry(uid.clone()).or_default().change = self.last_change;
    }

    /// Notes a change that the next write includes and that is made in memory after it.
    pub(super) fn change_ahead(&mut self, uid: &PodUid, change: ChangeAhead) {
        self.mark_unwritten(uid);
        let unwritten = self.unwritten.entry(uid.clone()).or_default();
        unwritten.ahead.push(change);
    }

    /// The write that includes the last change of a record, and whether the caller has to start it; `None` if the file is as
    /// the record.
    pub(super) fn write_attempt(&mut self, uid: &PodUid) -> Option<(WriteAttempt, bool)> {
        let starts = !self.unwritten.get(uid)?.is_writing;
        if starts {
            // The last write may have failed: this one is another attempt.
            self.mark_unwritten(uid);
        }
        let unwritten = self.unwritten.get_mut(uid)?;
        unwritten.is_writing = true;
        let attempt =
            WriteAttempt { attempted: unwritten.attempted.subscribe(), change: unwritten.change };
        Some((attempt, starts))
    }

    /// What has to be written now.
    pub(super) fn begin_write(&self, uid: &PodUid) -> Option<RecordWrite> {
        let unwritten = self.unwritten.get(uid)?;
        let mut record = self.by_pod.get(uid).cloned();
        if !unwritten.ahead.is_empty() {
            let record = record.get_or_insert_default();
            unwritten.ahead.iter().for_each(|change| change(record));
            record.version = VERSION;
        }
        Some(RecordWrite {
            record: record.filter(|record| !record.is_empty()),
            change: unwritten.change,
            ahead: unwritten.ahead.len(),
        })
    }

    /// Notes the end of a write, and makes the changes in memory that it included. Returns whether the record has changed
    /// since its begin: the caller has to write it again then.
    pub(super) fn end_write(&mut self, uid: &PodUid, write: &RecordWrite, succeeded: bool) -> bool {
        let Some(mut unwritten) = self.unwritten.remove(uid) else {
            return false;
        };
        for change in unwritten.ahead.drain(..write.ahead) {
            self.change(uid, |record| change(record));
        }
        unwritten.attempted.send_replace(write.change);
        let changed = unwritten.change != write.change;
        if changed || !succeeded {
            unwritten.is_writing = changed;
            self.unwritten.insert(uid.clone(), unwritten);
        }
        changed
    }
}
