//! Which occurrences become events, and which are counted in an event that exists. Pure.
//!
//! As upstream's `client-go/tools/record` has it: many similar ones become one event, equal ones are counted, and
//! each object may have only so many.

use super::lru::Lru;
use crate::{
    base::Rate,
    state::events::{EventType, ObjectRef, Occurrence},
};
use jiff::{SignedDuration, Timestamp};
use std::{borrow::Cow, collections::HashSet, time::Duration};
use tokio::time::Instant;

/// Most objects, and most events, that are remembered.
const REMEMBERED: usize = 1024;
/// From so many messages on, occurrences with one reason are one event.
const SIMILAR: usize = 10;
/// A series of similar ones ends when there was none for so long.
const SERIES: SignedDuration = SignedDuration::from_secs(600);
/// How many events one object may have at once, and how long it takes until it may have one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// The first words of an event that stands for similar ones.
const COMBINED: &str = "(combined from similar events): ";

/// Which event an occurrence counts in. Without a message: that of all similar ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    object: ObjectRef,
    kind: EventType,
    reason: Cow<'static, str>,
    message: Option<String>,
}

/// An event as it should be at the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) object: ObjectRef,
    pub(super) kind: EventType,
    pub(super) reason: Cow<'static, str>,
    pub(super) message: String,
    pub(super) count: i32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// What is remembered of an event.
#[derive(Debug)]
struct Remembered {
    record: Record,
    /// Its name, once it exists.
    name: Option<String>,
}

/// The messages of similar occurrences.
#[derive(Debug)]
struct Series {
    messages: HashSet<String>,
    last: Timestamp,
}

/// Remembers what it needs, and no more.
#[derive(Debug)]
pub(super) struct Correlator {
    series: Lru<EventKey, Series>,
    records: Lru<EventKey, Remembered>,
    rates: Lru<ObjectRef, Rate>,
}

impl Correlator {
    pub(super) fn new() -> Self {
        Self {
            series: Lru::new(REMEMBERED),
            records: Lru::new(REMEMBERED),
            rates: Lru::new(REMEMBERED),
        }
    }

    /// The event that this occurrence counts in, and what is to be known of it; `None` if the object has too many
    /// events.
    pub(super) fn observe(
        &mut self,
        occurrence: Occurrence,
        now: Instant,
    ) -> Option<(EventKey, Record)> {
        let (key, message) = self.event_of(&occurrence);
        let Occurrence { object, at, .. } = occurrence;
        let remembered = self.records.get_or_insert(&key, || Remembered {
            record: Record {
                object: object.clone(),
                kind: occurrence.kind,
                reason: occurrence.reason.clone(),
                message: String::new(),
                count: 0,
                first: at,
                last: at,
            },
            name: None,
        });
        let record = &mut remembered.record;
        record.count = record.count.saturating_add(1);
        record.last = at;
        record.message = message;
        let record = record.clone();
        let whole = ObjectRef {
            field_path: String::new(),
            ..object
        };
        let rate = self
            .rates
            .get_or_insert(&whole, || Rate::new(1.0 / REFILL.as_secs_f64(), BURST));
        rate.take(now, Duration::ZERO)?;
        Some((key, record))
    }

    fn event_of(&mut self, occurrence: &Occurrence) -> (EventKey, String) {
        let key = EventKey {
            object: occurrence.object.clone(),
            kind: occurrence.kind,
            reason: occurrence.reason.clone(),
            message: Some(occurrence.message.clone()),
        };
        let mut similar = EventKey {
            message: None,
            ..key.clone()
        };
        similar.object.field_path.clear();
        let at = occurrence.at;
        let series = self.series.get_or_insert(&similar, || Series {
            messages: HashSet::new(),
            last: at,
        });
        if at.duration_since(series.last) > SERIES {
            series.messages.clear();
        }
        series.last = at;
        series.messages.insert(occurrence.message.clone());
        if series.messages.len() < SIMILAR {
            return (key, occurrence.message.clone());
        }
        // The set does not grow any further.
        series.messages.remove(&occurrence.message);
        (similar, format!("{COMBINED}{}", occurrence.message))
    }

    /// The name under which an event exists.
    pub(super) fn name(&mut self, key: &EventKey) -> Option<String> {
        self.records.get_mut(key)?.name.clone()
    }

    /// The event exists under this name.
    pub(super) fn set_name(&mut self, key: &EventKey, name: String) {
        if let Some(remembered) = self.records.get_mut(key) {
            remembered.name = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(object: &str, reason: &'static str, message: &str, second: i64) -> Occurrence {
        Occurrence {
            object: ObjectRef::node(object),
            kind: EventType::Normal,
            reason: reason.into(),
            message: message.to_owned(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn equal_occurrences_are_one_event_that_keeps_its_name_and_first_time() {
        let mut correlator = Correlator::new();
        let now = Instant::now();
        let (key, first) = correlator
            .observe(occurrence("n", "A", "m", 10), now)
            .unwrap();
        assert_eq!((first.count, correlator.name(&key)), (1, None));
        correlator.set_name(&key, "n.1".into());
        let (again, second) = correlator
            .observe(occurrence("n", "A", "m", 20), now)
            .unwrap();
        assert_eq!(again, key);
        let name = correlator.name(&key);
        assert_eq!((second.count, name.as_deref()), (2, Some("n.1")));
        let times = (second.first.as_second(), second.last.as_second());
        assert_eq!(times, (10, 20));
        let (other, _) = correlator
            .observe(occurrence("n", "B", "m", 20), now)
            .unwrap();
        assert_ne!(other, key);
    }

    #[test]
    fn the_tenth_message_of_one_reason_and_all_after_it_are_one_event() {
        let mut correlator = Correlator::new();
        let now = Instant::now();
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
        let now = Instant::now();
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
        let now = Instant::now();
        let (key, _) = correlator
            .observe(occurrence("first", "A", "m", 1), now)
            .unwrap();
        for i in 0..REMEMBERED {
            correlator.observe(occurrence(&i.to_string(), "A", "m", 1), now);
        }
        // It is as if it had never been: the event is another one from now on.
        correlator.set_name(&key, "gone".into());
        let (again, record) = correlator
            .observe(occurrence("first", "A", "m", 2), now)
            .unwrap();
        assert_eq!((again == key, record.count), (true, 1));
        assert_eq!(correlator.name(&key), None);
    }
}
