use super::*;
use crate::apiserver::tests::scripted::{Received, Reply, Scripted};
use crate::base::clock;
use crate::model::PodUid;
use crate::state::events::{EventType, ObjectRef};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

const EVENTS: &str = "/api/v1/namespaces/default/events";

struct World {
    recorder: EventRecorder,
    server: Scripted,
    dropped: Dropped,
    faults: Arc<Mutex<VecDeque<Reply>>>,
    task: tokio::task::AbortHandle,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    /// A sink at work; the API server accepts what it gets after the faults.
    async fn start(faults: Vec<Reply>) -> Self {
        Self::with(faults, |_| None).await
    }

    /// The same; after the faults it refuses requests as `refuses` has it.
    async fn with(
        faults: Vec<Reply>,
        refuses: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let faults = Arc::new(Mutex::new(VecDeque::from(faults)));
        let script = faults.clone();
        let server = Scripted::serve(move |request| {
            let fault = script.lock().pop_front().or_else(|| refuses(request));
            fault.unwrap_or_else(|| Reply::Json(201, request.body.clone()))
        });
        let server = server.await;
        let directory = tempfile::tempdir().unwrap();
        let path = server.kubeconfig(directory.path());
        let api = ApiServer::of_kubeconfig(&path).await.unwrap();
        let recorder = EventRecorder::new();
        let queue = EventQueue::open(&recorder, &Metrics::new()).unwrap();
        let dropped = queue.dropped.clone();
        let rate = EventRate { qps: 0, burst: 0 };
        let sink = EventSink::new(api, queue, "node1".into(), rate);
        let task = tokio::spawn(sink.run());
        Self { recorder, server, dropped, faults, task: task.abort_handle() }
    }

    async fn requests(&self, count: usize) -> Vec<Received> {
        let deadline = clock::instant() + Duration::from_secs(30);
        loop {
            let received = self.server.received();
            if received.len() >= count {
                return received;
            }
            let lines: Vec<_> = received.iter().map(Received::line).collect();
            assert!(clock::instant() < deadline, "{lines:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn dropped(&self, reason: &'static str) -> u64 {
        self.dropped.with([reason]).get()
    }
}

fn pod() -> ObjectRef {
    ObjectRef {
        kind: "Pod",
        namespace: "shop".into(),
        name: "web".into(),
        uid: PodUid::from("uid-1"),
        field_path: "spec.containers{main}".into(),
    }
}

#[tokio::test]
async fn an_event_is_created_as_the_go_kubelet_would_and_equal_ones_are_counted_in_it() {
    let world = World::start(Vec::new()).await;
    world.recorder.warning(&pod(), "BackOff", "again");
    let created = world.requests(1).await.remove(0);
    assert_eq!(created.line(), "POST /api/v1/namespaces/shop/events");
    let mut body = created.body;
    let name = body["metadata"]["name"].take();
    let name = name.as_str().unwrap();
    assert!(name.starts_with("web."), "{name}");
    let shown_by_node = world.recorder.recent()[0].to_api("node1");
    assert_eq!(shown_by_node.metadata.name.as_deref(), Some(name));
    let (first, last) = (body["firstTimestamp"].take(), body["lastTimestamp"].take());
    assert_eq!(first, last);
    assert_eq!(
        body,
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": null, "namespace": "shop" },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "shop",
                "name": "web",
                "uid": "uid-1",
                "fieldPath": "spec.containers{main}",
            },
            "type": "Warning",
            "reason": "BackOff",
            "message": "again",
            "count": 1,
            "firstTimestamp": null,
            "lastTimestamp": null,
            "source": { "component": "kubelet", "host": "node1" },
            "reportingComponent": "kubelet",
            "reportingInstance": "node1",
        })
    );
    world.recorder.warning(&pod(), "BackOff", "again");
    let patched = world.requests(2).await.remove(1);
    let expected = format!("PATCH /api/v1/namespaces/shop/events/{name}");
    assert_eq!(patched.line(), expected);
    assert_eq!((&patched.body["count"], &patched.body["message"]), (&json!(2), &json!("again")));
}

#[tokio::test]
async fn annotations_of_an_event_are_in_its_object() {
    let world = World::start(Vec::new()).await;
    let annotations = [("starved_resource".to_owned(), "memory".to_owned())];
    let (kind, annotations) = (EventType::Warning, annotations.into());
    world.recorder.record_annotated(&pod(), kind, "Evicted", "low", annotations);
    let created = world.requests(1).await.remove(0);
    let expected = json!({ "starved_resource": "memory" });
    assert_eq!(created.body["metadata"]["annotations"], expected);
}

#[tokio::test]
async fn an_event_that_has_expired_is_created_again() {
    let world = World::start(Vec::new()).await;
    let node = ObjectRef::node("node1");
    world.recorder.normal(&node, "A", "m");
    world.requests(1).await;
    world.faults.lock().push_back(Reply::status(404, "NotFound"));
    world.recorder.normal(&node, "A", "m");
    let received = world.requests(3).await;
    let methods: Vec<_> = received.iter().map(|r| r.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST"]);
    assert_eq!(received[2].body["count"], json!(2));
    assert_eq!(received[2].path, EVENTS);
}

#[tokio::test]
async fn events_wait_for_an_api_server_that_is_away_and_equal_ones_become_one_meanwhile() {
    let faults = Mutex::new(VecDeque::from([
        Reply::status(503, "ServiceUnavailable"),
        // It was created, and the response was lost.
        Reply::Bytes(201, b"<garbage>".to_vec()),
        Reply::status(409, "AlreadyExists"),
    ]));
    let refuses = move |request: &Received| {
        let is_first = request.body["message"] == "first";
        is_first.then(|| faults.lock().pop_front()).flatten()
    };
    let world = World::with(Vec::new(), refuses).await;
    let node = ObjectRef::node("node1");
    for message in ["first", "second", "second", "second"] {
        world.recorder.normal(&node, "A", message);
    }
    let received = world.requests(5).await;
    let sent: Vec<(&str, &Value, &Value)> = received
        .iter()
        .map(|r| (r.method.as_str(), &r.body["message"], &r.body["count"]))
        .collect();
    let (first, second) = (json!("first"), json!("second"));
    let of = |message| sent.iter().copied().filter(move |one| one.1 == message);
    let of_first: Vec<_> = of(&first).collect();
    assert_eq!(
        of_first,
        [
            ("POST", &first, &json!(1)),
            ("POST", &first, &json!(1)),
            ("POST", &first, &json!(1)),
            ("PATCH", &first, &json!(1)),
        ]
    );
    let of_second: Vec<_> = of(&second).collect();
    assert_eq!(of_second, [("POST", &second, &json!(3))]);
    assert_eq!(world.dropped("rejected"), 0);
}

#[tokio::test]
async fn an_event_that_is_refused_is_dropped_and_does_not_hold_up_the_next() {
    let world = World::start(vec![Reply::status(403, "Forbidden")]).await;
    let node = ObjectRef::node("node1");
    world.recorder.normal(&node, "A", "refused");
    world.recorder.normal(&node, "B", "taken");
    let received = world.requests(2).await;
    assert_eq!(received[1].body["reason"], "B");
    assert_eq!(world.dropped("rejected"), 1);
}

#[tokio::test]
async fn an_event_in_a_namespace_that_terminates_is_dropped_and_not_counted_as_rejected() {
    let terminating = json!({
        "kind": "Status", "reason": "Forbidden", "message": "it is being terminated",
        "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]},
    });
    let world = World::start(vec![Reply::Json(403, terminating)]).await;
    world.recorder.normal(&pod(), "A", "refused");
    world.recorder.normal(&pod(), "B", "taken");
    let received = world.requests(2).await;
    assert_eq!(received[1].body["reason"], "B");
    assert_eq!(world.dropped("rejected"), 0);
}

#[tokio::test]
async fn an_event_that_the_api_server_always_fails_on_does_not_hold_up_the_others() {
    let fails = |request: &Received| request.body["reason"] == "Fails";
    let refuses =
        move |request: &Received| fails(request).then(|| Reply::status(500, "InternalError"));
    let world = World::with(Vec::new(), refuses).await;
    let node = ObjectRef::node("node1");
    world.recorder.normal(&node, "Fails", "m");
    let started_at = clock::instant();
    for count in 1..=4 {
        world.recorder.normal(&node, "Passes", format!("{count}"));
        let deadline = started_at + Duration::from_secs(5);
        let passed = || world.server.received().iter().filter(|r| !fails(r)).count();
        while passed() < count {
            assert!(clock::instant() < deadline, "{} passed", passed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The one that fails is tried again meanwhile.
        let tries = || world.server.received().iter().filter(|r| fails(r)).count();
        while tries() < count.min(2) {
            assert!(clock::instant() < deadline, "{} tries", tries());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn an_object_with_too_many_events_has_them_dropped_and_counted() {
    let world = World::start(Vec::new()).await;
    let node = ObjectRef::node("node1");
    (0..30).for_each(|_| world.recorder.normal(&node, "A", "m"));
    world.recorder.normal(&pod(), "B", "m");
    let deadline = clock::instant() + Duration::from_secs(30);
    while world.server.received().last().is_none_or(|r| r.body["reason"] != "B") {
        assert!(clock::instant() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(world.dropped("rate"), 5);
}

#[test]
fn what_waits_is_bounded_and_the_oldest_goes() {
    let (mut correlator, now) = (Correlator::new(), clock::instant());
    let mut pending = PendingEvents::new(2);
    let mut put = |message: &str| {
        let occurrence = crate::state::events::Occurrence {
            object: ObjectRef::node("n"),
            kind: crate::state::events::EventType::Normal,
            reason: "A".into(),
            message: message.to_owned(),
            annotations: crate::state::events::Annotations::new(),
            at: jiff::Timestamp::UNIX_EPOCH,
        };
        let (key, record) = correlator.observe(occurrence, now).unwrap();
        pending.put(key, record, now)
    };
    assert_eq!(["a", "b", "b", "c"].map(&mut put), [false, false, false, true]);
    let (key, event) = pending.take(now).unwrap();
    assert_eq!((event.record.message.as_str(), event.record.count), ("b", 2));
    let due = now + Duration::from_secs(1);
    pending.put_back(key, event, due);
    let mut next = |now| pending.take(now).map(|(_, event)| event.record.message);
    assert_eq!(next(now), Some("c".into()), "others come first");
    assert_eq!(next(now), None);
    assert_eq!(next(due), Some("b".into()));
    assert_eq!(pending.next_due(), None);
}

#[test]
fn an_event_is_given_up_after_as_many_tries_as_upstream_has() {
    let seconds = |tries| delay_after(tries).map(|delay| delay.as_secs());
    let delays: Vec<_> = (0..=13).map(seconds).collect();
    let waits = [1, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30].map(Some);
    assert_eq!(delays[..12], waits);
    assert_eq!(delays[12..], [None, None]);
}
