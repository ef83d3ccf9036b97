//! Aggregates, counts and rate-limits events before they are sent. Pure.
//!
//! As in upstream's `client-go/tools/record`: similar occurrences are aggregated into one event, equal ones are
//! counted, and the rate of events per object is limited (spam filter).

use super::lru::Lru;
use crate::base::TokenBucket;
use crate::base::clock::Instant;
use crate::state::events::{EventRecord, ObjectRef, Occurrence};
use jiff::{SignedDuration, Timestamp};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Maximum number of remembered objects, and of events.
const MAX_LRU_ENTRIES: usize = 1024;
/// Number of distinct messages from which on occurrences with the same reason are aggregated (client-go's
/// `defaultAggregateMaxEvents`).
const AGGREGATE_MAX_EVENTS: usize = 10;
/// An aggregation ends after this time without a similar occurrence.
const AGGREGATE_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
/// Burst of events per object, and the interval at which one more is permitted.
const BURST: u32 = 25;
const SPAM_REFILL_INTERVAL: Duration = Duration::from_secs(300);
/// Prefix of the message of an aggregated event.
const AGGREGATE_PREFIX: &str = "(combined from similar events): ";

/// Identifies an event by a hash of object, type, reason and message. A thousand keys with texts would take megabytes.
/// With 64 bits and a random seed, collisions are negligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey(u64);

/// State of an event that was sent or is pending.
#[derive(Debug)]
struct Remembered {
    count: u32,
    first: Timestamp,
    /// Name of the Event object, once it is created.
    name: Option<Box<str>>,
}

/// Hashes of the distinct messages of similar occurrences; fewer than [`AGGREGATE_MAX_EVENTS`].
#[derive(Debug)]
struct Series {
    messages: Vec<u64>,
    last: Timestamp,
}

/// Aggregates, counts and rate-limits occurrences, with bounded memory.
#[derive(Debug)]
pub(super) struct Correlator {
    hasher: RandomState,
    /// By a key without the message.
    series: Lru<EventKey, Series>,
    records: Lru<EventKey, Remembered>,
    /// Rate limiters by hash of the object.
    rates: Lru<u64, TokenBucket>,
}

impl Correlator {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            series: Lru::new(MAX_LRU_ENTRIES),
            records: Lru::new(MAX_LRU_ENTRIES),
            rates: Lru::new(MAX_LRU_ENTRIES),
        }
    }

    /// Returns the event that counts this occurrence, with its content; `None` if the object exceeds its rate limit.
    pub(super) fn observe(
        &mut self,
        occurrence: Occurrence,
        now: Instant,
    ) -> Option<(EventKey, EventRecord)> {
        // Without the field path: separate limits per container would not limit the pod.
        let whole = ObjectRef { field_path: String::new(), ..occurrence.object.clone() };
        let (key, message) = self.event_of(&occurrence, &whole);
        let Occurrence { object, kind, reason, annotations, at, .. } = occurrence;
        let remembered =
            self.records.get_or_insert(&key, || Remembered { count: 0, first: at, name: None });
        remembered.count = remembered.count.saturating_add(1);
        let record = EventRecord {
            object,
            kind,
            reason,
            message,
            annotations,
            count: remembered.count,
            first_seen: remembered.first,
            last_seen: at,
        };
        let whole = self.hasher.hash_one(&whole);
        let rate = self.rates.get_or_insert(&whole, || {
            TokenBucket::new(1.0 / SPAM_REFILL_INTERVAL.as_secs_f64(), BURST)
        });
        rate.take(now, Duration::ZERO)?;
        Some((key, record))
    }

    /// The event for an occurrence, with its message: its own event, or the aggregated one of the whole object.
    fn event_of(&mut self, occurrence: &Occurrence, whole: &ObjectRef) -> (EventKey, String) {
        let Occurrence { object, kind, reason, message, at, .. } = occurrence;
        let key = |object: &ObjectRef, message: Option<&str>| {
            EventKey(self.hasher.hash_one((object, kind, reason, message)))
        };
        let (own, similar) = (key(object, Some(message)), key(whole, None));
        let series =
            self.series.get_or_insert(&similar, || Series { messages: Vec::new(), last: *at });
        if at.duration_since(series.last) > AGGREGATE_INTERVAL {
            series.messages.clear();
        }
        series.last = *at;
        let hash = self.hasher.hash_one(message);
        if series.messages.contains(&hash) {
            return (own, message.clone());
        }
        if series.messages.len() + 1 < AGGREGATE_MAX_EVENTS {
            series.messages.push(hash);
            return (own, message.clone());
        }
        (similar, format!("{AGGREGATE_PREFIX}{message}"))
    }

    /// The name of the Event object, if it was created.
    pub(super) fn name(&mut self, key: &EventKey) -> Option<String> {
        self.records.get_mut(key)?.name.as_deref().map(str::to_owned)
    }

    /// Records that the Event object was created with this name.
    pub(super) fn set_name(&mut self, key: &EventKey, name: String) {
        if let Some(remembered) = self.records.get_mut(key) {
            remembered.name = Some(name.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use crate::state::events::{Annotations, EventType};

    fn occurrence(object: &str, reason: &'static str, message: &str, second: i64) -> Occurrence {
        Occurrence {
            object: ObjectRef::node(object),
            kind: EventType::Normal,
            reason: reason.into(),
            message: message.to_owned(),
            annotations: Annotations::new(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn equal_occurrences_are_one_event_that_keeps_its_name_and_first_time() {
        let mut correlator = Correlator::new();
        let now = clock::instant();
        let (key, first) = correlator.observe(occurrence("n", "A", "m", 10), now).unwrap();
        assert_eq!((first.count, correlator.name(&key)), (1, None));
        correlator.set_name(&key, "n.1".into());
        let (again, second) = correlator.observe(occurrence("n", "A", "m", 20), now).unwrap();
        assert_eq!(again, key);
        let name = correlator.name(&key);
        assert_eq!((second.count, name.as_deref()), (2, Some("n.1")));
        let times = (second.first_seen.as_second(), second.last_seen.as_second());
        assert_eq!(times, (10, 20));
        let (other, _) = correlator.observe(occurrence("n", "B", "m", 20), now).unwrap();
        assert_ne!(other, key);
    }

    #[test]
    fn the_tenth_message_of_one_reason_and_all_after_it_are_one_event() {
        let mut correlator = Correlator::new();
        let now = clock::instant();
        let mut seen = |message: String, second| {
            let observed = correlator.observe(occurrence("n", "A", &message, second), now);
            let (_, record) = observed.unwrap();
            (record.message, record.count)
        };
        for i in 1..10 {
            let message = format!("m{i}");
            assert_eq!(seen(message.clone(), i), (message, 1));
        }
        let combined = |i| format!("(combined from similar events): m{i}");
        assert_eq!(seen("m10".into(), 10), (combined(10), 1));
        assert_eq!(seen("m11".into(), 11), (combined(11), 2));
        // After a pause they are sent one by one again.
        let later = 11 + 601;
        assert_eq!(seen("m12".into(), later), ("m12".to_owned(), 1));
    }

    #[test]
    fn an_object_has_25_events_at_once_and_one_more_every_five_minutes() {
        let mut correlator = Correlator::new();
        let now = clock::instant();
        let mut taken = |object: &str, count: usize, now| {
            let one = |_: &usize| {
                let observed = correlator.observe(occurrence(object, "A", "m", 1), now);
                observed.is_some()
            };
            (0..count).filter(one).count()
        };
        assert_eq!(taken("n", 40, now), 25);
        assert_eq!(taken("other", 3, now), 3);
        assert_eq!(taken("n", 5, now + Duration::from_secs(299)), 0);
        assert_eq!(taken("n", 5, now + Duration::from_secs(301)), 1);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::new();
        let now = clock::instant();
        let (key, _) = correlator.observe(occurrence("first", "A", "m", 1), now).unwrap();
        for i in 0..MAX_LRU_ENTRIES {
            correlator.observe(occurrence(&i.to_string(), "A", "m", 1), now);
        }
        // It is as if it had never been: the event is another one from now on.
        correlator.set_name(&key, "gone".into());
        let (again, record) = correlator.observe(occurrence("first", "A", "m", 2), now).unwrap();
        assert_eq!((again == key, record.count), (true, 1));
        assert_eq!(correlator.name(&key), None);
    }
}
