//! Lists and watches of objects, for ever.

use super::{
    ApiError, ApiServer,
    metrics::Method as Counted,
    request::{parameter, path, request, whole},
    transport::WatchSlot,
};
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt as _;
use k8s_openapi::{Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::client::Body;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{marker::PhantomData, mem, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Deadline of one page, and of the head of the response to a watch.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A watch ends after this at least and twice this at most, as client-go's do.
const MIN_WATCH: Duration = Duration::from_secs(300);
/// A watch that has not ended by itself so much later is given up.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// The longest event of a watch, bytes: several times what the API server stores.
const MAX_EVENT: usize = 32 * 1024 * 1024;
/// The delay before the next try doubles from the first to the second.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Which objects of a kind.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Those of one namespace; `None` for all.
    pub namespace: Option<String>,
    /// A field selector, such as `metadata.name=web`.
    pub field_selector: Option<String>,
}

/// An object, or what is known of one that cannot be decoded.
pub type Item<K> = Result<Box<K>, Unreadable>;

/// An object that cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Why it cannot be decoded.
    pub why: String,
}

/// What a watch says next.
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// All objects there are. What was known before and is not among them is gone.
    Listed(Vec<Item<K>>),
    /// An object was added or changed.
    Applied(Item<K>),
    /// An object is gone; its last state.
    Deleted(Item<K>),
    /// A list or watch failed. Nothing known becomes untrue by that.
    Failed(Arc<ApiError>),
}

/// Objects of one kind: lists them, watches them, resumes the watch where it ended, lists again where that cannot
/// be, and after a failure waits before the next try.
pub struct ListWatch<K> {
    target: Target,
    /// The version of the last list or event; `None` before the first list.
    version: Option<String>,
    stream: Option<Stream>,
    delay: Option<Duration>,
    next_try: Instant,
    kind: PhantomData<fn() -> K>,
}

/// What is listed and watched.
struct Target {
    api: ApiServer,
    selection: Selection,
    /// The path of the collection.
    path: String,
}

struct Stream {
    body: Body,
    buffer: BytesMut,
    /// How much of the buffer is known to contain no end of a line.
    searched: usize,
    until: Instant,
    _slot: WatchSlot,
}

#[derive(Deserialize)]
struct List<'a> {
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
struct OnlyMetadata {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// What one line of a watch is.
enum Line<K> {
    Event(WatchEvent<K>, Option<String>),
    Bookmark(Option<String>),
    Error(ApiError),
}

impl ApiServer {
    /// Lists and watches objects from the next call of [`ListWatch::next`] on.
    pub fn list_watch<K: Resource>(&self, selection: Selection) -> ListWatch<K> {
        ListWatch {
            target: Target {
                api: self.clone(),
                path: path::<K>(selection.namespace.as_deref(), None, None),
                selection,
            },
            version: None,
            stream: None,
            delay: None,
            next_try: Instant::now(),
            kind: PhantomData,
        }
    }
}

impl<K: Resource + DeserializeOwned> ListWatch<K> {
    /// Waits for the next event. Cancelling it loses nothing.
    pub async fn next(&mut self) -> WatchEvent<K> {
        loop {
            sleep_until(self.next_try).await;
            match self.step().await {
                Ok(Some(event)) => {
                    self.delay = None;
                    return event;
                }
                Ok(None) => {}
                Err(error) => {
                    self.stream = None;
                    if error.is_gone() {
                        self.version = None;
                    }
                    self.back_off();
                    return WatchEvent::Failed(Arc::new(error));
                }
            }
        }
    }

    fn back_off(&mut self) {
        let delay = self
            .delay
            .map_or(FIRST_DELAY, |last| (last * 2).min(MAX_DELAY));
        self.delay = Some(delay);
        self.next_try = Instant::now() + delay.mul_f64(1.0 + 0.5 * fastrand::f64());
    }

    /// One request, or one piece of the response to a watch; `None` when there is nothing to report yet.
    async fn step(&mut self) -> Result<Option<WatchEvent<K>>, ApiError> {
        let Some(version) = self.version.clone() else {
            let (version, items) = self.target.list().await?;
            self.version = Some(version);
            return Ok(Some(WatchEvent::Listed(items)));
        };
        let Some(stream) = &mut self.stream else {
            self.stream = Some(self.target.open(&version).await?);
            return Ok(None);
        };
        let Some(line) = stream.line().await? else {
            // It ended, as it was asked to. The next one begins where it stopped, not at once in case the server
            // ends each of them.
            self.stream = None;
            self.next_try = Instant::now() + FIRST_DELAY.mul_f64(fastrand::f64());
            return Ok(None);
        };
        match parsed(&line)? {
            Line::Event(event, version) => {
                self.version = version.or(self.version.take());
                Ok(Some(event))
            }
            Line::Bookmark(version) => {
                self.version = version.or(self.version.take());
                self.delay = None;
                Ok(None)
            }
            Line::Error(error) => Err(error),
        }
    }
}

impl Target {
    /// All pages of a consistent list: the first is read from storage and not from a cache that may lag behind.
    async fn list<K: DeserializeOwned>(&self) -> Result<(String, Vec<Item<K>>), ApiError> {
        let mut items = Vec::new();
        let mut next = None;
        loop {
            let mut query = vec![format!("limit={PAGE}")];
            query.extend(next.map(|next: String| parameter("continue", &next)));
            let body = self.get(query).await?;
            let page: List<'_> =
                serde_json::from_slice(&body).map_err(|error| ApiError::unreadable(&error))?;
            items.extend(page.items.unwrap_or_default().into_iter().map(decoded));
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok((page.metadata.resource_version, items));
            }
        }
    }

    async fn get(&self, query: Vec<String>) -> Result<Bytes, ApiError> {
        let exchange = async {
            let mut observed = self.api.observed(Counted::of(&Method::GET));
            let request = request(Method::GET, self.uri(query), Bytes::new(), "")?;
            let connection = self.api.connection.current().await;
            let client = connection.transport.for_request();
            let client = client.ok_or_else(|| ApiError::Unreachable("no connection".into()))?;
            let sent = client.send(request).await;
            let response = sent.map_err(|error| ApiError::Unreachable(error.into()))?;
            observed.answered(response.status());
            whole(response).await
        };
        let exchanged = timeout(TIMEOUT, exchange).await;
        exchanged.unwrap_or(Err(ApiError::Late(TIMEOUT)))
    }

    fn uri(&self, mut query: Vec<String>) -> String {
        let selector = self.selection.field_selector.as_deref();
        query.extend(selector.map(|selector| parameter("fieldSelector", selector)));
        format!("{}?{}", self.path, query.join("&"))
    }

    async fn open(&self, version: &str) -> Result<Stream, ApiError> {
        let lasts = MIN_WATCH.mul_f64(1.0 + fastrand::f64());
        let query = vec![
            "watch=true".to_owned(),
            "allowWatchBookmarks=true".to_owned(),
            parameter("resourceVersion", version),
            format!("timeoutSeconds={}", lasts.as_secs()),
        ];
        let request = request(Method::GET, self.uri(query), Bytes::new(), "")?;
        let exchange = async {
            let mut observed = self.api.observed(Counted::of(&Method::GET));
            let connection = self.api.connection.current().await;
            let slot = connection.transport.for_watch();
            let (client, slot) = slot.map_err(|error| ApiError::Unreachable(error.into()))?;
            let sent = client.send(request).await;
            let response = sent.map_err(|error| ApiError::Unreachable(error.into()))?;
            observed.answered(response.status());
            if !response.status().is_success() {
                let status = response.status();
                return Err(match whole(response).await {
                    Ok(body) => ApiError::refused(status, &body),
                    Err(error) => error,
                });
            }
            Ok(Stream {
                body: response.into_body(),
                buffer: BytesMut::new(),
                searched: 0,
                until: Instant::now() + lasts + WATCH_GRACE,
                _slot: slot,
            })
        };
        let opened = timeout(TIMEOUT, exchange).await;
        opened.unwrap_or(Err(ApiError::Late(TIMEOUT)))
    }
}

impl Stream {
    /// The next line; `None` at the end of the response. Cancelling it loses nothing.
    async fn line(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                if self.buffer.is_empty() {
                    // One large event must not hold its memory for as long as the watch lives.
                    self.buffer = BytesMut::new();
                }
                return Ok(Some(line.freeze()));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_EVENT {
                return Err(ApiError::Unreadable(
                    "an event of a watch is too long".into(),
                ));
            }
            let frame = timeout_at(self.until, self.body.frame()).await;
            let Ok(frame) = frame else {
                return Ok(None);
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(ApiError::Unreachable(error.into())),
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    self.searched = 0;
                    return Ok(Some(mem::take(&mut self.buffer).freeze()));
                }
            }
        }
    }
}

fn decoded<K: DeserializeOwned>(object: &RawValue) -> Item<K> {
    serde_json::from_str(object.get())
        .map(Box::new)
        .map_err(|error| Unreadable {
            metadata: metadata(object),
            // Where, and not what: objects may be secret.
            why: format!(
                "invalid at line {}, column {}",
                error.line(),
                error.column()
            ),
        })
}

fn metadata(object: &RawValue) -> ObjectMeta {
    let read: Result<OnlyMetadata, _> = serde_json::from_str(object.get());
    read.unwrap_or_default().metadata
}

fn parsed<K: DeserializeOwned>(line: &[u8]) -> Result<Line<K>, ApiError> {
    let event: Event<'_> =
        serde_json::from_slice(line).map_err(|error| ApiError::unreadable(&error))?;
    let version = || metadata(event.object).resource_version;
    Ok(match event.r#type.as_str() {
        "ADDED" | "MODIFIED" => Line::Event(WatchEvent::Applied(decoded(event.object)), version()),
        "DELETED" => Line::Event(WatchEvent::Deleted(decoded(event.object)), version()),
        "BOOKMARK" => Line::Bookmark(version()),
        "ERROR" => {
            let status: Code = serde_json::from_str(event.object.get()).unwrap_or_default();
            let code = http::StatusCode::from_u16(status.code);
            let code = code.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
            Line::Error(ApiError::refused(code, event.object.get().as_bytes()))
        }
        // One of a later API: the version of its object says nothing.
        _ => Line::Bookmark(None),
    })
}

#[derive(Default, Deserialize)]
struct Code {
    #[serde(default)]
    code: u16,
}
