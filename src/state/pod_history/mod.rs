//! Recent decisions about each pod, with their reasons (`kubelet explain`).
//!
//! * Owns: one [`PodHistoryRecord`] per pod: its latest distinct decisions, with the number of occurrences of each, and
//!   the current step of a running sync.
//! * Woken by: pod workers during a sync, and the sync loop, for pods that are deferred or rejected.
//! * Publishes: [`PodHistory::of`], and a counter that increases with every decision.
//! * Must never influence a decision, outlive its pod, or take more than about a kilobyte per pod; a pod without
//!   decisions takes nothing.
//! * Upstream has no counterpart; its users read the log.

mod record;

pub use record::{DecisionKind, HistoryEntry, PodHistoryRecord, RecordedDecision};

use crate::base::clock;
use crate::model::PodUid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The pod histories; cheap to clone.
#[derive(Clone, Debug)]
pub struct PodHistory {
    shared: Arc<PodHistoryInner>,
}

#[derive(Debug)]
struct PodHistoryInner {
    records: Mutex<HashMap<PodUid, PodHistoryRecord>>,
    version: watch::Sender<u64>,
}

impl Default for PodHistory {
    fn default() -> Self {
        Self::new()
    }
}

impl PodHistory {
    /// Builds an empty store.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(PodHistoryInner {
                records: Mutex::default(),
                version: watch::Sender::new(0),
            }),
        }
    }

    /// Records a decision about a pod.
    pub fn record(&self, uid: &PodUid, history_entry: HistoryEntry<'_>) {
        let now = clock::timestamp();
        let mut records = self.shared.records.lock();
        let record = records.entry(uid.clone()).or_default();
        record.push(history_entry, now);
        drop(records);
        self.shared.version.send_modify(|version| *version += 1);
    }

    /// Sets the step of the running sync; `None` when the sync is over.
    pub fn set_current_step(&self, uid: &PodUid, step: Option<String>) {
        let mut records = self.shared.records.lock();
        match step {
            Some(step) => {
                let record = records.entry(uid.clone()).or_default();
                record.begin(step, clock::timestamp());
            }
            None => {
                if let Some(record) = records.get_mut(uid) {
                    record.clear_step();
                    if *record == PodHistoryRecord::default() {
                        records.remove(uid);
                    }
                }
            }
        }
    }

    /// Records that a complete sync of a pod succeeded.
    pub fn record_success(&self, uid: &PodUid) {
        if let Some(record) = self.shared.records.lock().get_mut(uid) {
            record.record_success(clock::timestamp());
        }
    }

    /// The history of a pod; empty if nothing was recorded.
    pub fn of(&self, uid: &PodUid) -> PodHistoryRecord {
        let records = self.shared.records.lock();
        records.get(uid).cloned().unwrap_or_default()
    }

    /// Removes the history of a pod that is gone.
    pub fn forget(&self, uid: &PodUid) {
        self.shared.records.lock().remove(uid);
    }

    /// A counter that increases with every decision.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// Number of pods with a history.
    pub fn count(&self) -> usize {
        self.shared.records.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_gone_leaves_nothing_and_one_at_rest_takes_nothing() {
        let history = PodHistory::new();
        let (uid, version) = (PodUid::from("u"), history.subscribe());
        history.set_current_step(&uid, Some("reading".into()));
        history.set_current_step(&uid, None);
        assert_eq!(history.count(), 0);
        history.record(&uid, HistoryEntry::about_pod(DecisionKind::StopPod, "why".into()));
        history.set_current_step(&uid, Some("stopping".into()));
        assert_eq!(history.of(&uid).entries().len(), 1);
        assert_eq!(history.of(&uid).current_step().unwrap().0, "stopping");
        assert_eq!(*version.borrow(), 1, "a step is not a decision");
        history.forget(&uid);
        assert_eq!(history.count(), 0);
        assert_eq!(history.of(&uid), PodHistoryRecord::default());
    }
}
