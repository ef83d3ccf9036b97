//! The ports and the local socket. They are bound early, so that the kubelet fails before it starts anything if a port
//! is in use, and served before the runtime is reachable, so that health checks and `kubelet explain` work while it is
//! down.

use crate::apiserver::ApiServer;
use crate::base::metrics::Metrics;
use crate::base::{Tasks, error_chain, spawn_blocking};
use crate::server::auth::{AuthSettings, KubeletAuth};
use crate::server::handlers::health::HealthChecks;
use crate::server::router::RouteGroup;
use crate::server::tls::{ClientCaFile, Tls, TlsSettings};
use crate::server::{Listener, PortHandler};
use anyhow::Context as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Addresses to listen on, and their authentication and authorization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// `enableServer`: whether the main port is served.
    pub enabled: bool,
    /// Address of the main port.
    pub address: SocketAddr,
    /// Authentication and authorization of the main port.
    pub auth: AuthSettings,
    /// Certificate, TLS versions and cipher suites of the main port.
    pub tls: TlsSettings,
    /// Address of the read-only port; `None` disables it.
    pub read_only: Option<SocketAddr>,
    /// Address of the health port; `None` disables it.
    pub healthz: Option<SocketAddr>,
    /// Groups of routes that are disabled.
    pub disabled: Vec<RouteGroup>,
    /// Idle timeout of streams (exec, attach, port-forward); zero means none.
    pub stream_idle: Duration,
}

/// The bound ports. The kernel queues connections until the ports are served.
#[derive(Default)]
pub struct Ports {
    healthz: Option<Listener>,
    read_only: Option<Listener>,
    secured: Option<(Listener, KubeletAuth)>,
    local: Option<Listener>,
}

impl Ports {
    /// Binds the unauthenticated ports.
    ///
    /// # Errors
    /// A port is in use.
    pub async fn bind(config: &ServerConfig) -> anyhow::Result<Self> {
        Ok(Self {
            healthz: bind("healthz", config.healthz).await?,
            read_only: bind("read-only", config.read_only).await?,
            secured: None,
            local: None,
        })
    }

    /// Binds the main port, if it is enabled. A self-signed certificate has the node's name and `addresses`.
    ///
    /// # Errors
    /// An unusable file, settings that need an API server, or a port in use.
    pub async fn secure(
        &mut self,
        config: ServerConfig,
        node_name: String,
        addresses: Vec<IpAddr>,
        api: Option<ApiServer>,
        metrics: &Metrics,
    ) -> anyhow::Result<()> {
        if !config.enabled {
            return Ok(());
        }
        let address = config.address;
        let read = move || -> anyhow::Result<_> {
            let client_ca = config.auth.client_ca_file.as_deref();
            let client_ca = client_ca.map(ClientCaFile::open).transpose()?;
            let client_ca = client_ca.map(Arc::new);
            let auth = KubeletAuth::new(config.auth, &node_name, client_ca.clone(), api)?;
            let tls = Tls::open(&config.tls, (&node_name, &addresses), client_ca)?;
            Ok((tls, auth))
        };
        let read = spawn_blocking(read);
        let (tls, auth) = read.await.context("reading certificates")??;
        let listener = Listener::bind("the kubelet API", address).await?;
        self.secured = Some((listener.tls(tls), auth.measured(metrics)));
        Ok(())
    }

    /// Binds the socket for the subcommands. A failure is only logged, because pods run without it.
    pub fn bind_local(&mut self, path: &Path) {
        match Listener::bind_local("local", path) {
            Ok(listener) => self.local = Some(listener),
            Err(error) => {
                tracing::warn!(err = %error_chain(&error), "Failed to bind the local socket; `kubelet pods` and `kubelet explain` will not work");
            }
        }
    }

    /// Starts a task per port: the health port with `healthz`, all others with `handler`.
    pub fn serve(self, healthz: HealthChecks, handler: &PortHandler, tasks: &mut Tasks) {
        let shutdown = tasks.shutdown();
        if let Some(listener) = self.healthz {
            let serving = listener.serve(PortHandler::health(healthz), shutdown.clone());
            tasks.spawn("server.healthz", serving);
        }
        if let Some((listener, auth)) = self.secured {
            let handler = handler.clone().secured(auth);
            tasks.spawn("server.main", listener.serve(handler, shutdown.clone()));
        }
        if let Some(listener) = self.read_only {
            let serving = listener.serve(handler.clone(), shutdown.clone());
            tasks.spawn("server.readonly", serving);
        }
        if let Some(listener) = self.local {
            let serving = listener.serve(handler.clone().local(), shutdown);
            tasks.spawn("server.local", serving);
        }
    }
}

async fn bind(name: &'static str, address: Option<SocketAddr>) -> anyhow::Result<Option<Listener>> {
    match address {
        Some(address) => Ok(Some(Listener::bind(name, address).await?)),
        None => Ok(None),
    }
}
