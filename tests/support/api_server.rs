//! An API server that keeps objects of any kind, and goes wrong as scripted. It knows no rules: what they are
//! is tested with a real one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

/// How requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As they should be.
    Well,
    /// With this status, all of them.
    Status(u16),
    /// Not at all; watches say nothing.
    Silent,
    /// With what is no JSON.
    Garbage,
    /// Lists have nothing in them and no object exists.
    Empty,
    /// Connections are cut.
    Away,
}

/// An object's place: `/api/v1`, its namespace, `pods`, and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    api: String,
    namespace: Option<String>,
    resource: String,
    name: Option<String>,
    subresource: Option<String>,
}

impl Place {
    fn of(path: &str) -> Option<Place> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let api = if *parts.first()? == "api" { 2 } else { 3 };
        let (api, mut rest) = (parts.get(..api)?.join("/"), parts.get(api..)?.iter());
        let mut resource = (*rest.next()?).to_owned();
        let mut namespace = None;
        if resource == "namespaces" && rest.len() > 1 {
            namespace = rest.next().map(|part| (*part).to_owned());
            resource = (*rest.next()?).to_owned();
        }
        let mut next = || rest.next().map(|part| (*part).to_owned());
        let (name, subresource) = (next(), next());
        Some(Place { api, namespace, resource, name, subresource })
    }

    fn holds(&self, other: &Place) -> bool {
        self.api == other.api
            && self.resource == other.resource
            && (self.namespace.is_none() || self.namespace == other.namespace)
            && (self.name.is_none() || self.name == other.name)
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub body: Value,
}

/// The objects, and every change of them so that a watch misses none.
#[derive(Default)]
struct Objects {
    version: u64,
    stored: BTreeMap<Place, Value>,
    /// Version, place and event of each change.
    changes: Vec<(u64, Place, Value)>,
}

impl Objects {
    /// Gives the object the next version.
    fn number(&mut self, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    /// Keeps the event for later watches and returns it for those that run.
    fn changed(&mut self, place: &Place, kind: &str, object: &Value) -> (Place, Value) {
        let event = event(kind, object);
        self.changes.push((self.version, place.clone(), event.clone()));
        (place.clone(), event)
    }
}

type Observer = Box<dyn Fn(&str, &Value) + Send + Sync>;

struct Shared {
    objects: Mutex<Objects>,
    observers: Mutex<Vec<Observer>>,
    deletion_observers: Mutex<Vec<Observer>>,
    mode: watch::Sender<Mode>,
    events: broadcast::Sender<(Place, Value)>,
    seen: Mutex<Vec<Seen>>,
}

/// The server; it ends with the test.
pub struct FakeApiServer {
    shared: Arc<Shared>,
    listener: TcpListener,
    port: u16,
}

impl FakeApiServer {
    pub async fn start() -> FakeApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            objects: Mutex::default(),
            observers: Mutex::default(),
            deletion_observers: Mutex::default(),
            mode: watch::Sender::new(Mode::Well),
            events: broadcast::channel(1024).0,
            seen: Mutex::default(),
        });
        let server = FakeApiServer { shared, listener, port };
        server.resume();
        server
    }

    /// Goes on with another tokio runtime, after the one before is gone with all its tasks.
    pub fn resume(&self) {
        let listener = self.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        tokio::spawn(serve(listener.expect("the listener"), self.shared.clone()));
    }

    /// Writes a kubeconfig for it.
    pub fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let path = dir.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": format!("http://127.0.0.1:{}", self.port)}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).expect("write");
        path
    }

    /// From now on; what is under way is cut.
    pub fn answer(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Adds or replaces an object.
    pub fn put(&self, path: &str, object: Value) {
        self.shared.put(Place::of(path).expect("a path"), object);
    }

    /// Takes an object away.
    pub fn remove(&self, path: &str) {
        self.shared.remove(&Place::of(path).expect("a path"));
    }

    /// As after a restore of a backup: the versions of changes from now on begin again after this one. The objects stay.
    pub fn restore(&self, version: u64) {
        let mut objects = self.shared.objects.lock();
        objects.version = version;
        objects.changes.clear();
    }

    /// An object as it is now.
    pub fn object(&self, path: &str) -> Option<Value> {
        let place = Place::of(path).expect("a path");
        self.shared.objects.lock().stored.get(&place).cloned()
    }

    /// All objects of a path without a name; that of pods has those of all namespaces.
    pub fn all(&self, path: &str) -> Vec<Value> {
        let list = self.shared.list(&Place::of(path).expect("a path"), None);
        list["items"].as_array().cloned().expect("items")
    }

    /// Calls this with the resource and the object of every write, before the next one. It must not use this server.
    pub fn observe(&self, observer: impl Fn(&str, &Value) + Send + Sync + 'static) {
        self.shared.observers.lock().push(Box::new(observer));
    }

    /// Calls this with the resource and the object of every deletion by a client, after it.
    pub fn observe_deletions(&self, observer: impl Fn(&str, &Value) + Send + Sync + 'static) {
        self.shared.deletion_observers.lock().push(Box::new(observer));
    }

    /// Requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }
}

impl Shared {
    fn put(&self, place: Place, mut object: Value) -> Value {
        let mut objects = self.objects.lock();
        objects.number(&mut object);
        let old = objects.stored.insert(place.clone(), object.clone());
        for observer in self.observers.lock().iter() {
            observer(&place.resource, &object);
        }
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        let _ = self.events.send(objects.changed(&place, kind, &object));
        object
    }

    fn remove(&self, place: &Place) -> Option<Value> {
        let mut objects = self.objects.lock();
        let mut object = objects.stored.remove(place)?;
        objects.number(&mut object);
        let _ = self.events.send(objects.changed(place, "DELETED", &object));
        Some(object)
    }

    fn list(&self, of: &Place, name: Option<&str>) -> Value {
        let objects = self.objects.lock();
        let named = |object: &Value| name.is_none_or(|name| object["metadata"]["name"] == name);
        let items = objects.stored.iter().filter(|(place, _)| of.holds(place));
        let items: Vec<_> = items.map(|(_, object)| object.clone()).filter(named).collect();
        json!({"metadata": {"resourceVersion": objects.version.to_string()}, "items": items})
    }

    /// Events from now on; what happened between a list and its watch is put before them.
    fn watch(&self, of: Place, name: Option<String>, since: u64) -> Body {
        let objects = self.objects.lock();
        let fits = move |place: &Place, object: &Value| {
            let named = |name: &String| object["metadata"]["name"] == name.as_str();
            of.holds(place) && name.as_ref().is_none_or(named)
        };
        let missed = objects
            .changes
            .iter()
            .filter(|(version, place, event)| *version > since && fits(place, &event["object"]));
        let missed: Vec<_> = missed.map(|(_, _, event)| line(event)).collect();
        let live = futures::stream::unfold(self.events.subscribe(), |mut events| async {
            let sent = events.recv().await.expect("a test makes few events");
            Some((sent, events))
        });
        let live = live.filter_map(move |(place, event)| {
            let object = &event["object"];
            // As the real one: a watch has nothing of an earlier version than it asked for.
            let version = object["metadata"]["resourceVersion"].as_str();
            let version: u64 = version.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
            let line = (version > since && fits(&place, object)).then(|| line(&event));
            std::future::ready(line)
        });
        let lines = futures::stream::iter(missed).chain(live);
        let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(line)));
        StreamBody::new(frames).boxed_unsync()
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

fn line(event: &Value) -> Bytes {
    Bytes::from(format!("{event}\n"))
}

async fn serve(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let mut mode = shared.mode.subscribe();
            let before = *mode.borrow_and_update();
            if before == Mode::Away {
                return;
            }
            let service = service_fn(|request| answer(request, shared.clone()));
            let connection = hyper::server::conn::http1::Builder::new();
            let connection = connection.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = connection => {}
                _ = mode.changed() => {}
            }
        });
    }
}

fn whole(status: u16, body: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_owned())).boxed_unsync();
    let response = Response::builder().status(status);
    response.body(body).expect("a response")
}

fn refused(status: u16, reason: &str) -> Response<Body> {
    let body = json!({"kind": "Status", "reason": reason, "message": "scripted", "code": status});
    whole(status, &body.to_string())
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, Infallible> {
    let mode = *shared.mode.borrow();
    let (parts, body) = request.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    shared.seen.lock().push(Seen {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        body: body.clone(),
    });
    Ok(match mode {
        Mode::Well => well(&parts.method, parts.uri.path(), &query, body, &shared),
        Mode::Status(status) => refused(status, "Scripted"),
        Mode::Silent | Mode::Away => std::future::pending().await,
        Mode::Garbage => whole(200, "<html>"),
        Mode::Empty if parts.method == Method::GET && !query.contains("watch=true") => {
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
            whole(200, &list.to_string())
        }
        Mode::Empty => std::future::pending().await,
    })
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut of_name = pairs.filter(|(key, _)| *key == name);
    let value = of_name.next()?.1;
    let value = percent_encoding::percent_decode_str(value).decode_utf8();
    Some(value.expect("UTF-8").into_owned())
}

fn well(method: &Method, path: &str, query: &str, body: Value, shared: &Shared) -> Response<Body> {
    let Some(place) = Place::of(path) else {
        return refused(404, "NotFound");
    };
    let found = |object: Option<Value>| match object {
        Some(object) => whole(200, &object.to_string()),
        None => refused(404, "NotFound"),
    };
    let object_place = Place { subresource: None, ..place.clone() };
    let stored = || shared.objects.lock().stored.get(&object_place).cloned();
    match (method.as_str(), &place.name) {
        ("GET", None) => {
            let selector = parameter(query, "fieldSelector").unwrap_or_default();
            let mut fields = selector.split(',');
            let name = fields.find_map(|field| field.strip_prefix("metadata.name="));
            if !query.contains("watch=true") {
                return whole(200, &shared.list(&place, name).to_string());
            }
            let since = parameter(query, "resourceVersion").and_then(|text| text.parse().ok());
            let name = name.map(str::to_owned);
            let body = shared.watch(place, name, since.unwrap_or_default());
            Response::new(body)
        }
        ("GET", Some(_)) => found(stored()),
        ("POST", None) => {
            let name = body["metadata"]["name"].as_str().map(str::to_owned);
            let place = Place { name, ..place };
            if shared.objects.lock().stored.contains_key(&place) {
                return refused(409, "AlreadyExists");
            }
            let mut object = body;
            if object["metadata"]["uid"].is_null() {
                object["metadata"]["uid"] = json!(format!("uid-{}", shared.objects.lock().version));
            }
            whole(201, &shared.put(place, object).to_string())
        }
        ("PUT", Some(_)) => found(stored().map(|_| shared.put(object_place.clone(), body))),
        // A client may name the object that it means, as another one may have its name now.
        ("PATCH", Some(_)) if is_other(&body["metadata"]["uid"], stored()) => {
            refused(409, "Conflict")
        }
        ("DELETE", Some(_)) if is_other(&body["preconditions"]["uid"], stored()) => {
            refused(409, "Conflict")
        }
        ("PATCH", Some(_)) => found(stored().map(|mut object| {
            merge(&mut object, body);
            shared.put(object_place.clone(), object)
        })),
        ("DELETE", Some(_)) => {
            let removed = shared.remove(&object_place);
            if let Some(object) = &removed {
                for observer in shared.deletion_observers.lock().iter() {
                    observer(&place.resource, object);
                }
            }
            found(removed)
        }
        // Of a collection, of which there is nothing here.
        ("DELETE", None) => whole(200, "{}"),
        _ => refused(405, "MethodNotAllowed"),
    }
}

fn is_other(uid: &Value, stored: Option<Value>) -> bool {
    !uid.is_null() && stored.is_some_and(|object| object["metadata"]["uid"] != *uid)
}

/// As a strategic patch: of the lists that it merges by a key the server knows `conditions`, all others are replaced.
fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(&key);
                } else if key == "conditions" {
                    merge_conditions(into.entry(key).or_insert(json!([])), value);
                } else if !key.starts_with('$') {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch) => *into = patch,
    }
}

/// Conditions are merged by their type.
fn merge_conditions(into: &mut Value, patch: Value) {
    let (Value::Array(into), Value::Array(patch)) = (into, patch) else {
        return;
    };
    for condition in patch {
        if condition["$patch"] == "delete" {
            into.retain(|old| old["type"] != condition["type"]);
            continue;
        }
        match into.iter_mut().find(|old| old["type"] == condition["type"]) {
            Some(old) => merge(old, condition),
            None => into.push(condition),
        }
    }
}
