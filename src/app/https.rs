//! The secured port: authentication, certificate and socket.

use crate::{
    apiserver::ApiServer,
    base::metrics::Metrics,
    config::KubeletConfig,
    host::own_address,
    server::{
        Listener,
        auth::KubeletAuth,
        tls::{ClientAuthorities, Tls},
    },
};
use anyhow::Context as _;
use std::sync::Arc;

/// The secured port, bound, and what stands before it.
pub(super) struct Secured {
    pub(super) listener: Listener,
    pub(super) auth: KubeletAuth,
}

/// Opens the port unless it is switched off.
///
/// # Errors
/// An unusable file, settings that need an API server, or a port in use.
pub(super) async fn open(
    config: &KubeletConfig,
    api: Option<ApiServer>,
    metrics: &Metrics,
) -> anyhow::Result<Option<Secured>> {
    let server = config.server.clone();
    if !server.enabled {
        return Ok(None);
    }
    let name = config.node_name.clone();
    let addresses = if config.node_ips.is_empty() {
        own_address(config.ipv6_first).into_iter().collect()
    } else {
        config.node_ips.clone()
    };
    let read = move || -> anyhow::Result<_> {
        let authorities = server.auth.client_ca_file.as_deref();
        let authorities = authorities.map(ClientAuthorities::open).transpose()?;
        let authorities = authorities.map(Arc::new);
        let auth = KubeletAuth::new(server.auth, &name, authorities.clone(), api)?;
        let tls = Tls::open(&server.tls, (&name, &addresses), authorities)?;
        Ok((tls, auth))
    };
    let read = tokio::task::spawn_blocking(read);
    let (tls, auth) = read.await.context("reading certificates")??;
    let listener = Listener::bind("the kubelet API", config.server.address).await?;
    Ok(Some(Secured {
        listener: listener.tls(tls),
        auth: auth.measured(metrics),
    }))
}
