//! The queue of events to send: oldest first, without duplicates. Pure.

use super::correlate::EventKey;
use crate::base::clock::Instant;
use crate::state::events::EventRecord;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Maximum number of attempts per event; upstream's `maxTriesPerEvent`.
const MAX_TRIES: u32 = 12;

/// The delay before a retry, doubling from `FIRST_DELAY` to the maximum.
pub(super) const FIRST_DELAY: Duration = Duration::from_secs(1);
pub(super) const MAX_DELAY: Duration = Duration::from_secs(30);

/// The delay after this number of attempts; `None` if the event is dropped.
pub(super) fn delay_after(tries: u32) -> Option<Duration> {
    let doublings = tries.saturating_sub(1);
    (tries < MAX_TRIES).then(|| FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY))
}

#[derive(Debug)]
pub(super) struct PendingEvent {
    pub(super) record: EventRecord,
    /// Number of failed attempts while the API server was available.
    pub(super) tries: u32,
    /// Earliest time of the next attempt.
    due: Instant,
}

/// A bounded queue.
#[derive(Debug)]
pub(super) struct PendingEvents {
    max: usize,
    order: VecDeque<EventKey>,
    events: HashMap<EventKey, PendingEvent>,
}

impl PendingEvents {
    pub(super) fn new(max: usize) -> Self {
        Self { max, order: VecDeque::new(), events: HashMap::new() }
    }

    /// Time at which the next event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.events.values().map(|event| event.due).min()
    }

    /// Adds an event, or replaces its content. Returns whether another event was dropped to make room.
    pub(super) fn put(&mut self, key: EventKey, record: EventRecord, now: Instant) -> bool {
        if let Some(known) = self.events.get_mut(&key) {
            known.record = record;
            return false;
        }
        let (tries, due) = (0, now);
        let event = PendingEvent { record, tries, due };
        self.events.insert(key, event);
        self.order.push_back(key);
        if self.order.len() <= self.max {
            return false;
        }
        if let Some(oldest) = self.order.pop_front() {
            self.events.remove(&oldest);
        }
        true
    }

    /// Takes the oldest event that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<(EventKey, PendingEvent)> {
        let is_due = |key: &EventKey| self.events.get(key).is_some_and(|event| event.due <= now);
        let at = self.order.iter().position(is_due)?;
        let key = self.order.remove(at)?;
        let event = self.events.remove(&key)?;
        Some((key, event))
    }

    /// Puts back an event whose attempt failed, behind the others.
    pub(super) fn put_back(&mut self, key: EventKey, event: PendingEvent, due: Instant) {
        self.events.insert(key, PendingEvent { due, ..event });
        self.order.push_back(key);
    }
}
