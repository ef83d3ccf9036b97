//! An API server that stores objects: lists and watches them, and issues what is posted to subresources.

use super::{
    super::ApiServer,
    scripted::{Reply, Scripted, reply},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
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
    post: Mutex<Arc<Post>>,
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
            && self
                .namespace
                .as_ref()
                .is_none_or(|n| *n == place.namespace)
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
            post: Mutex::new(Arc::new(|_, _| (404, json!({})))),
        });
        let of = state.clone();
        let serve = move |request, known| -> BoxFuture<'static, _> {
            Box::pin(answer(of.clone(), request, known))
        };
        let server = Scripted::serve(serve).await;
        Self { server, state }
    }

    pub async fn client(&self) -> ApiServer {
        let dir = tempfile::tempdir().expect("a directory");
        let client = ApiServer::of_kubeconfig(&self.server.kubeconfig(dir.path())).await;
        client.expect("a client")
    }

    /// Creates or replaces an object.
    pub fn put(&self, resource: &str, namespace: &str, name: &str, mut object: Value) {
        let place = Place {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let exists = self.state.objects().iter().any(|(at, _)| *at == place);
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        self.state
            .record(if exists { "MODIFIED" } else { "ADDED" }, place, object);
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

    /// All posts so far: path and body.
    pub fn posts(&self) -> Vec<(String, Value)> {
        self.state.posts.lock().clone()
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
        events.push(Event {
            kind,
            place,
            object,
        });
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

async fn answer(state: Arc<State>, request: Request<Incoming>, known: bool) -> Response<Reply> {
    let mode = *state.mode.borrow();
    match mode {
        Mode::Refusing(status) => return refusal(status),
        Mode::Silent => std::future::pending().await,
        Mode::Serving if !known => return refusal(401),
        Mode::Serving => {}
    }
    let path = request.uri().path().to_owned();
    if request.method() == Method::POST {
        let body = request.into_body().collect().await.expect("a body");
        let body: Value = serde_json::from_slice(&body.to_bytes()).expect("JSON");
        state.posts.lock().push((path.clone(), body.clone()));
        let post = state.post.lock().clone();
        let (status, answer) = post(&path, &body);
        return reply(status, answer.to_string());
    }
    let parameter = |name: &str| {
        let query = request.uri().query().unwrap_or_default();
        let found = query
            .split('&')
            .find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        found.map(|it| percent_decode_str(it).decode_utf8_lossy().into_owned())
    };
    let parts: Vec<&str> = path.split('/').collect();
    let namespaced = parts.iter().position(|part| *part == "namespaces");
    let selector = parameter("fieldSelector");
    let query = Query {
        resource: parts.last().copied().unwrap_or_default().to_owned(),
        namespace: namespaced.map(|at| parts[at + 1].to_owned()),
        name: selector.map(|it| it.trim_start_matches("metadata.name=").to_owned()),
    };
    if parameter("watch").is_some() {
        let from = parameter("resourceVersion").and_then(|it| it.parse().ok());
        return watch_from(state, query, from.expect("a version"));
    }
    state.lists.fetch_add(1, Ordering::SeqCst);
    let version = state.events.lock().len();
    let objects = state.objects().into_iter();
    let items: Vec<Value> = objects
        .filter(|(place, _)| query.covers(place))
        .map(|(_, object)| object)
        .collect();
    let version = version.to_string();
    let list = json!({"metadata": {"resourceVersion": version}, "items": items});
    reply(200, list.to_string())
}

fn refusal(status: u16) -> Response<Reply> {
    let body = json!({"kind": "Status", "message": "refused by the test"});
    reply(status, body.to_string())
}

/// Counts an open watch.
struct Open(Arc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::SeqCst);
    }
}

fn watch_from(state: Arc<State>, query: Query, from: usize) -> Response<Reply> {
    state.watches.fetch_add(1, Ordering::SeqCst);
    let (latest, mode) = (state.latest.subscribe(), state.mode.subscribe());
    let begun = (Open(state), query, from, latest, mode);
    let events = futures::stream::unfold(begun, async |begun| {
        let (open, query, mut at, mut latest, mut mode) = begun;
        loop {
            let event = open.0.events.lock().get(at).cloned();
            if let Some(event) = event {
                at += 1;
                if query.covers(&event.place) {
                    let line = json!({"type": event.kind, "object": event.object});
                    let frame = Frame::data(Bytes::from(format!("{line}\n")));
                    return Some((Ok::<_, Infallible>(frame), (open, query, at, latest, mode)));
                }
                continue;
            }
            tokio::select! {
                _ = latest.wait_for(|latest| *latest > at) => {}
                _ = mode.changed() => return None,
            }
        }
    });
    Response::new(StreamBody::new(events).boxed())
}
