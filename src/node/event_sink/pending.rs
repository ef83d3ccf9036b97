//! Events that wait to be sent, the oldest first, each once. Pure.

use super::correlate::{EventKey, Record};
use std::collections::{HashMap, VecDeque};

/// At most so many.
#[derive(Debug)]
pub(super) struct Pending {
    most: usize,
    order: VecDeque<EventKey>,
    records: HashMap<EventKey, Record>,
}

impl Pending {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            order: VecDeque::new(),
            records: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds an event, or replaces what was to be said of it. Whether another one had to go for it.
    pub(super) fn put(&mut self, key: EventKey, record: Record) -> bool {
        if self.records.insert(key.clone(), record).is_some() {
            return false;
        }
        self.order.push_back(key);
        if self.order.len() <= self.most {
            return false;
        }
        if let Some(oldest) = self.order.pop_front() {
            self.records.remove(&oldest);
        }
        true
    }

    pub(super) fn take(&mut self) -> Option<(EventKey, Record)> {
        let key = self.order.pop_front()?;
        let record = self.records.remove(&key)?;
        Some((key, record))
    }

    /// It could not be sent: it is the next one again.
    pub(super) fn put_back(&mut self, key: EventKey, record: Record) {
        self.records.insert(key.clone(), record);
        self.order.push_front(key);
    }
}
