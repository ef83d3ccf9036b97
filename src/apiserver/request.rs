//! Typed requests: one attempt each, with a deadline. Callers retry.

use super::metrics::CountedMethod as Counted;
use super::rate_limit::RequestClass;
use super::{ApiError, ApiServer};
use crate::base::clock::{self, Instant};
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use k8s_openapi::{Metadata, Resource};
use kube::client::Body;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::timeout;

/// Deadline of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, bytes. A list that exceeds it is requested in smaller pages.
const MAX_RESPONSE: usize = 64 * 1024 * 1024;

/// Characters that are percent-encoded in a path segment.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Namespace and name of an object.
#[derive(Clone, Copy, Debug)]
pub struct ResourcePath<'a> {
    /// Namespace; `None` for cluster-scoped objects.
    pub namespace: Option<&'a str>,
    /// Its name.
    pub name: &'a str,
}

impl<'a> ResourcePath<'a> {
    /// A cluster-scoped object.
    pub fn cluster(name: &'a str) -> Self {
        let namespace = None;
        Self { namespace, name }
    }

    /// A namespaced object.
    pub fn namespaced(namespace: &'a str, name: &'a str) -> Self {
        let namespace = Some(namespace);
        Self { namespace, name }
    }
}

/// A strategic merge patch: lists are merged by their keys.
#[derive(Clone, Debug)]
pub struct StrategicPatch(pub Value);

/// The path of a collection, or of an object in it.
pub(super) fn path<K: Resource>(
    namespace: Option<&str>,
    name: Option<&str>,
    subresource: Option<&str>,
) -> String {
    let mut path = match K::GROUP {
        "" => format!("/api/{}", K::VERSION),
        group => format!("/apis/{group}/{}", K::VERSION),
    };
    let escaped = |text| utf8_percent_encode(text, SEGMENT);
    if let Some(namespace) = namespace {
        // Writing to a `String` cannot fail.
        let _ = write!(path, "/namespaces/{}", escaped(namespace));
    }
    let _ = write!(path, "/{}", K::URL_PATH_SEGMENT);
    for part in [name, subresource].into_iter().flatten() {
        let _ = write!(path, "/{}", escaped(part));
    }
    path
}

/// A query parameter, percent-encoded.
pub(super) fn parameter(name: &str, value: &str) -> String {
    format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
}

impl ApiServer {
    /// Reads an object.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get<K>(&self, at: ResourcePath<'_>) -> Result<K, ApiError>
    where
        K: Resource + DeserializeOwned,
    {
        let path = path::<K>(at.namespace, Some(at.name), None);
        let class = RequestClass::of::<K>();
        self.json(class, Method::GET, path, Bytes::new()).await
    }

    /// Creates an object and returns it as stored.
    ///
    /// # Errors
    /// See [`ApiError`]; if the name exists, [`ApiError::is_already_exists`] is true.
    pub async fn create<K>(&self, namespace: Option<&str>, object: &K) -> Result<K, ApiError>
    where
        K: Resource + Serialize + DeserializeOwned,
    {
        let path = path::<K>(namespace, None, None);
        let class = RequestClass::of::<K>();
        self.json(class, Method::POST, path, text(object)?).await
    }

    /// Replaces an object by a different one. If it has a `resourceVersion`, it must match that of the stored object.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn update<K>(&self, at: ResourcePath<'_>, object: &K) -> Result<K, ApiError>
    where
        K: Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned,
    {
        let path = path::<K>(at.namespace, Some(at.name), None);
        let (class, newest_before) = (RequestClass::of::<K>(), self.storage.newest(K::KIND));
        let updated: K = self.json(class, Method::PUT, path, text(object)?).await?;
        let version = updated.metadata().resource_version.as_deref();
        self.storage.written(K::KIND, newest_before, version);
        Ok(updated)
    }

    /// Patches an object, or its `status` or another subresource.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn patch<K>(
        &self,
        at: ResourcePath<'_>,
        subresource: Option<&str>,
        patch: &StrategicPatch,
    ) -> Result<K, ApiError>
    where
        K: Resource + DeserializeOwned,
    {
        let path = path::<K>(at.namespace, Some(at.name), subresource);
        let kind = "application/strategic-merge-patch+json";
        let body = text(&patch.0)?;
        let class = RequestClass::of::<K>();
        let response = self.send(class, Method::PATCH, path, body, kind).await?;
        parsed(&response)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete<K: Resource>(
        &self,
        at: ResourcePath<'_>,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let path = path::<K>(at.namespace, Some(at.name), None);
        let body = text(options)?;
        let class = RequestClass::of::<K>();
        let sent = self.send(class, Method::DELETE, path, body, JSON).await;
        sent.map(drop)
    }

    /// Deletes all objects of a kind that a field selector matches.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete_collection<K: Resource>(
        &self,
        field_selector: &str,
    ) -> Result<(), ApiError> {
        let selector = parameter("fieldSelector", field_selector);
        let path = format!("{}?{selector}", path::<K>(None, None, None));
        let body = text(&DeleteOptions::default())?;
        let class = RequestClass::of::<K>();
        let sent = self.send(class, Method::DELETE, path, body, JSON).await;
        sent.map(drop)
    }

    /// Creates a subresource of an object, such as `token` of a service account.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create_subresource<K, B, R>(
        &self,
        at: ResourcePath<'_>,
        subresource: &str,
        body: &B,
    ) -> Result<R, ApiError>
    where
        K: Resource,
        B: Serialize,
        R: DeserializeOwned,
    {
        let path = path::<K>(at.namespace, Some(at.name), Some(subresource));
        let class = RequestClass::of::<K>();
        self.json(class, Method::POST, path, text(body)?).await
    }

    /// Sends JSON and decodes the JSON response.
    pub(super) async fn json<R: DeserializeOwned>(
        &self,
        class: RequestClass,
        method: Method,
        path: String,
        body: Bytes,
    ) -> Result<R, ApiError> {
        parsed(&self.send(class, method, path, body, JSON).await?)
    }

    /// Like [`Self::json`], with its own metric label and without the rate limit.
    pub(super) async fn json_counted<R: DeserializeOwned>(
        &self,
        counted: Counted,
        method: Method,
        path: String,
        body: Bytes,
    ) -> Result<R, ApiError> {
        let request = request(method, path, body, JSON)?;
        parsed(&self.exchange(counted, request, TIMEOUT).await?)
    }

    async fn send(
        &self,
        class: RequestClass,
        method: Method,
        path: String,
        body: Bytes,
        kind: &'static str,
    ) -> Result<Bytes, ApiError> {
        let counted = Counted::of(&method);
        let started_at = clock::instant();
        self.admitted(class).await?;
        let limited = self.metrics.limited.with([counted.label(), &self.connection.latest().host]);
        limited.observe(clock::since(started_at).as_secs_f64());
        let request = request(method, path, body, kind)?;
        let exchanged = self.exchange(counted, request, TIMEOUT).await;
        self.release_unreached(&exchanged);
        exchanged
    }

    /// Sends a request and reads the whole response. The deadline includes getting the credentials.
    pub(super) async fn exchange(
        &self,
        counted: Counted,
        request: Request<Body>,
        deadline: Duration,
    ) -> Result<Bytes, ApiError> {
        let answered = self.availability.answered();
        let sent = request.body().size_hint().exact().unwrap_or_default();
        let exchange = async {
            let connection = self.connected(deadline).await?;
            let mut observed = self.observed(counted);
            let response = connection.transport()?.send(request, self.is_urgent).await?;
            observed.responded(response.status());
            whole(response).await
        };
        let exchanged = timeout(deadline, exchange).await;
        let exchanged = exchanged.unwrap_or(Err(ApiError::Timeout(deadline)));
        self.observe(&exchanged, answered);
        let received = exchanged.as_ref().ok().map(Bytes::len);
        let host = &self.connection.latest().host;
        self.metrics.observe_sizes(host, counted, sent, received);
        exchanged
    }

    pub(super) fn observed(&self, method: Counted) -> ObservedRequest<'_> {
        ObservedRequest { api: self, method, status: None, started_at: clock::instant() }
    }
}

const JSON: &str = "application/json";

/// Counts a request in the metrics when it ends or is cancelled.
pub(super) struct ObservedRequest<'a> {
    api: &'a ApiServer,
    method: Counted,
    status: Option<u16>,
    started_at: Instant,
}

impl ObservedRequest<'_> {
    pub(super) fn responded(&mut self, status: http::StatusCode) {
        self.status = Some(status.as_u16());
    }
}

impl Drop for ObservedRequest<'_> {
    fn drop(&mut self) {
        let took = clock::since(self.started_at);
        let host = &self.api.connection.latest().host;
        self.api.metrics.observe(host, self.method, self.status, took);
    }
}

pub(super) fn request(
    method: Method,
    path: String,
    body: Bytes,
    kind: &'static str,
) -> Result<Request<Body>, ApiError> {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header(header::ACCEPT, JSON);
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    let request = request.body(Body::from(body));
    request.map_err(|error| ApiError::Unreadable(error.into()))
}

/// Reads a whole response; an error status becomes an error.
pub(super) async fn whole(response: Response<Body>) -> Result<Bytes, ApiError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    let body = body.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            ApiError::Unreadable(error)
        } else {
            ApiError::Unreachable(error)
        }
    })?;
    let body = body.to_bytes();
    if !status.is_success() {
        return Err(ApiError::from_response(status, &body));
    }
    Ok(body)
}

fn text<T: Serialize>(body: &T) -> Result<Bytes, ApiError> {
    let text = serde_json::to_vec(body);
    text.map(Bytes::from).map_err(|error| ApiError::unreadable(&error))
}

fn parsed<R: DeserializeOwned>(body: &[u8]) -> Result<R, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::unreadable(&error))
}
