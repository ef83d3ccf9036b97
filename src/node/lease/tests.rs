use super::*;
use crate::apiserver::tests::scripted::{Reply, Scripted};
use crate::base::clock;
use crate::state::node_object::NodeObjectWriter;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_lease_belongs_to_the_present_node_object_and_keeps_what_others_wrote() {
    let new = renewed_lease(None, "n", Some("a"), 40, at(1));
    assert_eq!(new.metadata.name.as_deref(), Some("n"));
    let spec = new.spec.clone().unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n"));
    assert_eq!(spec.lease_duration_seconds, Some(40));
    assert_eq!(spec.renew_time, Some(MicroTime(at(1))));
    let uids = |lease: &Lease| {
        let owners = lease.metadata.owner_references.iter().flatten();
        owners.map(|owner| owner.uid.clone()).collect::<Vec<_>>()
    };
    assert_eq!(uids(&new), ["a"]);
    let mut base = new;
    base.metadata.resource_version = Some("7".into());
    base.spec.as_mut().unwrap().lease_transitions = Some(3);
    let other =
        OwnerReference { kind: "Other".into(), uid: "x".into(), ..OwnerReference::default() };
    base.metadata.owner_references.as_mut().unwrap().push(other);
    let next = renewed_lease(Some(&base), "n", Some("b"), 20, at(2));
    assert_eq!(uids(&next), ["x", "b"]);
    assert_eq!(next.metadata.resource_version.as_deref(), Some("7"));
    let spec = next.spec.clone().unwrap();
    assert_eq!(spec.lease_transitions, Some(3));
    assert_eq!(spec.renew_time, Some(MicroTime(at(2))));
    assert_eq!(uids(&renewed_lease(Some(&next), "n", None, 20, at(3))), ["x", "b"]);
}

/// An API server with at most one lease.
#[derive(Default)]
struct Api {
    lease: Option<Value>,
    version: u64,
    faults: VecDeque<Reply>,
}

impl Api {
    fn reply(&mut self, method: &str, body: &Value) -> Reply {
        if let Some(fault) = self.faults.pop_front() {
            return fault;
        }
        let stored = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        match (method, &self.lease) {
            ("GET" | "PUT", None) => return Reply::status(404, "NotFound"),
            ("GET", Some(lease)) => return Reply::Json(200, lease.clone()),
            ("PUT", Some(lease)) if stored(lease) != stored(body) => {
                return Reply::status(409, "Conflict");
            }
            _ => {}
        }
        self.version += 1;
        let mut lease = body.clone();
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        Reply::Json(200, lease)
    }
}

/// The lease of a node, renewed four times a second.
async fn renewing(api: &Arc<Mutex<Api>>) -> (Scripted, NodeObjectWriter, tokio::task::AbortHandle) {
    let (server, node, task, _) = renewing_beside_a_client(api).await;
    (server, node, task)
}

/// The same with another client of the same connections.
async fn renewing_beside_a_client(
    api: &Arc<Mutex<Api>>,
) -> (Scripted, NodeObjectWriter, tokio::task::AbortHandle, ApiServer) {
    let script = api.clone();
    let server =
        Scripted::serve(move |request| script.lock().reply(&request.method, &request.body)).await;
    let directory = tempfile::tempdir().unwrap();
    let path = server.kubeconfig(directory.path());
    let client = ApiServer::of_kubeconfig(&path).await.unwrap();
    let node = NodeObjectWriter::default();
    let lease = NodeLease::new(client.unlimited(), node.reader(), "n".into(), 1);
    let task = tokio::spawn(lease.run());
    (server, node, task.abort_handle(), client)
}

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.uid = Some("u".into());
    node
}

async fn until(server: &Scripted, what: impl Fn(&[String]) -> bool) -> Vec<String> {
    let deadline = clock::instant() + Duration::from_secs(30);
    loop {
        let received = server.received().into_iter();
        let methods: Vec<_> = received.map(|request| request.method).collect();
        if what(&methods) {
            return methods;
        }
        assert!(clock::instant() < deadline, "{methods:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn it_is_made_when_there_is_a_node_then_renewed_and_made_again_when_it_is_gone() {
    let api = Arc::new(Mutex::new(Api::default()));
    let (server, object, task) = renewing(&api).await;
    sleep(Duration::from_millis(100)).await;
    let methods = until(&server, |methods| !methods.is_empty()).await;
    assert_eq!(methods, ["GET"], "there is no node yet");
    object.set(node());
    let methods = until(&server, |methods| methods.len() >= 5).await;
    assert_eq!(methods[..5], ["GET", "GET", "POST", "PUT", "PUT"]);
    let owner = api.lock().lease.clone().unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &json!("u")));
    api.lock().lease = None;
    let made = |methods: &[String]| methods.iter().filter(|m| *m == "POST").count() == 2;
    until(&server, made).await;
    task.abort();
}

#[tokio::test]
async fn conflicts_and_failures_are_got_over() {
    let api = Arc::new(Mutex::new(Api::default()));
    let (server, object, task) = renewing(&api).await;
    object.set(node());
    until(&server, |methods| methods.ends_with(&["PUT".to_owned()])).await;
    {
        // Somebody else has written it.
        let mut api = api.lock();
        api.lease.as_mut().unwrap()["metadata"]["resourceVersion"] = json!("other");
        api.faults = VecDeque::from([
            Reply::status(500, "InternalError"),
            Reply::Bytes(200, b"<garbage>".to_vec()),
        ]);
    }
    let before = server.received().len();
    let recovered = |methods: &[String]| {
        let after = methods.get(before..).unwrap_or_default();
        after.iter().any(|method| method == "GET") && after.ends_with(&["PUT".to_owned()])
    };
    until(&server, recovered).await;
    assert!(api.lock().faults.is_empty());
    task.abort();
}

#[tokio::test]
async fn it_is_renewed_soon_after_any_request_found_the_api_server_back() {
    let api = Arc::new(Mutex::new(Api::default()));
    let (server, object, task, client) = renewing_beside_a_client(&api).await;
    object.set(node());
    until(&server, |methods| methods.ends_with(&["PUT".to_owned()])).await;
    server.set_away(true);
    // The next try is then more than a second away.
    sleep(Duration::from_millis(3700)).await;
    server.set_away(false);
    let known = server.received().len();
    let place = ResourcePath::namespaced(NAMESPACE, "n");
    let lease = client.get::<Lease>(place).await;
    assert!(lease.is_ok(), "{lease:?}");
    let begun = clock::instant();
    let renewed = |methods: &[String]| methods.iter().skip(known).any(|method| method == "PUT");
    until(&server, renewed).await;
    let took = clock::since(begun);
    assert!(took < Duration::from_millis(1000), "{took:?}");
    task.abort();
}

#[tokio::test]
async fn a_lease_that_is_there_is_renewed_although_the_node_object_cannot_be_read() {
    let lease = json!({"metadata": {
        "name": "n",
        "namespace": NAMESPACE,
        "resourceVersion": "0",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
    }});
    let api = Arc::new(Mutex::new(Api { lease: Some(lease), ..Api::default() }));
    let (server, object, task) = renewing(&api).await;
    let methods = until(&server, |methods| methods.len() >= 3).await;
    assert_eq!(methods[..3], ["GET", "PUT", "PUT"]);
    let lease = api.lock().lease.clone().unwrap();
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u");
    // It is gone, and without a node none is made.
    api.lock().lease = None;
    until(&server, |methods| methods.iter().filter(|m| *m == "GET").count() >= 3).await;
    assert_eq!(api.lock().lease, None);
    drop(object);
    task.abort();
}
