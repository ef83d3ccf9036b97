//! HTTP/2 connections to the API server.
//!
//! One connection carries most requests and the first [`MAX_WATCHES`] watches: the API server allows 100 streams on one
//! connection, and a request beyond that would wait until a watch ends. More watches get more connections. The lease
//! and the status of the node have their own connection, so that they never wait.

use super::ApiError;
use crate::base::clock::{self, Instant};
use crate::base::panics::PanicScope;
use crate::base::proxy::{Proxy, ProxyConnector};
use crate::base::{spawn, x509};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{AuthError, Body, ConfigExt as _};
use kube::{Client, Config};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex as AsyncMutex;
use tower::util::BoxService;
use tower::{BoxError, Service as _, ServiceBuilder, ServiceExt as _, service_fn};

/// Maximum number of watches on one connection.
const MAX_WATCHES: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings. With `PING_TIMEOUT` a dead connection is detected within 25 s.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/1.1 has no pings; there TCP keepalive detects a dead connection, within a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// Minimum interval between runs of a credential plugin that are caused by rejected credentials or by a client
/// certificate that expires.
const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(10);
/// How long before its expiry a client certificate is replaced.
const CERTIFICATE_MARGIN: Duration = Duration::from_secs(60);

/// A service that returns the request with credentials added.
type Authorizer = BoxService<Request<Body>, Response<Request<Body>>, BoxError>;
type Pool = legacy::Client<HttpsConnector<ProxyConnector>, Body>;

/// The connections with one set of credentials.
pub(super) struct Transport {
    client: Client,
    /// Adds the credentials to requests, one at a time, because it may run a plugin.
    authorizer: Arc<AsyncMutex<Authorizer>>,
    tls: ClientConfig,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    /// Never empty; the first one also carries requests that are not watches.
    lanes: Mutex<Vec<ConnectionLane>>,
    /// For the lease and the status of the node.
    urgent: ConnectionLane,
    credentials: CredentialState,
}

/// Whether a credential plugin has to run again.
struct CredentialState {
    /// Expiry of the client certificate.
    end: Option<SystemTime>,
    are_refused: AtomicBool,
    next_run: Mutex<Instant>,
}

impl CredentialState {
    fn new(tls: &ClientConfig) -> Self {
        let certificate = tls.client_auth_cert_resolver.resolve(&[], &[]);
        let facts = certificate.and_then(|key| x509::parse(key.cert.first()?));
        Self {
            end: facts.map(|facts| SystemTime::from(facts.not_after)),
            are_refused: AtomicBool::new(false),
            next_run: Mutex::new(clock::instant() + CREDENTIALS_INTERVAL),
        }
    }

    /// Whether the credentials have to be replaced; true at most once per [`CREDENTIALS_INTERVAL`].
    fn are_stale(&self) -> bool {
        let soon = clock::system_time() + CERTIFICATE_MARGIN;
        let ends = self.end.is_some_and(|end| end <= soon);
        if !ends && !self.are_refused.load(Ordering::Relaxed) {
            return false;
        }
        let (mut next_run, now) = (self.next_run.lock(), clock::instant());
        let is_due = now >= *next_run;
        if is_due {
            *next_run = now + CREDENTIALS_INTERVAL;
        }
        is_due
    }
}

struct ConnectionLane {
    pool: Pool,
    watches: Arc<AtomicUsize>,
}

/// A reserved stream for a watch; released when dropped.
pub(super) struct WatchSlot(Arc<AtomicUsize>);

impl Drop for WatchSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transport {
    /// Builds the client; it connects with the first request, through `proxy`. Blocking: it may run a credential plugin.
    ///
    /// # Errors
    /// The credentials or certificate authorities cannot be used.
    pub(super) fn new(config: &Config, proxy: Option<Proxy>) -> anyhow::Result<Self> {
        let tls = config.rustls_client_config();
        let tls = tls.map_err(|error| redacted(error.into()))?;
        let name = config.tls_server_name.clone();
        let server_name = name.map(TryInto::try_into).transpose()?;
        // Not kube's own stack: that uses HTTP/1.1, logs every failure, retries by itself, and takes its proxy from the
        // environment. Here the caller logs and retries.
        let service =
            ServiceBuilder::new().layer(config.base_uri_layer()).service(service_fn(send));
        let auth = config.auth_layer().map_err(|error| redacted(error.into()))?;
        let authorizer = ServiceBuilder::new()
            .option_layer(auth)
            .map_err(BoxError::from)
            .service(service_fn(enclosed));
        let lane = || ConnectionLane::new(&tls, server_name.as_ref(), proxy.as_ref());
        let (lanes, urgent) = (Mutex::new(vec![lane()]), lane());
        Ok(Self {
            credentials: CredentialState::new(&tls),
            client: Client::new(service, config.default_namespace.clone()),
            authorizer: Arc::new(AsyncMutex::new(BoxService::new(authorizer))),
            urgent,
            tls,
            server_name,
            proxy,
            lanes,
        })
    }

    /// Whether the credential plugin has to run again.
    pub(super) fn credentials_are_stale(&self) -> bool {
        self.credentials.are_stale()
    }

    /// Sends a request other than a watch.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
        is_urgent: bool,
    ) -> Result<Response<Body>, ApiError> {
        let pool = if is_urgent {
            Some(self.urgent.pool.clone())
        } else {
            self.lanes.lock().first().map(|lane| lane.pool.clone())
        };
        self.send_by(pool, request).await
    }

    /// Sends a request with a streaming response. The slot is held until the response was read.
    pub(super) async fn watch(
        &self,
        request: Request<Body>,
    ) -> Result<(Response<Body>, WatchSlot), ApiError> {
        let (pool, slot) = self.slot();
        let response = self.send_by(Some(pool), request).await?;
        Ok((response, slot))
    }

    async fn send_by(
        &self,
        pool: Option<Pool>,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let failed =
            |error: BoxError| ApiError::Unreachable(RequestFailure(redacted(error)).into());
        let mut request = self.authorized(request).await.map_err(failed)?;
        if let Some(pool) = pool {
            request.extensions_mut().insert(pool);
        }
        let sent = self.client.send(request).await;
        let response = sent.map_err(|error| failed(error.into()))?;
        let is_refused = response.status() == StatusCode::UNAUTHORIZED;
        self.credentials.are_refused.store(is_refused, Ordering::Relaxed);
        Ok(response)
    }

    async fn authorized(&self, request: Request<Body>) -> Result<Request<Body>, BoxError> {
        let mut authorizer = self.authorizer.clone().lock_owned().await;
        // A plugin that hangs blocks a thread. Its request times out, but the task keeps the lock, so that the next
        // request does not start the plugin again.
        let call = async move { authorizer.ready().await?.call(request).await };
        spawn(PanicScope::Other, call).await??.map(Response::into_body)
    }

    /// A connection with a free slot for a watch.
    fn slot(&self) -> (Pool, WatchSlot) {
        let mut lanes = self.lanes.lock();
        let free = |lane: &&ConnectionLane| lane.watches.load(Ordering::Relaxed) < MAX_WATCHES;
        if let Some(lane) = lanes.iter().find(free) {
            return lane.occupy();
        }
        let server_name = self.server_name.as_ref();
        let lane = ConnectionLane::new(&self.tls, server_name, self.proxy.as_ref());
        let occupied = lane.occupy();
        lanes.push(lane);
        occupied
    }
}

/// The position of a YAML parse error.
pub(super) fn place(error: &serde_yaml::Error) -> String {
    let location = error.location().filter(|location| location.line() > 0);
    location
        .map_or_else(String::new, |at| format!(" at line {}, column {}", at.line(), at.column()))
}

/// The error of a request without the layers of the HTTP client, whose texts repeat the cause's.
#[derive(Debug)]
struct RequestFailure(anyhow::Error);

impl RequestFailure {
    fn cause(&self) -> &(dyn Error + 'static) {
        let mut error: &(dyn Error + 'static) = self.0.as_ref();
        while error.is::<kube::Error>() || error.is::<legacy::Error>() {
            let Some(cause) = error.source() else {
                break;
            };
            error = cause;
        }
        error
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.cause(), f)
    }
}

impl Error for RequestFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.cause())
    }
}

/// Removes the command line and the output of a credential plugin from an error: they may contain credentials.
fn redacted(error: BoxError) -> anyhow::Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error.as_ref());
    while let Some(one) = cause {
        match one.downcast_ref::<AuthError>() {
            Some(AuthError::AuthExecRun { out, .. }) => {
                return anyhow::anyhow!("the credential plugin failed: {}", out.status);
            }
            Some(AuthError::AuthExecParse(error)) => {
                let place = place(error);
                return anyhow::anyhow!("the output of the credential plugin is invalid{place}");
            }
            // The error of an auth-provider, which also runs a program.
            Some(AuthError::AuthExec(_)) => {
                return anyhow::anyhow!("the credential plugin failed");
            }
            _ => cause = one.source(),
        }
    }
    anyhow::Error::from_boxed(error)
}

async fn enclosed(request: Request<Body>) -> Result<Response<Request<Body>>, BoxError> {
    Ok(Response::new(request))
}

/// Sends a request on the connection that is attached to it.
async fn send(mut request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
    let pool = request.extensions_mut().remove::<Pool>();
    let pool = pool.ok_or("no connection for the request")?;
    Ok(pool.request(request).await?)
}

impl ConnectionLane {
    fn new(
        tls: &ClientConfig,
        server_name: Option<&ServerName<'static>>,
        proxy: Option<&Proxy>,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE_IDLE));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let mut connector =
            HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        if let Some(name) = server_name {
            let resolver = FixedServerNameResolver::new(name.clone());
            connector = connector.with_server_name_resolver(resolver);
        }
        let connector = connector
            .enable_http1()
            .enable_http2()
            .wrap_connector(ProxyConnector::new(tcp, proxy.cloned(), tls));
        let pool = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .build(connector);
        Self { pool, watches: Arc::default() }
    }

    fn occupy(&self) -> (Pool, WatchSlot) {
        self.watches.fetch_add(1, Ordering::Relaxed);
        (self.pool.clone(), WatchSlot(self.watches.clone()))
    }
}
