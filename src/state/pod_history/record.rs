//! The history of one pod, bounded in number of entries and in bytes. Pure.

use crate::base::named_enum;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum size of all decisions about one pod, bytes, texts included.
const MAX_BYTES: usize = 960;
/// Maximum length of a reason, bytes.
const MAX_TEXT: usize = 240;

named_enum! {
    /// The kind of a decision, with its text for people.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum DecisionKind {
        /// Create a sandbox.
        CreateSandbox = "create the sandbox",
        /// Kill the pod.
        StopPod = "stop the pod",
        /// Remove all containers, and start the pod again (`RestartAllContainers`).
        RestartAll = "restart all containers",
        /// Stop one container.
        StopContainer = "stop",
        /// Start one container.
        StartContainer = "start",
        /// The pod or one container waits.
        Wait = "wait",
        /// An action failed.
        Fail = "failed",
        /// The pod reached a terminal phase.
        Finish = "finish",
    }
}

/// A decision to record.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEntry<'a> {
    /// The kind.
    pub kind: DecisionKind,
    /// Name of the container; empty for the pod as a whole.
    pub container: &'a str,
    /// The reason, for people.
    pub why: String,
    /// When the decision expires, if known.
    pub until: Option<Timestamp>,
}

impl HistoryEntry<'_> {
    /// A decision about the pod as a whole.
    pub fn about_pod(kind: DecisionKind, why: String) -> Self {
        Self { kind, container: "", why, until: None }
    }
}

impl<'a> HistoryEntry<'a> {
    /// Adds the time at which the decision expires.
    #[must_use]
    pub fn until(self, until: Timestamp) -> Self {
        Self { until: Some(until), ..self }
    }

    /// A decision about one container.
    pub fn about(kind: DecisionKind, container: &'a str, why: String) -> Self {
        Self { kind, container, why, until: None }
    }
}

/// A recorded decision.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedDecision {
    /// The kind.
    pub kind: DecisionKind,
    /// Number of occurrences.
    pub count: u32,
    /// Name of the container; empty for the pod as a whole.
    pub container: Box<str>,
    /// The reason, truncated.
    pub why: Box<str>,
    /// First and last time, in milliseconds since the epoch.
    first: i64,
    last: i64,
    /// Expiry, in milliseconds since the epoch; 0 for none.
    until: i64,
}

impl RecordedDecision {
    /// Time of the first occurrence.
    pub fn first(&self) -> Timestamp {
        from_millis(self.first)
    }

    /// Time of the latest occurrence.
    pub fn last(&self) -> Timestamp {
        from_millis(self.last)
    }

    /// When the decision expires, if known.
    pub fn until(&self) -> Option<Timestamp> {
        (self.until != 0).then(|| from_millis(self.until))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.container.len() + self.why.len()
    }
}

fn from_millis(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The history of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodHistoryRecord {
    /// Ordered by latest occurrence, oldest first.
    entries: Vec<RecordedDecision>,
    current_step: Option<Box<(String, Timestamp)>>,
    /// Time of the last successful sync, in milliseconds since the epoch.
    last_success: i64,
}

impl PodHistoryRecord {
    /// The latest distinct decisions, ordered by latest occurrence, oldest first.
    pub fn entries(&self) -> &[RecordedDecision] {
        &self.entries
    }

    /// The current step of the running sync, with its start time.
    pub fn current_step(&self) -> Option<(&str, Timestamp)> {
        let (step, since) = self.current_step.as_deref()?;
        Some((step, *since))
    }

    /// The newest decision about a container (or the pod, if the name is empty), if it was made after the last
    /// successful sync and is a delay or a failure.
    pub fn pending_problem(&self, container: &str) -> Option<&RecordedDecision> {
        let mut newest = self.entries.iter().rev();
        let newest = newest.find(|decision| *decision.container == *container)?;
        let is_problem = matches!(newest.kind, DecisionKind::Wait | DecisionKind::Fail);
        (is_problem && newest.last > self.last_success).then_some(newest)
    }

    /// Records that a complete sync succeeded at `now`: pending_problem no longer returns earlier delays and failures.
    pub fn record_success(&mut self, now: Timestamp) {
        self.last_success = now.as_millisecond();
    }

    /// Records a decision made at `now`. A repetition increases the count of the earlier entry; the oldest entries are
    /// removed to make room.
    pub fn push(&mut self, history_entry: HistoryEntry<'_>, now: Timestamp) {
        let HistoryEntry { kind, container, why, until } = history_entry;
        let why = why.get(..why.floor_char_boundary(MAX_TEXT)).unwrap_or("");
        let same = |decision: &RecordedDecision| {
            decision.kind == kind && *decision.container == *container && *decision.why == *why
        };
        let known = self.entries.iter().position(same);
        let now = now.as_millisecond();
        let mut decision = match known {
            Some(at) => self.entries.remove(at),
            None => RecordedDecision {
                kind,
                count: 0,
                container: container.into(),
                why: why.into(),
                first: now,
                last: now,
                until: 0,
            },
        };
        decision.count = decision.count.saturating_add(1);
        decision.last = now;
        decision.until = until.map_or(0, |until| until.as_millisecond());
        let mut remaining = MAX_BYTES.saturating_sub(decision.bytes());
        let fits = |decision: &&RecordedDecision| {
            let fits = decision.bytes() <= remaining;
            remaining = remaining.saturating_sub(decision.bytes());
            fits
        };
        let kept = self.entries.iter().rev().take_while(fits).count();
        if kept < self.entries.len() {
            self.entries.drain(..self.entries.len() - kept);
            self.entries.shrink_to_fit();
        }
        self.entries.reserve_exact(1);
        self.entries.push(decision);
    }

    /// Sets the current step, which begins at `now`.
    pub fn begin(&mut self, step: String, now: Timestamp) {
        self.current_step = Some(Box::new((step, now)));
    }

    /// Clears the current step.
    pub fn clear_step(&mut self) {
        self.current_step = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000 + seconds).unwrap()
    }

    fn whys(record: &PodHistoryRecord) -> Vec<(&str, u32)> {
        let entries = record.entries().iter();
        entries.map(|decision| (&*decision.why, decision.count)).collect()
    }

    #[test]
    fn equal_decisions_are_counted_together_with_their_first_and_last_time() {
        let mut record = PodHistoryRecord::default();
        for (second, why) in [(0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, "a")] {
            let history_entry =
                HistoryEntry::about(DecisionKind::StartContainer, "main", why.into());
            record.push(history_entry, t(second));
        }
        assert_eq!(whys(&record), [("b", 1), ("c", 1), ("a", 3)]);
        let last = record.entries().last().unwrap();
        assert_eq!((last.first(), last.last()), (t(0), t(4)));
    }

    #[test]
    fn another_container_or_another_kind_is_another_decision() {
        let mut record = PodHistoryRecord::default();
        for (kind, container) in [
            (DecisionKind::StartContainer, "a"),
            (DecisionKind::StartContainer, "b"),
            (DecisionKind::StopContainer, "b"),
        ] {
            record.push(HistoryEntry::about(kind, container, "why".into()), t(0));
        }
        assert_eq!(record.entries().len(), 3);
    }

    #[test]
    fn the_newest_until_counts() {
        let mut record = PodHistoryRecord::default();
        for until in [Some(t(9)), None, Some(t(20))] {
            let history_entry = HistoryEntry::about(DecisionKind::Wait, "main", "why".into());
            record.push(HistoryEntry { until, ..history_entry }, t(0));
            assert_eq!(record.entries()[0].until(), until);
        }
    }

    #[test]
    fn trouble_is_over_after_another_decision_or_a_sync_that_succeeds() {
        let mut record = PodHistoryRecord::default();
        let fail = || HistoryEntry::about_pod(DecisionKind::Fail, "no network".into());
        record.push(fail(), t(0));
        assert_eq!(&*record.pending_problem("").unwrap().why, "no network");
        assert_eq!(record.pending_problem("main"), None);
        record.push(HistoryEntry::about_pod(DecisionKind::CreateSandbox, String::new()), t(1));
        assert_eq!(record.pending_problem(""), None);
        record.push(fail(), t(2));
        record.record_success(t(3));
        assert_eq!(record.pending_problem(""), None);
        record.push(fail(), t(4));
        assert!(record.pending_problem("").is_some());
    }

    #[test]
    fn the_oldest_make_room_so_that_a_pod_never_takes_more_than_a_kilobyte() {
        let mut record = PodHistoryRecord::default();
        for i in 0..100 {
            let why = format!("{i} {}", "é".repeat(i * 7 % 400));
            record.push(HistoryEntry::about(DecisionKind::Fail, "main", why), t(0));
            let bytes: usize = record.entries().iter().map(RecordedDecision::bytes).sum();
            assert!(bytes <= MAX_BYTES, "{bytes}");
            assert!(record.entries.capacity() * size_of::<RecordedDecision>() <= 1024);
            let last = record.entries().last().unwrap();
            assert!(last.why.starts_with(&i.to_string()));
        }
        assert!(record.entries().len() >= 2);
    }
}
