//! One GET: connect, send, follow redirects, read a bounded body. The caller sets the deadline.

use super::request::{ManifestEndpoint, ManifestRequest};
use crate::base::proxy::{ProxiedStream, ProxyConnector, ProxyEnvironment};
use crate::base::{Http1, spawn_blocking};
use crate::model::validation::MAX_MANIFEST_BYTES;
use anyhow::{Context as _, bail};
use http::header::LOCATION;
use http::{Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::{Service as _, ServiceExt as _};

/// Most redirects followed.
const MAX_REDIRECTS: usize = 10;

/// Fetches a URL over connections of its own; at most one at a time.
pub(super) struct Fetcher {
    target: ManifestRequest,
    /// The system's certificates, read when first needed.
    tls: Option<TlsConnector>,
}

impl Fetcher {
    pub(super) fn new(target: ManifestRequest) -> Self {
        Self { target, tls: None }
    }

    /// One for which the system trusts nothing but these certificates.
    #[cfg(test)]
    pub(super) fn of_a_system_with(
        target: ManifestRequest,
        trusted: CertificateDer<'static>,
    ) -> Self {
        let tls = Some(trusting([trusted]).unwrap());
        Self { target, tls }
    }

    /// The body of a 200, at most [`MAX_MANIFEST_BYTES`].
    pub(super) async fn fetch(&mut self) -> anyhow::Result<Bytes> {
        let mut target = self.target.clone();
        for _ in 0..=MAX_REDIRECTS {
            match self.send(&target).await? {
                Fetched::Body(body) => return Ok(body),
                Fetched::Redirect(location) => target = target.redirected(&location)?,
            }
        }
        bail!("more than {MAX_REDIRECTS} redirects");
    }

    async fn send(&mut self, target: &ManifestRequest) -> anyhow::Result<Fetched> {
        let endpoint = target.endpoint()?;
        let connecting = || format!("connecting to {}:{}", endpoint.host, endpoint.port);
        if !endpoint.tls {
            let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
            return exchange(stream.with_context(connecting)?, target).await;
        }
        let connector = self.connector().await?;
        let stream = connect(target.uri(), connector.config()).await;
        let stream = stream.with_context(connecting)?;
        let stream = handshake(&connector, &endpoint, TokioIo::new(stream)).await?;
        exchange(stream, target).await
    }

    async fn connector(&mut self) -> anyhow::Result<TlsConnector> {
        if let Some(connector) = &self.tls {
            return Ok(connector.clone());
        }
        let connector =
            spawn_blocking(system_roots).await.context("reading the system's certificates")??;
        self.tls = Some(connector.clone());
        Ok(connector)
    }
}

/// Connects to the server of a URL, through the proxy that the environment names for it.
async fn connect(url: &Uri, tls: &ClientConfig) -> anyhow::Result<ProxiedStream> {
    let proxy = ProxyEnvironment::read().proxy_of(url)?;
    let mut connector = ProxyConnector::new(HttpConnector::new(), proxy, tls);
    let connected = connector.ready().await.map_err(anyhow::Error::from_boxed)?;
    let connected = connected.call(url.clone()).await;
    connected.map_err(anyhow::Error::from_boxed)
}

/// What a response comes to.
enum Fetched {
    Body(Bytes),
    Redirect(String),
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    connector: &TlsConnector,
    endpoint: &ManifestEndpoint,
    stream: S,
) -> anyhow::Result<tokio_rustls::client::TlsStream<S>> {
    let name = ServerName::try_from(endpoint.host.clone()).context("server name for TLS")?;
    let stream = connector.connect(name, stream).await;
    stream.with_context(|| format!("TLS with {}:{}", endpoint.host, endpoint.port))
}

async fn exchange<S>(stream: S, target: &ManifestRequest) -> anyhow::Result<Fetched>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = target.request()?;
    let read = async |response| Ok::<_, hyper::Error>(fetched(response).await);
    let fetched = Http1::default().exchange(stream, request, read).await;
    fetched.context("sending the request")?
}

async fn fetched(response: Response<Incoming>) -> anyhow::Result<Fetched> {
    let status = response.status();
    if status == StatusCode::OK {
        return body(response.into_body()).await.map(Fetched::Body);
    }
    if !is_redirect(status) {
        bail!("the server answered {status}");
    }
    let location = response.headers().get(LOCATION);
    let location = location.context("a redirect without a location")?;
    let location = location.to_str().context("location of a redirect")?;
    Ok(Fetched::Redirect(location.to_owned()))
}

async fn body(incoming: Incoming) -> anyhow::Result<Bytes> {
    match Limited::new(incoming, MAX_MANIFEST_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            bail!("the body is larger than {} MiB", MAX_MANIFEST_BYTES >> 20)
        }
        Err(error) => Err(anyhow::Error::from_boxed(error).context("reading the body")),
    }
}

/// Blocking.
fn system_roots() -> anyhow::Result<TlsConnector> {
    trusting(rustls_native_certs::load_native_certs().certs)
}

/// Trusts these certificates; those that cannot be read are skipped.
fn trusting(
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        bail!("the system has no usable root certificates");
    }
    let provider = crate::base::tls_provider();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
