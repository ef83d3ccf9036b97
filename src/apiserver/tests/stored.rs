//! An API server that stores objects: lists and watches them, and issues what is posted to subresources.

use super::super::ApiServer;
use super::scripted::{Pushed, Received, Reply, Scripted};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::watch;

/// What the server does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Serving,
    /// It responds with this status.
    Refusing(u16),
    /// It does not respond.
    Silent,
}

type Post = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// The server; it ends with the test.
pub struct Stored {
    server: Scripted,
    state: Arc<State>,
}

struct State {
    events: Mutex<Vec<Event>>,
    latest: watch::Sender<usize>,
    mode: watch::Sender<Mode>,
    watches: AtomicUsize,
    lists: AtomicUsize,
    posts: Mutex<Vec<(String, Value)>>,
    patches: Mutex<Vec<(String, Value)>>,
    post: Mutex<Arc<Post>>,
    stores_posts: AtomicBool,
}

#[derive(Clone)]
struct Event {
    kind: &'static str,
    place: Place,
    object: Value,
}

/// `configmaps`, its namespace, its name.
#[derive(Clone, PartialEq)]
struct Place {
    resource: String,
    namespace: String,
    name: String,
}

/// What is listed or watched.
struct Query {
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Query {
    fn covers(&self, place: &Place) -> bool {
        self.resource == place.resource
            && self.namespace.as_ref().is_none_or(|n| *n == place.namespace)
            && self.name.as_ref().is_none_or(|n| *n == place.name)
    }
}

impl Stored {
    pub async fn start() -> Self {
        let state = Arc::new(State {
            events: Mutex::default(),
            latest: watch::Sender::new(0),
            mode: watch::Sender::new(Mode::Serving),
            watches: AtomicUsize::new(0),
            lists: AtomicUsize::new(0),
            posts: Mutex::default(),
            patches: Mutex::default(),
            post: Mutex::new(Arc::new(|_, _| (404, json!({})))),
            stores_posts: AtomicBool::new(false),
        });
        let of = state.clone();
        let server = Scripted::serve(move |request| answer(&of, request)).await;
        Self { server, state }
    }

    pub async fn client(&self) -> ApiServer {
        let dir = tempfile::tempdir().expect("a directory");
        let client = ApiServer::of_kubeconfig(&self.server.kubeconfig(dir.path())).await;
        client.expect("a client")
    }

    /// Creates or replaces an object.
    pub fn put(&self, resource: &str, namespace: &str, name: &str, mut object: Value) {
        let place =
            Place { resource: resource.into(), namespace: namespace.into(), name: name.into() };
        let exists = self.state.objects().iter().any(|(at, _)| *at == place);
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        self.state.record(if exists { "MODIFIED" } else { "ADDED" }, place, object);
    }

    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let found = self.state.objects();
        let found = found.into_iter().find(|(at, _)| {
            at.resource == resource && at.namespace == namespace && at.name == name
        });
        let (place, object) = found.expect("an object");
        self.state.record("DELETED", place, object);
    }

    /// How requests are treated from now on; open watches end.
    pub fn set(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// Answers to posts from now on: of the path and the body, the status and the body.
    pub fn on_post(&self, post: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) {
        *self.state.post.lock() = Arc::new(post);
    }

    /// What is answered to posts with 201 is stored from now on, by its name.
    pub fn store_posts(&self) {
        self.state.stores_posts.store(true, Ordering::SeqCst);
    }

    /// All posts so far: path and body.
    pub fn posts(&self) -> Vec<(String, Value)> {
        self.state.posts.lock().clone()
    }

    /// All patches of statuses so far: resource with name, and body.
    pub fn patches(&self) -> Vec<(String, Value)> {
        self.state.patches.lock().clone()
    }

    /// An object as it is now.
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let objects = self.state.objects().into_iter();
        let mut objects = objects.filter(|(at, _)| at.resource == resource);
        let found = objects.find(|(at, _)| at.namespace == namespace && at.name == name)?;
        Some(found.1)
    }

    /// How many requests of an object there were: of `persistentvolumes/pv1`.
    pub fn reads(&self, object: &str) -> usize {
        let received = self.server.received().into_iter();
        let reads = received.filter(|it| it.method == "GET" && it.path.ends_with(object));
        reads.count()
    }

    /// How many requests there were.
    pub fn requests(&self) -> usize {
        self.server.received().len()
    }

    /// How many watches are open.
    pub fn watches(&self) -> usize {
        self.state.watches.load(Ordering::SeqCst)
    }

    /// How many lists there were.
    pub fn lists(&self) -> usize {
        self.state.lists.load(Ordering::SeqCst)
    }
}

impl State {
    fn record(&self, kind: &'static str, place: Place, mut object: Value) {
        let mut events = self.events.lock();
        object["metadata"]["resourceVersion"] = (events.len() + 1).to_string().into();
        events.push(Event { kind, place, object });
        self.latest.send_replace(events.len());
    }

    fn objects(&self) -> Vec<(Place, Value)> {
        let mut objects: Vec<(Place, Value)> = Vec::new();
        for event in self.events.lock().iter() {
            objects.retain(|(place, _)| *place != event.place);
            if event.kind != "DELETED" {
                objects.push((event.place.clone(), event.object.clone()));
            }
        }
        objects
    }
}

impl State {
    /// Patches an object that has the patch's UID and version.
    fn patched(&self, resource: &str, namespace: &str, name: &str, patch: &Value) -> Reply {
        self.patches.lock().push((format!("{resource}/{name}"), patch.clone()));
        let found = self.objects().into_iter().find(|(at, _)| {
            at.resource == resource && at.namespace == namespace && at.name == name
        });
        let Some((place, mut object)) = found else {
            return Reply::status(404, "NotFound");
        };
        for field in ["uid", "resourceVersion"] {
            let expected = &patch["metadata"][field];
            if !expected.is_null() && object["metadata"][field] != *expected {
                return Reply::status(409, "Conflict");
            }
        }
        let mut patch = patch.clone();
        patch["metadata"] = object["metadata"].clone();
        merge(&mut object, patch);
        self.record("MODIFIED", place, object.clone());
        object["metadata"]["resourceVersion"] = self.events.lock().len().to_string().into();
        Reply::Json(200, object)
    }
}

/// As a strategic merge patch, where conditions are the only lists that are merged.
fn merge(into: &mut Value, patch: Value) {
    let (Value::Object(old), Value::Object(new)) = (&mut *into, &patch) else {
        *into = patch;
        return;
    };
    for (key, value) in new.clone() {
        match value {
            Value::Null => drop(old.remove(&key)),
            Value::Array(conditions) if key == "conditions" => {
                let list = old.entry(key).or_insert(json!([]));
                let list = list.as_array_mut().expect("a list");
                for condition in conditions {
                    list.retain(|known| known["type"] != condition["type"]);
                    if condition["$patch"] != "delete" {
                        list.push(condition);
                    }
                }
            }
            value => merge(old.entry(key).or_insert(json!({})), value),
        }
    }
}

/// Where an object is that is posted to a namespace.
fn place_of(path: &str, object: &Value) -> Place {
    let mut parts = path.rsplit('/').map(str::to_owned);
    let (resource, namespace) = (parts.next(), parts.next());
    Place {
        resource: resource.unwrap_or_default(),
        namespace: namespace.unwrap_or_default(),
        name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
    }
}

fn answer(state: &Arc<State>, request: &Received) -> Reply {
    match *state.mode.borrow() {
        Mode::Refusing(status) => return Reply::status(status, "Refused"),
        Mode::Silent => return Reply::Silence,
        Mode::Serving => {}
    }
    if request.method == "POST" {
        let (path, body) = (request.path.clone(), request.body.clone());
        state.posts.lock().push((path.clone(), body.clone()));
        let post = state.post.lock().clone();
        let (status, answer) = post(&path, &body);
        if status == 201 && state.stores_posts.load(Ordering::SeqCst) {
            state.record("ADDED", place_of(&path, &answer), answer.clone());
        }
        return Reply::Json(status, answer);
    }
    let parts: Vec<&str> = request.path.split('/').collect();
    let namespaced = parts.iter().position(|part| *part == "namespaces");
    let version = if parts.get(1) == Some(&"api") { 3 } else { 4 };
    let rest = parts.get(namespaced.map_or(version, |at| at + 2)..);
    if let Some([resource, name]) = rest {
        let namespace = namespaced.map_or("", |at| parts[at + 1]);
        let found = state.objects().into_iter().find(|(at, _)| {
            at.resource == *resource && at.namespace == namespace && at.name == *name
        });
        return found
            .map_or(Reply::status(404, "NotFound"), |(_, object)| Reply::Json(200, object));
    }
    if let (Some([resource, name, "status"]), "PATCH") = (rest, request.method.as_str()) {
        let namespace = namespaced.map_or("", |at| parts[at + 1]);
        return state.patched(resource, namespace, name, &request.body);
    }
    let selector = request.parameter("fieldSelector");
    let query = Query {
        resource: parts.last().copied().unwrap_or_default().to_owned(),
        namespace: namespaced.map(|at| parts[at + 1].to_owned()),
        name: selector.and_then(|it| {
            let names = it.split(',').map(|one| one.strip_prefix("metadata.name="));
            names.flatten().next().map(str::to_owned)
        }),
    };
    if request.parameter("watch").is_some() {
        let from = request.parameter("resourceVersion");
        let from = from.and_then(|it| it.parse().ok()).expect("a version");
        let (pushed, reply) = Reply::stream();
        state.watches.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(watch_from(Open(state.clone()), query, from, pushed));
        return reply;
    }
    state.lists.fetch_add(1, Ordering::SeqCst);
    let version = state.events.lock().len();
    let objects = state.objects().into_iter();
    let items: Vec<Value> =
        objects.filter(|(place, _)| query.covers(place)).map(|(_, object)| object).collect();
    let version = version.to_string();
    Reply::Json(200, json!({"metadata": {"resourceVersion": version}, "items": items}))
}

/// Counts an open watch.
struct Open(Arc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn watch_from(open: Open, query: Query, mut at: usize, pushed: Pushed) {
    let (mut latest, mut mode) = (open.0.latest.subscribe(), open.0.mode.subscribe());
    loop {
        let event = open.0.events.lock().get(at).cloned();
        let Some(event) = event else {
            tokio::select! {
                _ = latest.wait_for(|latest| *latest > at) => continue,
                _ = mode.changed() => return,
                () = pushed.closed() => return,
            }
        };
        at += 1;
        if query.covers(&event.place) {
            pushed.line(&json!({"type": event.kind, "object": event.object})).await;
        }
    }
}
