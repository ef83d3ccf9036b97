//! Events about pods and the node (`core/v1` Event).
//!
//! * Owns: a bounded ring of recent events; equal events share one entry with a count.
//! * Woken by: callers that record events.
//! * Publishes: one log line per occurrence in upstream's form (`"Event occurred" object="ns/name" kind="Pod" …
//!   reason="BackOff" message="…"`), [`EventRecorder::recent`], and every occurrence to the [`Outbox`], once a consumer
//!   has taken it.
//! * Must never block its caller or grow without bound.
//! * Upstream: `client-go/tools/record`.

mod api;

use crate::base::{clock, named_enum};
use crate::model::{Pod, PodExt, PodUid};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

/// Number of distinct events that are kept.
const CAPACITY: usize = 1000;

named_enum! {
    /// `type` of an event, in the API's spelling.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EventType {
        /// Something expected happened.
        Normal = "Normal",
        /// Something that may need attention.
        Warning = "Warning",
    }
}

/// The object of an event (`involvedObject`): a pod, a container of it, or the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// `Pod` or `Node`.
    pub kind: &'static str,
    /// Namespace; empty for the node.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: PodUid,
    /// Field path of a container, such as `spec.containers{web}`; empty for the whole object.
    pub field_path: String,
}

impl ObjectRef {
    /// Refers to the whole pod.
    pub fn pod(pod: &Pod) -> Self {
        Self {
            kind: "Pod",
            namespace: pod.namespace().into(),
            name: pod.name().into(),
            uid: pod.uid(),
            field_path: String::new(),
        }
    }

    /// Refers to one container of the pod: regular, init or ephemeral.
    pub fn container(pod: &Pod, name: &str) -> Self {
        let list = if pod.init_containers().iter().any(|c| c.name == name) {
            "initContainers"
        } else if pod.ephemeral_containers().iter().any(|c| c.name == name) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        Self { field_path: format!("spec.{list}{{{name}}}"), ..Self::pod(pod) }
    }

    /// Name of the container in the field path; empty for the whole object.
    pub fn container_name(&self) -> &str {
        let name = self.field_path.split_once('{').map(|(_, name)| name);
        name.and_then(|name| name.strip_suffix('}')).unwrap_or_default()
    }

    /// Refers to the node.
    pub fn node(name: &str) -> Self {
        Self {
            kind: "Node",
            namespace: String::new(),
            name: name.into(),
            uid: PodUid::from(name),
            field_path: String::new(),
        }
    }
}

/// An event, with the number of its occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The object (`involvedObject`).
    pub object: ObjectRef,
    /// Normal or Warning.
    pub kind: EventType,
    /// CamelCase reason.
    pub reason: Cow<'static, str>,
    /// Human-readable message.
    pub message: String,
    /// Annotations for programs; empty for almost all events.
    pub annotations: Annotations,
    /// Number of occurrences.
    pub count: u32,
    /// Time of the first occurrence.
    pub first_seen: Timestamp,
    /// Time of the latest occurrence.
    pub last_seen: Timestamp,
}

/// One occurrence of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The object (`involvedObject`).
    pub object: ObjectRef,
    /// Normal or Warning.
    pub kind: EventType,
    /// CamelCase reason.
    pub reason: Cow<'static, str>,
    /// Human-readable message.
    pub message: String,
    /// Annotations for programs; empty for almost all events.
    pub annotations: Annotations,
    /// Time of the occurrence.
    pub at: Timestamp,
}

/// Annotations of the Event object.
pub type Annotations = BTreeMap<String, String>;

/// Queue of occurrences to send to the API server, in order.
pub type Outbox = mpsc::Receiver<Occurrence>;

/// Called for each occurrence that is dropped because the outbox is full.
pub type OnOverflow = Box<dyn Fn() + Send + Sync>;

/// Records events; cheap to clone.
#[derive(Clone, Default)]
pub struct EventRecorder {
    recent: Arc<Mutex<RecentEvents>>,
    outbox: Arc<OnceLock<Sender>>,
}

struct Sender {
    queue: mpsc::Sender<Occurrence>,
    on_overflow: OnOverflow,
}

/// The recent events in order of their latest occurrence, and an index to find an equal one.
#[derive(Debug, Default)]
struct RecentEvents {
    next: u64,
    events: BTreeMap<u64, Arc<EventRecord>>,
    index: HashMap<u64, u64>,
    hasher: RandomState,
}

impl RecentEvents {
    fn add(&mut self, occurrence: Occurrence) {
        let Occurrence { object, kind, reason, message, annotations, at } = occurrence;
        let key = self.hasher.hash_one((&object, kind, &reason, &message));
        let same = |e: &EventRecord| {
            e.reason == reason && e.kind == kind && e.object == object && e.message == message
        };
        let number = self.index.get(&key).copied();
        let known = number.filter(|number| self.events.get(number).is_some_and(|e| same(e)));
        let event = match known.and_then(|number| self.events.remove(&number)) {
            Some(known) => EventRecord {
                count: known.count.saturating_add(1),
                last_seen: at,
                ..Arc::unwrap_or_clone(known)
            },
            None => EventRecord {
                object,
                kind,
                reason,
                message,
                annotations,
                count: 1,
                first_seen: at,
                last_seen: at,
            },
        };
        if self.events.len() >= CAPACITY {
            self.drop_oldest();
        }
        self.events.insert(self.next, Arc::new(event));
        self.index.insert(key, self.next);
        self.next += 1;
    }

    fn drop_oldest(&mut self) {
        let Some((number, event)) = self.events.pop_first() else {
            return;
        };
        let key = (&event.object, event.kind, &event.reason, &event.message);
        let key = self.hasher.hash_one(key);
        if self.index.get(&key) == Some(&number) {
            self.index.remove(&key);
        }
    }
}

impl EventRecorder {
    /// Builds an empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Logs an event and keeps it; an event equal to a recent one increases its count.
    pub fn record(
        &self,
        object: &ObjectRef,
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record_annotated(object, kind, reason, message, Annotations::new());
    }

    /// Like [`Self::record`], with annotations of the Event object.
    pub fn record_annotated(
        &self,
        object: &ObjectRef,
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
        annotations: Annotations,
    ) {
        let (reason, message) = (reason.into(), message.into());
        tracing::info!(
            object = %display_name(object),
            "fieldPath" = %object.field_path,
            kind = object.kind,
            "apiVersion" = "v1",
            "type" = kind.as_str(),
            reason = &*reason,
            event_message = %message,
            "Event occurred"
        );
        let occurrence = Occurrence {
            object: object.clone(),
            kind,
            reason,
            message,
            annotations,
            at: clock::timestamp(),
        };
        if let Some(outbox) = self.outbox.get()
            && outbox.queue.try_send(occurrence.clone()).is_err()
        {
            (outbox.on_overflow)();
        }
        self.recent.lock().add(occurrence);
    }

    /// Starts to queue occurrences, at most `capacity` of them, and returns the receiver; the excess is dropped.
    /// Returns `None` if the outbox was already taken.
    pub fn outbox(&self, capacity: usize, on_overflow: OnOverflow) -> Option<Outbox> {
        let (queue, outbox) = mpsc::channel(capacity);
        let sender = Sender { queue, on_overflow };
        self.outbox.set(sender).ok().map(|()| outbox)
    }

    /// Records a Normal event about a pod, a container or the node.
    pub fn normal(
        &self,
        object: &ObjectRef,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(object, EventType::Normal, reason, message);
    }

    /// Records a Warning event about a pod, a container or the node.
    pub fn warning(
        &self,
        object: &ObjectRef,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(object, EventType::Warning, reason, message);
    }

    /// Recent events, least recent first. The entries are shared, so that slow clients do not each hold a copy.
    pub fn recent(&self) -> Vec<Arc<EventRecord>> {
        self.recent.lock().events.values().cloned().collect()
    }
}

fn display_name(object: &ObjectRef) -> String {
    if object.namespace.is_empty() {
        object.name.clone()
    } else {
        format!("{}/{}", object.namespace, object.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_named_by_the_list_that_it_is_in() {
        let pod = serde_json::json!({"spec": {
            "initContainers": [{"name": "i"}], "containers": [{"name": "c"}],
            "ephemeralContainers": [{"name": "e"}],
        }});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        for (name, path) in [
            ("i", "spec.initContainers{i}"),
            ("c", "spec.containers{c}"),
            ("e", "spec.ephemeralContainers{e}"),
        ] {
            let object = ObjectRef::container(&pod, name);
            assert_eq!((&*object.field_path, object.container_name()), (path, name));
        }
    }

    #[test]
    fn equal_events_are_counted_together_and_move_to_the_end() {
        let recorder = EventRecorder::new();
        let node = ObjectRef::node("n");
        recorder.warning(&node, "A", "same");
        recorder.normal(&node, "B", "other");
        recorder.warning(&node, "A", "same");
        let events = recorder.recent();
        assert_eq!(
            events.iter().map(|e| (e.reason.as_ref(), e.count)).collect::<Vec<_>>(),
            [("B", 1), ("A", 2)]
        );
    }

    #[test]
    fn a_list_in_use_is_no_copy_and_does_not_change() {
        let recorder = EventRecorder::new();
        let node = ObjectRef::node("n");
        recorder.warning(&node, "A", "same");
        let (one, two) = (recorder.recent(), recorder.recent());
        assert!(Arc::ptr_eq(&one[0], &two[0]));
        recorder.warning(&node, "A", "same");
        assert_eq!((one[0].count, recorder.recent()[0].count), (1, 2));
    }

    #[test]
    fn a_full_outbox_neither_blocks_nor_keeps_anything_from_the_ring() {
        let recorder = EventRecorder::new();
        let node = ObjectRef::node("n");
        recorder.normal(&node, "Before", "");
        let dropped = Arc::new(Mutex::new(0));
        let count = dropped.clone();
        let overflow: OnOverflow = Box::new(move || *count.lock() += 1);
        let mut outbox = recorder.outbox(2, overflow).unwrap();
        assert!(recorder.outbox(2, Box::new(|| ())).is_none());
        for reason in ["A", "B", "C"] {
            recorder.clone().warning(&node, reason, "text");
        }
        let queued = [outbox.try_recv().unwrap(), outbox.try_recv().unwrap()];
        assert_eq!(queued.map(|occurrence| occurrence.reason), ["A", "B"]);
        assert!(outbox.try_recv().is_err());
        assert_eq!((*dropped.lock(), recorder.recent().len()), (1, 4));
    }

    #[test]
    fn the_oldest_event_makes_room() {
        let recorder = EventRecorder::new();
        let node = ObjectRef::node("n");
        (0..=CAPACITY).for_each(|i| recorder.normal(&node, "A", i.to_string()));
        let events = recorder.recent();
        assert_eq!(events.len(), CAPACITY);
        assert_eq!(events[0].message, "1");
        assert_eq!(recorder.recent.lock().index.len(), CAPACITY);
    }
}
