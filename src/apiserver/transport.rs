//! HTTP/2 connections to the API server.
//!
//! One connection carries all requests and the first [`MAX_WATCHES`] watches: the API server allows 100 streams on
//! one, and a request that waits for a stream would wait for as long as a watch lives. More watches get more
//! connections.

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{Client, Config, client::ConfigExt as _};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::{BoxError, ServiceBuilder};

/// Watches on one connection.
const MAX_WATCHES: usize = 64;
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection without an answer to a ping for this long is dead, so that is noticed within 25 s.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of one identity.
pub(super) struct Transport {
    config: Config,
    lanes: Mutex<Vec<Lane>>,
}

struct Lane {
    client: Client,
    watches: Arc<AtomicUsize>,
}

/// The place of a watch on its connection; given back when dropped.
pub(super) struct WatchSlot(Arc<AtomicUsize>);

impl Drop for WatchSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transport {
    /// Connects when something is sent.
    ///
    /// # Errors
    /// Credentials or authorities that cannot be used.
    pub(super) fn new(config: Config) -> anyhow::Result<Self> {
        let lanes = Mutex::new(vec![Lane::open(&config)?]);
        Ok(Self { config, lanes })
    }

    /// The client for requests that end.
    ///
    /// # Errors
    /// There is none (see [`Self::for_watch`]).
    pub(super) fn for_request(&self) -> Option<Client> {
        self.lanes.lock().first().map(|lane| lane.client.clone())
    }

    /// A client with room for a watch.
    ///
    /// # Errors
    /// Credentials or authorities that cannot be used.
    pub(super) fn for_watch(&self) -> anyhow::Result<(Client, WatchSlot)> {
        let mut lanes = self.lanes.lock();
        let free = |lane: &&Lane| lane.watches.load(Ordering::Relaxed) < MAX_WATCHES;
        if !lanes.iter().any(|lane| free(&lane)) {
            lanes.push(Lane::open(&self.config)?);
        }
        let lane = lanes.iter().find(free);
        let lane = lane.ok_or_else(|| anyhow::anyhow!("no connection for a watch"))?;
        lane.watches.fetch_add(1, Ordering::Relaxed);
        Ok((lane.client.clone(), WatchSlot(lane.watches.clone())))
    }
}

impl Lane {
    fn open(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            client: client(config)?,
            watches: Arc::default(),
        })
    }
}

/// Not kube's own stack: that speaks HTTP/1.1, logs every failure, retries by itself, and takes its proxy from
/// the environment. The caller logs and retries.
fn client(config: &Config) -> anyhow::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into()?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = tls.enable_http1().enable_http2().wrap_connector(tcp);
    let pool = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(pool);
    Ok(Client::new(service, config.default_namespace.clone()))
}
