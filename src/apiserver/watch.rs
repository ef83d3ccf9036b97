//! Lists and watches objects, with retries (client-go's reflector).

mod stream;

use super::metrics::CountedMethod as Counted;
use super::rate_limit::RequestClass;
use super::request::{parameter, path, request, whole};
use super::{ApiError, ApiServer, Recovery};
use crate::base::clock::{self, Instant};
use crate::base::panics::PanicScope;
use crate::base::{ScopedTask, spawn_scoped};
use bytes::Bytes;
use http::Method;
use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use stream::WatchStream;
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use tower::BoxError;

/// Objects per page of a list; halved when a page exceeds the maximum size of a response.
const PAGE: u32 = 500;
/// Deadline of one page, and of the response headers of a watch.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum requested duration of a watch, as in client-go; the maximum is twice this.
const MIN_WATCH: Duration = Duration::from_secs(300);
/// A watch that ends earlier than this without an event counts as a failure.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that lasts this long resets the back-off, as an event does.
const LONG_WATCH: Duration = MAX_DELAY;
/// The delay before a retry, doubling from `FIRST_DELAY` to `MAX_DELAY`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// Over which time lists are spread when all objects are listed again.
const RELIST_SPREAD: Duration = Duration::from_secs(10);

/// Selects objects of a kind.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only this namespace; `None` for all.
    pub namespace: Option<String>,
    /// A field selector, such as `metadata.name=web`.
    pub field_selector: Option<String>,
}

/// An object, or the metadata of one that cannot be decoded.
pub type ApiItem<K> = Result<Box<K>, Unreadable>;

/// An object that cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// Its metadata.
    pub metadata: Box<ObjectMeta>,
    /// The decoding error.
    pub why: String,
}

/// An event of a [`ListWatch`].
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// A complete list. Objects that are missing from it were deleted.
    Listed(Vec<ApiItem<K>>),
    /// An object was added or changed.
    Applied(ApiItem<K>),
    /// An object was deleted; with its last state.
    Deleted(ApiItem<K>),
    /// A list or watch failed. Objects known so far stay valid.
    Failed(Arc<ApiError>),
}

/// Lists objects of one kind and watches them. Resumes the watch after its last event, lists again if the
/// resourceVersion has expired or the API server's storage went back, and retries failures with a back-off.
pub struct ListWatch<K> {
    api: ApiServer,
    selection: Selection,
    /// The resourceVersion of the last list or event; `None` before the first list.
    version: Option<String>,
    /// The last resourceVersion before that was dropped.
    dropped_version: Option<String>,
    /// The next list is read from the API server's watch cache.
    from_cache: bool,
    listed: ListedPages<K>,
    /// Restores of the API server's storage.
    restores: watch::Receiver<()>,
    /// A request in progress, kept when a call of [`Self::next`] is cancelled. A task, because nobody may poll this before
    /// the next call: a request that waits for the credentials or its place in the rate limit would then stop all others.
    request: Option<ScopedTask<Result<WatchReply, ApiError>>>,
    stream: Option<WatchStream>,
    delay: Option<Duration>,
    next_try: Instant,
    /// Set for the pods of the node and for urgent clients.
    recovery: Option<Recovery>,
    /// Objects per page of the next list.
    page: u32,
}

/// The pages of an incomplete list.
struct ListedPages<K> {
    items: Vec<ApiItem<K>>,
    next: Option<String>,
}

impl<K> Default for ListedPages<K> {
    fn default() -> Self {
        Self { items: Vec::new(), next: None }
    }
}

enum WatchReply {
    Page(Bytes),
    Watch(WatchStream),
}

#[derive(Deserialize)]
struct ListPage<'a> {
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
struct RawEvent<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
struct OnlyMetadata {
    #[serde(default)]
    metadata: ObjectMeta,
}

enum WatchLine<K> {
    Event(WatchEvent<K>, Option<String>),
    Bookmark(Option<String>),
    Error(ApiError),
}

impl ApiServer {
    /// Lists and watches objects, beginning with the first call of [`ListWatch::next`].
    pub fn list_watch<K: Resource>(&self, selection: Selection) -> ListWatch<K> {
        ListWatch {
            api: self.clone(),
            selection,
            version: None,
            dropped_version: None,
            from_cache: false,
            listed: ListedPages::default(),
            restores: self.storage.restores(),
            request: None,
            stream: None,
            delay: None,
            next_try: clock::instant(),
            recovery: (self.is_urgent || K::KIND == "Pod").then(|| self.recovery()),
            page: PAGE,
        }
    }

    /// Requests one page of a list.
    async fn page(
        self,
        uri: String,
        class: RequestClass,
        is_limited: bool,
    ) -> Result<WatchReply, ApiError> {
        let counted = Counted::of(&Method::GET);
        let request = request(Method::GET, uri, Bytes::new(), "")?;
        self.admitted(class).await?;
        // The semaphore is never closed.
        let _permit = if is_limited { self.pages.acquire().await.ok() } else { None };
        let page = self.exchange(counted, request, TIMEOUT).await;
        self.release_unreached(&page);
        Ok(WatchReply::Page(page?))
    }

    async fn watch(self, uri: String, lasts: Duration) -> Result<WatchReply, ApiError> {
        let request = request(Method::GET, uri, Bytes::new(), "")?;
        let answered = self.availability.answered();
        let exchange = async {
            let connection = self.connected(TIMEOUT).await?;
            let mut observed = self.observed(Counted::of(&Method::GET));
            let (response, slot) = connection.transport()?.watch(request).await?;
            observed.responded(response.status());
            if !response.status().is_success() {
                let status = response.status();
                return Err(match whole(response).await {
                    Ok(body) => ApiError::from_response(status, &body),
                    Err(error) => error,
                });
            }
            let stream = WatchStream::new(response.into_body(), lasts, slot);
            Ok(WatchReply::Watch(stream))
        };
        let opened = timeout(TIMEOUT, exchange).await;
        let opened = opened.unwrap_or(Err(ApiError::Timeout(TIMEOUT)));
        self.observe(&opened, answered);
        opened
    }
}

impl<K: Resource + DeserializeOwned> ListWatch<K> {
    /// Waits for the next event. Cancel safe: the next call continues.
    pub async fn next(&mut self) -> WatchEvent<K> {
        loop {
            // A clone, because an attempt borrows all of `self`.
            let mut restores = self.restores.clone();
            tokio::select! {
                biased;
                Ok(()) = restores.changed() => self.list_again(),
                event = self.attempt() => if let Some(event) = event {
                    return event;
                },
            }
        }
    }

    async fn attempt(&mut self) -> Option<WatchEvent<K>> {
        match &mut self.recovery {
            Some(recovery) => recovery.wait(&mut self.next_try).await,
            None => sleep_until(self.next_try).await,
        }
        match self.step().await {
            Ok(event) => event,
            // The pages read before are kept; pages this large are rare.
            Err(error) if error.is_too_large() && self.page > 1 && self.version.is_none() => {
                self.page /= 2;
                self.from_cache = false;
                None
            }
            Err(error) => {
                self.closed();
                self.listed = ListedPages::default();
                if self.version.is_none() {
                    self.from_cache = !self.from_cache && error.is_overload();
                }
                // After an event that cannot be decoded, the same resourceVersion would return it again.
                if error.is_gone() || matches!(error, ApiError::Unreadable(_)) {
                    self.drop_version();
                }
                self.back_off();
                Some(WatchEvent::Failed(Arc::new(error)))
            }
        }
    }

    /// Begins with a list again: the versions so far are those of another state of the storage.
    fn list_again(&mut self) {
        self.restores.mark_unchanged();
        (self.stream, self.request) = (None, None);
        self.listed = ListedPages::default();
        (self.version, self.dropped_version) = (None, None);
        self.from_cache = false;
        if !is_first_class::<K>() {
            self.next_try = clock::instant() + RELIST_SPREAD.mul_f64(fastrand::f64());
        }
    }

    fn drop_version(&mut self) {
        self.dropped_version = self.version.take().or(self.dropped_version.take());
    }

    fn back_off(&mut self) {
        let delay = self.delay.map_or(FIRST_DELAY, |last| (last * 2).min(MAX_DELAY));
        self.delay = Some(delay);
        self.next_try = clock::instant() + delay.mul_f64(1.0 + 0.5 * fastrand::f64());
    }

    /// Processes one response, or one line of a watch; `None` if there is no event yet.
    async fn step(&mut self) -> Result<Option<WatchEvent<K>>, ApiError> {
        let Some(stream) = &mut self.stream else {
            let begun = self.request.take().unwrap_or_else(|| self.begin());
            let ended = self.request.insert(begun).await;
            self.request = None;
            let failed = |error: BoxError| ApiError::Unreachable(error);
            let ended = ended.map_err(|error| failed(error.into()))?;
            return match ended.map_err(|panicked| failed(panicked.into()))?? {
                WatchReply::Page(page) => self.add(&page),
                WatchReply::Watch(stream) => {
                    self.stream = Some(stream);
                    Ok(None)
                }
            };
        };
        let Some(line) = stream.line().await? else {
            self.ended();
            return Ok(None);
        };
        stream.has_events = true;
        match parsed(&line)? {
            WatchLine::Event(event, version) => {
                self.version = version.or(self.version.take());
                self.delay = None;
                Ok(Some(event))
            }
            WatchLine::Bookmark(version) => {
                self.version = version.or(self.version.take());
                self.delay = None;
                Ok(None)
            }
            WatchLine::Error(error) => {
                // The same resourceVersion could cause the same error forever.
                if error.status() != Some(http::StatusCode::TOO_MANY_REQUESTS) {
                    self.drop_version();
                }
                Err(error)
            }
        }
    }

    fn closed(&mut self) -> Option<WatchStream> {
        let ended = self.stream.take();
        let opened = ended.as_ref().map(|stream| stream.opened);
        if opened.is_some_and(|opened| clock::since(opened) >= LONG_WATCH) {
            self.delay = None;
        }
        ended
    }

    /// Handles the end of a watch. The next one resumes where it ended, with a delay if the server ends each one at
    /// once.
    fn ended(&mut self) {
        let ended = self.closed();
        if ended.is_some_and(|it| it.has_events || clock::since(it.opened) >= SHORT_WATCH) {
            self.next_try = clock::instant() + FIRST_DELAY.mul_f64(fastrand::f64());
        } else {
            self.back_off();
        }
    }

    fn begin(&self) -> ScopedTask<Result<WatchReply, ApiError>> {
        let api = self.api.clone();
        let Some(version) = &self.version else {
            let (query, class) = (self.list_query(), RequestClass::of::<K>());
            // Pods and the Node never wait for lists of other objects that hang.
            let is_limited = !is_first_class::<K>();
            let page = api.page(self.uri(query), class, is_limited);
            return spawn_scoped(PanicScope::Other, page);
        };
        let lasts = MIN_WATCH.mul_f64(1.0 + fastrand::f64());
        let query = vec![
            "watch=true".to_owned(),
            "allowWatchBookmarks=true".to_owned(),
            parameter("resourceVersion", version),
            format!("timeoutSeconds={}", lasts.as_secs()),
        ];
        spawn_scoped(PanicScope::Other, api.watch(self.uri(query), lasts))
    }

    /// The query of the next page. Lists are read from etcd, because the API server's watch cache may lag; an older API
    /// server reads all pods of the cluster for that. So after a list that was too much for it, one is read from the
    /// cache, not older than what was known; without a limit, with which older ones would read from etcd.
    fn list_query(&self) -> Vec<String> {
        if self.from_cache {
            let version = self.dropped_version.as_deref().unwrap_or("0");
            let version = parameter("resourceVersion", version);
            return vec![version, "resourceVersionMatch=NotOlderThan".to_owned()];
        }
        let mut query = vec![format!("limit={}", self.page)];
        let next = self.listed.next.as_deref();
        query.extend(next.map(|next| parameter("continue", next)));
        query
    }

    /// Adds a page to the list; the last page completes it.
    fn add(&mut self, page: &[u8]) -> Result<Option<WatchEvent<K>>, ApiError> {
        let page: ListPage<'_> =
            serde_json::from_slice(page).map_err(|error| ApiError::unreadable(&error))?;
        let items = page.items.unwrap_or_default();
        self.listed.items.extend(items.into_iter().map(decoded));
        self.listed.next = page.metadata.next.filter(|next| !next.is_empty());
        if self.listed.next.is_some() {
            return Ok(None);
        }
        self.version = Some(page.metadata.resource_version);
        self.from_cache = false;
        let listed = mem::take(&mut self.listed);
        Ok(Some(WatchEvent::Listed(listed.items)))
    }

    fn uri(&self, mut query: Vec<String>) -> String {
        let selector = self.selection.field_selector.as_deref();
        query.extend(selector.map(|selector| parameter("fieldSelector", selector)));
        let path = path::<K>(self.selection.namespace.as_deref(), None, None);
        format!("{path}?{}", query.join("&"))
    }
}

/// Whether objects of this kind come before all others: pods and the Node.
fn is_first_class<K: Resource>() -> bool {
    matches!(K::KIND, "Pod" | "Node")
}

fn decoded<K: DeserializeOwned>(object: &RawValue) -> ApiItem<K> {
    // Not `from_str`: both would be compiled for each type, as responses are decoded from bytes.
    serde_json::from_slice(object.get().as_bytes()).map(Box::new).map_err(|error| Unreadable {
        metadata: Box::new(metadata(object)),
        // Where, and not what: objects may be secret.
        why: format!("invalid at line {}, column {}", error.line(), error.column()),
    })
}

fn metadata(object: &RawValue) -> ObjectMeta {
    let read: Result<OnlyMetadata, _> = serde_json::from_str(object.get());
    read.unwrap_or_default().metadata
}

fn parsed<K: DeserializeOwned>(line: &[u8]) -> Result<WatchLine<K>, ApiError> {
    let event: RawEvent<'_> =
        serde_json::from_slice(line).map_err(|error| ApiError::unreadable(&error))?;
    let version = || metadata(event.object).resource_version;
    Ok(match event.r#type.as_str() {
        "ADDED" | "MODIFIED" => {
            WatchLine::Event(WatchEvent::Applied(decoded(event.object)), version())
        }
        "DELETED" => WatchLine::Event(WatchEvent::Deleted(decoded(event.object)), version()),
        "BOOKMARK" => WatchLine::Bookmark(version()),
        "ERROR" => {
            let status: ErrorCode = serde_json::from_str(event.object.get()).unwrap_or_default();
            let code = http::StatusCode::from_u16(status.code);
            let code = code.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
            WatchLine::Error(ApiError::from_response(code, event.object.get().as_bytes()))
        }
        // An event type of a later API, whose resourceVersion is ignored.
        _ => WatchLine::Bookmark(None),
    })
}

#[derive(Default, Deserialize)]
struct ErrorCode {
    #[serde(default)]
    code: u16,
}
