//! Events that wait to be sent, the oldest first, each once. Pure.

use super::correlate::{EventKey, EventRecord};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// How often an event is sent that the API server fails on; upstream's `maxTriesPerEvent`.
const MAX_TRIES: u32 = 12;

/// The delay before the next try doubles from the first to the second.
pub(super) const FIRST_DELAY: Duration = Duration::from_secs(1);
pub(super) const MAX_DELAY: Duration = Duration::from_secs(30);

/// How long an event waits after so many tries; `None` when it is given up.
pub(super) fn delay_after(tries: u32) -> Option<Duration> {
    let doublings = tries.saturating_sub(1);
    (tries < MAX_TRIES).then(|| FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY))
}

#[derive(Debug)]
pub(super) struct PendingEvent {
    pub(super) record: EventRecord,
    /// How often it could not be sent although other events could.
    pub(super) tries: u32,
    /// When it is sent, at the earliest.
    due: Instant,
}

/// At most so many.
#[derive(Debug)]
pub(super) struct PendingEvents {
    max: usize,
    order: VecDeque<EventKey>,
    events: HashMap<EventKey, PendingEvent>,
}

impl PendingEvents {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            order: VecDeque::new(),
            events: HashMap::new(),
        }
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.events.values().map(|event| event.due).min()
    }

    /// Adds an event, or replaces its record. Returns whether another one was dropped for it.
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

    /// The oldest event that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<(EventKey, PendingEvent)> {
        let is_due = |key: &EventKey| self.events.get(key).is_some_and(|event| event.due <= now);
        let at = self.order.iter().position(is_due)?;
        let key = self.order.remove(at)?;
        let event = self.events.remove(&key)?;
        Some((key, event))
    }

    /// It could not be sent: others come first, and it comes again then.
    pub(super) fn put_back(&mut self, key: EventKey, event: PendingEvent, due: Instant) {
        self.events.insert(key, PendingEvent { due, ..event });
        self.order.push_back(key);
    }
}
