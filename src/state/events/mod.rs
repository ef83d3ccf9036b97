//! Events about pods and the node, as `kubectl describe` shows them.
//!
//! * Owns: a bounded ring of recent events, equal ones counted together.
//! * Woken by: events that are recorded.
//! * Publishes: one log line per occurrence in upstream's form (`"Event occurred" object="ns/name"
//!   kind="Pod" … reason="BackOff" message="…"`), [`EventRecorder::recent`], and every occurrence to the one
//!   [`Outbox`] there may be.
//! * Must never block its caller or grow without bound.
//! * Answers to upstream's `client-go/tools/record`.

use crate::model::{Pod, PodExt, PodUid};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, OnceLock},
};
use tokio::sync::mpsc;

/// How many different events are kept.
const CAPACITY: usize = 1000;

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something expected happened.
    Normal,
    /// Something that may need attention.
    Warning,
}

impl EventType {
    /// The API's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What an event is about: a pod, or a container of it by field path.
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
    /// `spec.containers{web}`; empty for the object as a whole.
    pub field_path: String,
}

impl ObjectRef {
    /// The pod as a whole.
    pub fn pod(pod: &Pod) -> Self {
        Self {
            kind: "Pod",
            namespace: pod.namespace().into(),
            name: pod.name().into(),
            uid: pod.uid(),
            field_path: String::new(),
        }
    }

    /// One container of the pod, of any kind.
    pub fn container(pod: &Pod, name: &str) -> Self {
        let list = if pod.init_containers().iter().any(|c| c.name == name) {
            "initContainers"
        } else if pod.ephemeral_containers().iter().any(|c| c.name == name) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        Self {
            field_path: format!("spec.{list}{{{name}}}"),
            ..Self::pod(pod)
        }
    }

    /// The container that it is about; empty for the pod as a whole.
    pub fn container_name(&self) -> &str {
        let name = self.field_path.split_once('{').map(|(_, name)| name);
        name.and_then(|name| name.strip_suffix('}'))
            .unwrap_or_default()
    }

    /// The node.
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

/// One kept event.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptEvent {
    /// What it is about.
    pub object: ObjectRef,
    /// Normal or Warning.
    pub kind: EventType,
    /// CamelCase reason.
    pub reason: Cow<'static, str>,
    /// Text for people.
    pub message: String,
    /// How often it happened.
    pub count: u32,
    /// First time.
    pub first_seen: Timestamp,
    /// Last time.
    pub last_seen: Timestamp,
}

/// Something that happened once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// What it is about.
    pub object: ObjectRef,
    /// Normal or Warning.
    pub kind: EventType,
    /// CamelCase reason.
    pub reason: Cow<'static, str>,
    /// Text for people.
    pub message: String,
    /// What programs read of it; empty for almost all.
    pub annotations: Annotations,
    /// When.
    pub at: Timestamp,
}

/// Annotations of an event in the API server.
pub type Annotations = BTreeMap<String, String>;

/// Occurrences on their way to the API server, in their order.
pub type Outbox = mpsc::Receiver<Occurrence>;

/// Counts an occurrence for which the outbox has no room.
pub type OnOverflow = Box<dyn Fn() + Send + Sync>;

/// Records events; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct EventRecorder {
    kept: Arc<Mutex<RecentEvents>>,
    outbox: Arc<OnceLock<Sender>>,
}

struct Sender {
    queue: mpsc::Sender<Occurrence>,
    on_overflow: OnOverflow,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// The kept events by when they were last seen, and where to find an equal one.
#[derive(Debug, Default)]
struct RecentEvents {
    next: u64,
    events: BTreeMap<u64, Arc<KeptEvent>>,
    places: HashMap<u64, u64>,
    keys: RandomState,
}

impl RecentEvents {
    fn keep(
        &mut self,
        object: &ObjectRef,
        kind: EventType,
        reason: Cow<'static, str>,
        message: String,
        now: Timestamp,
    ) {
        let key = self.keys.hash_one((object, kind, &reason, &message));
        let same = |e: &KeptEvent| {
            e.reason == reason && e.kind == kind && e.object == *object && e.message == message
        };
        let place = self.places.get(&key).copied();
        let known = place.filter(|place| self.events.get(place).is_some_and(|e| same(e)));
        let event = match known.and_then(|place| self.events.remove(&place)) {
            Some(known) => KeptEvent {
                count: known.count.saturating_add(1),
                last_seen: now,
                ..Arc::unwrap_or_clone(known)
            },
            None => KeptEvent {
                object: object.clone(),
                kind,
                reason,
                message,
                count: 1,
                first_seen: now,
                last_seen: now,
            },
        };
        if self.events.len() >= CAPACITY {
            self.drop_oldest();
        }
        self.events.insert(self.next, Arc::new(event));
        self.places.insert(key, self.next);
        self.next += 1;
    }

    fn drop_oldest(&mut self) {
        let Some((place, event)) = self.events.pop_first() else {
            return;
        };
        let key = (&event.object, event.kind, &event.reason, &event.message);
        let key = self.keys.hash_one(key);
        if self.places.get(&key) == Some(&place) {
            self.places.remove(&key);
        }
    }
}

impl EventRecorder {
    /// An empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Logs an event and keeps it, counting it together with an equal earlier one.
    pub fn record(
        &self,
        object: &ObjectRef,
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record_annotated(object, kind, reason, message, Annotations::new());
    }

    /// The same, with annotations for the API server.
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
        let now = Timestamp::now();
        if let Some(outbox) = self.outbox.get() {
            let occurrence = Occurrence {
                object: object.clone(),
                kind,
                reason: reason.clone(),
                message: message.clone(),
                annotations,
                at: now,
            };
            if outbox.queue.try_send(occurrence).is_err() {
                (outbox.on_overflow)();
            }
        }
        self.kept.lock().keep(object, kind, reason, message, now);
    }

    /// From now on occurrences are queued for the caller as well; those for which there is no room are dropped.
    /// `None` if the queue was already taken.
    pub fn outbox(&self, room: usize, on_overflow: OnOverflow) -> Option<Outbox> {
        let (queue, outbox) = mpsc::channel(room);
        let sender = Sender { queue, on_overflow };
        self.outbox.set(sender).ok().map(|()| outbox)
    }

    /// A Normal event about a pod or container.
    pub fn normal(
        &self,
        object: &ObjectRef,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(object, EventType::Normal, reason, message);
    }

    /// A Warning event about a pod or container.
    pub fn warning(
        &self,
        object: &ObjectRef,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(object, EventType::Warning, reason, message);
    }

    /// The kept events, least recently seen first. They are shared, not copied: however many clients
    /// take their time with a list, its texts are there once.
    pub fn recent(&self) -> Vec<Arc<KeptEvent>> {
        self.kept.lock().events.values().cloned().collect()
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
            events
                .iter()
                .map(|e| (e.reason.as_ref(), e.count))
                .collect::<Vec<_>>(),
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
        assert_eq!(recorder.kept.lock().places.len(), CAPACITY);
    }
}
