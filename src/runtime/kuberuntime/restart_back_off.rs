//! The restart back-off of containers (CrashLoopBackOff).
//!
//! The current delay is in memory and in the pod state store, so it survives a restart of the kubelet. Times are
//! wall-clock times, because the delay counts from the exit time that the runtime reports.

use crate::base::GoDuration;
use crate::base::backoff::{Backoff, BackoffEntry, BackoffTime};
use crate::model::reasons::event;
use crate::model::{ContainerState, ContainerStatus, Pod, PodExt, PodUid, back_off_key};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_state_store::{PodRecord, PodStateStore, SavedBackOff};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// First delay; the first restart is immediate.
const BASE: Duration = Duration::from_secs(10);
/// An exit this long after the last restart resets the back-off. As upstream, this does not depend on the cap.
const RESET_AFTER: Duration = Duration::from_secs(600);

/// UID of the pod, and name of the container.
type ContainerKey = (PodUid, String);

/// The back-off of all containers of the node.
#[derive(Debug)]
pub(super) struct RestartBackOff {
    entries: Mutex<Backoff<u64, Timestamp>>,
    /// When the runtime last failed to start a created instance of a container. Counts as the end of an instance: CRI-O
    /// leaves such an instance CREATED, or forgets it.
    failed_starts: Mutex<HashMap<ContainerKey, Timestamp>>,
    /// The containers whose last start failed or was cancelled, at any step from the back-off to the postStart hook. When
    /// the back-off allows a start after an exit, the entry of the container is removed.
    incomplete_starts: Mutex<HashSet<ContainerKey>>,
    cap: Duration,
    state_store: PodStateStore,
}

/// What the back-off decides about a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackOffDecision {
    /// Start now.
    Start,
    Wait {
        /// The whole delay, for messages.
        delay: Duration,
        /// The rest of it.
        left: Duration,
    },
}

impl RestartBackOff {
    pub(super) fn new(cap: Duration, state_store: PodStateStore) -> Self {
        Self {
            entries: Mutex::new(Backoff::new(BASE, cap, RESET_AFTER)),
            failed_starts: Mutex::default(),
            incomplete_starts: Mutex::default(),
            cap,
            state_store,
        }
    }

    /// Records that the runtime failed to start a created instance of a container.
    pub(super) fn record_failed_start(&self, pod: &Pod, container: &Container, at: Timestamp) {
        let key = key_of(pod, container);
        self.failed_starts.lock().insert(key, at);
    }

    /// Records that a start of a container failed or was cancelled, at any step.
    pub(super) fn record_incomplete_start(&self, pod: &Pod, container: &Container) {
        let key = key_of(pod, container);
        self.incomplete_starts.lock().insert(key);
    }

    /// Whether a container may start at `now`, given its newest instance (upstream's `doBackOff`). If it may, after an
    /// exit, the back-off advances to the next delay.
    pub(super) fn try_start(
        &self,
        pod: &Pod,
        container: &Container,
        newest: Option<&ContainerStatus>,
        now: Timestamp,
    ) -> BackOffDecision {
        match self.ended_at(pod, container, newest) {
            Some(ended) => self.try_start_after(pod, container, ended, now),
            None => BackOffDecision::Start,
        }
    }

    /// As [`Self::try_start`], for a container whose last instance ended at `ended` and may have been removed.
    pub(super) fn try_start_after(
        &self,
        pod: &Pod,
        container: &Container,
        ended: Timestamp,
        now: Timestamp,
    ) -> BackOffDecision {
        if let Some((delay, left)) = self.in_back_off_since(pod, container, ended, now) {
            return BackOffDecision::Wait { delay, left };
        }
        let key = back_off_key_of(pod, container);
        let cap = self.cap_of(pod);
        let delay = self.entries.lock().advance_within(key, ended, now, cap);
        self.state_store.update(&pod.uid(), |record| {
            let saved = SavedBackOff { key, delay_seconds: delay.as_secs(), since: now };
            record.back_off.insert(container.name.clone(), saved);
        });
        let key = key_of(pod, container);
        self.incomplete_starts.lock().remove(&key);
        BackOffDecision::Start
    }

    /// The whole delay and the rest of it, if the container is in its back-off at `now`.
    pub(super) fn in_back_off(
        &self,
        pod: &Pod,
        container: &Container,
        newest: &ContainerStatus,
        now: Timestamp,
    ) -> Option<(Duration, Duration)> {
        let ended = self.ended_at(pod, container, Some(newest))?;
        self.in_back_off_since(pod, container, ended, now)
    }

    /// As [`Self::in_back_off`], for a container whose last instance ended at `ended` and may have been
    /// removed.
    pub(super) fn in_back_off_since(
        &self,
        pod: &Pod,
        container: &Container,
        ended: Timestamp,
        now: Timestamp,
    ) -> Option<(Duration, Duration)> {
        let key = back_off_key_of(pod, container);
        let mut entries = self.entries.lock();
        if entries.entry(&key).is_none() {
            let saved =
                self.state_store.read(&pod.uid(), |r| r.back_off.get(&container.name).cloned());
            if let Some(saved) = saved.filter(|saved| saved.key == key) {
                let delay = Duration::from_secs(saved.delay_seconds);
                let last_update = saved.since;
                let entry = BackoffEntry { delay, last_update };
                entries.restore_within(key, entry, self.cap_of(pod));
            }
        }
        let left = entries.remaining(&key, ended, now)?;
        // The pod's maximum may have been lowered since the delay was set.
        let (delay, cap) = (entries.delay(&key), self.cap_of(pod));
        let left = left.checked_sub(delay.saturating_sub(cap))?;
        (!left.is_zero()).then(|| (delay.min(cap), left))
    }

    /// The longest delay of a pod's containers: its own, else the node's.
    fn cap_of(&self, pod: &Pod) -> Duration {
        pod.max_restart_period().unwrap_or(self.cap)
    }

    /// Whether a start that the back-off allowed after the exit of the newest instance is in progress, or has just
    /// succeeded.
    pub(super) fn is_starting(
        &self,
        pod: &Pod,
        container: &Container,
        newest: &ContainerStatus,
    ) -> bool {
        let key = key_of(pod, container);
        if self.incomplete_starts.lock().contains(&key) {
            return false;
        }
        let ended = self.ended_at(pod, container, Some(newest));
        let entries = self.entries.lock();
        let entry = entries.entry(&back_off_key_of(pod, container));
        ended.is_some_and(|ended| entry.is_some_and(|entry| entry.last_update >= ended))
    }

    /// Number of containers with a back-off.
    pub(super) fn len(&self) -> usize {
        self.entries.lock().count()
    }

    /// Resets the back-offs of a pod that was removed or starts over. Their keys are read from the record of the pod; keys
    /// of earlier images are not in there and expire.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.failed_starts.lock().retain(|(of, _), _| of != uid);
        self.incomplete_starts.lock().retain(|(of, _)| of != uid);
        let keys = |record: &PodRecord| -> Vec<u64> {
            record.back_off.values().map(|saved| saved.key).collect()
        };
        let keys = self.state_store.read(uid, keys);
        if keys.is_empty() {
            return;
        }
        self.state_store.update(uid, |record| record.back_off.clear());
        let mut entries = self.entries.lock();
        keys.iter().for_each(|key| entries.forget(key));
    }

    /// Removes expired back-offs.
    pub(super) fn gc(&self, now: Timestamp) {
        let age = |entry: &BackoffEntry<Timestamp>| BackoffTime::since(now, entry.last_update);
        self.entries.lock().retain(|_, entry| age(entry) < 2 * RESET_AFTER);
        let recent = |at: &Timestamp| BackoffTime::since(now, *at) < 2 * RESET_AFTER;
        self.failed_starts.lock().retain(|_, at| recent(at));
    }

    /// When the last attempt to run a container ended, by its newest instance and the last start that
    /// failed; `None` while it runs, or before its first start.
    fn ended_at(
        &self,
        pod: &Pod,
        container: &Container,
        newest: Option<&ContainerStatus>,
    ) -> Option<Timestamp> {
        let exited = match newest.map(|newest| newest.state) {
            Some(ContainerState::Running) => return None,
            Some(ContainerState::Exited) => newest.map(|newest| newest.finished_at),
            // Its exit time is unknown. Counting from its creation ensures a delay between its replacements.
            Some(ContainerState::Unknown) => newest.map(|newest| newest.created_at),
            Some(ContainerState::Created) | None => None,
        };
        let failed = self.failed_starts.lock().get(&key_of(pod, container)).copied();
        // The failure is of an earlier attempt if the newest instance was created after it.
        let created = newest.map(|newest| timestamp(newest.created_at));
        let failed = failed.filter(|failed| created.is_none_or(|created| created <= *failed));
        exited.map(timestamp).max(failed)
    }
}

/// The point in time that the runtime gives in nanoseconds.
pub(super) fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn key_of(pod: &Pod, container: &Container) -> ContainerKey {
    (pod.uid(), container.name.clone())
}

fn back_off_key_of(pod: &Pod, container: &Container) -> u64 {
    back_off_key(pod.name(), pod.namespace(), pod.uid().as_str(), container)
}

/// Emits the event of a container in its restart back-off.
pub(super) fn back_off_event(events: &EventRecorder, pod: &Pod, container: &Container) {
    let formatted_pod = format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid());
    let object = ObjectRef::container(pod, &container.name);
    let text =
        format!("Back-off restarting failed container {} in pod {formatted_pod}", container.name);
    events.warning(&object, event::BACK_OFF, text);
}

/// The waiting message of a container in its restart back-off.
pub(super) fn back_off_text(pod: &Pod, name: &str, delay: Duration) -> String {
    format!(
        "back-off {} restarting failed container={name} pod={}_{}({})",
        GoDuration::from(delay),
        pod.name(),
        pod.namespace(),
        pod.uid()
    )
}

#[cfg(test)]
mod tests;
