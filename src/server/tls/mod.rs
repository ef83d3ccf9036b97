//! TLS of the main port.
//!
//! * Owns: the serving certificate, the CA bundle of client certificates, and the rustls configuration with both.
//! * Woken by a connection or a request; files are checked then, at most once a second.
//! * Publishes: the configuration for the next handshake, and the current CA bundle.
//! * Must never close a connection because a file has changed, replace a valid file's content by an invalid one's, or
//!   reveal a key.
//! * Upstream: `InitializeTLS` in `cmd/kubelet/app/server.go`, `pkg/kubelet/certificate` and
//!   `k8s.io/client-go/util/cert`.

mod client_ca;
mod self_signed;
mod key_pair;
mod tls_options;
#[cfg(test)]
mod tests;

pub use client_ca::{CaBundle, ClientCaFile};
pub use tls_options::{TlsOptionError, TlsOptions, without_effect};

use self::client_ca::RequestCertificate;
use self::key_pair::CertificateKeyPair;
use self::self_signed::CertificateNames;
use crate::base::{Reloaded, error_chain};
use anyhow::Context as _;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Only HTTP/1.1, because HTTP/2 connections cannot be upgraded to streams.
const PROTOCOLS: [&[u8]; 1] = [b"http/1.1"];

/// TLS settings of the main port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The serving certificate.
    pub certificate: ServingCertificate,
    /// Versions, cipher suites and curves.
    pub options: TlsOptions,
}

/// The source of the serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingCertificate {
    /// Files that another program maintains.
    Files {
        /// Certificate chain in PEM.
        certificate: PathBuf,
        /// Private key in PEM.
        key: PathBuf,
    },
    /// `kubelet.crt` and `kubelet.key` in this directory; generated unless they exist and are valid.
    SelfSigned {
        /// The directory.
        directory: PathBuf,
    },
    /// `kubelet-server-current.pem` in this directory, issued by the cluster. Until it exists, handshakes fail; after
    /// that, the last valid one is used.
    Issued {
        /// The directory.
        directory: PathBuf,
    },
}

/// The TLS of one port.
#[derive(Debug)]
pub struct Tls {
    options: TlsOptions,
    pair: Arc<Reloaded<Option<CertificateKeyPair>>>,
    client_ca: Option<Arc<ClientCaFile>>,
    loaded: Mutex<LoadedTls>,
}

/// The rustls configuration, and the files' content that it was built from.
#[derive(Debug)]
struct LoadedTls {
    config: Arc<ServerConfig>,
    pair: Arc<Option<CertificateKeyPair>>,
    ca: Option<Arc<CaBundle>>,
}

impl Tls {
    /// Reads the certificate, or generates one for this name and these addresses. Blocking.
    ///
    /// # Errors
    /// A file that cannot be read or is invalid, with its path.
    pub fn open(
        settings: &TlsSettings,
        (name, addresses): (&str, &[IpAddr]),
        client_ca: Option<Arc<ClientCaFile>>,
    ) -> anyhow::Result<Self> {
        let options = settings.options.clone();
        let pair = match &settings.certificate {
            ServingCertificate::Files { certificate, key } => {
                let files = vec![certificate.clone(), key.clone()];
                let (certificate, key) = (certificate.clone(), key.clone());
                let read = move || CertificateKeyPair::read(&certificate, &key).map(Some);
                Reloaded::open("the serving certificate", files, read, |_| false)
                    .context("tlsCertFile and tlsPrivateKeyFile")?
            }
            ServingCertificate::SelfSigned { directory } => {
                let names = CertificateNames::of(name, addresses);
                let files = self_signed::files(directory).to_vec();
                let directory = directory.clone();
                self_signed::read_or_create(&directory, &names)?;
                let read = move || self_signed::reload(&directory, &names).map(Some);
                let expires_soon = |pair: &Option<CertificateKeyPair>| {
                    pair.as_ref().is_some_and(self_signed::expires_soon)
                };
                Reloaded::open("the serving certificate", files, read, expires_soon)?
            }
            ServingCertificate::Issued { directory } => {
                let path = directory.join("kubelet-server-current.pem");
                let (files, file) = (vec![path.clone()], path.clone());
                let is_start = AtomicBool::new(true);
                // There may be no certificate at the start. Later that is an error, which keeps the one in use.
                let read = move || {
                    if is_start.swap(false, Ordering::Relaxed) {
                        Ok(issued_at_start(&path))
                    } else {
                        CertificateKeyPair::read(&path, &path).map(Some)
                    }
                };
                let is_unread =
                    move |pair: &Option<CertificateKeyPair>| pair.is_none() && file.exists();
                Reloaded::open("the serving certificate", files, read, is_unread)?
            }
        };
        let pair = Arc::new(pair);
        let (pair_now, ca_now) = (pair.latest(), client_ca.as_ref().map(|file| file.latest()));
        let config = config(&options, pair_now.as_ref().as_ref(), ca_now.as_ref())?;
        Ok(Self {
            options,
            pair,
            client_ca,
            loaded: Mutex::new(LoadedTls { config, pair: pair_now, ca: ca_now }),
        })
    }

    /// The configuration for the next handshake.
    pub async fn config(&self) -> Arc<ServerConfig> {
        let pair = self.pair.current().await;
        let ca = match &self.client_ca {
            Some(file) => Some(file.current().await),
            None => None,
        };
        let mut loaded = self.loaded.lock();
        let same = match (&loaded.ca, &ca) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same || !Arc::ptr_eq(&loaded.pair, &pair) {
            match config(&self.options, pair.as_ref().as_ref(), ca.as_ref()) {
                Ok(config) => loaded.config = config,
                // The content was validated when it was read, so this does not happen; the old configuration stays
                // valid.
                Err(error) => tracing::error!(
                    err = error_chain(error.as_ref()),
                    "Reloading the TLS configuration failed"
                ),
            }
            (loaded.pair, loaded.ca) = (pair, ca);
        }
        loaded.config.clone()
    }
}

/// The certificate issued by the cluster; `None` if there is no valid one. Blocking.
fn issued_at_start(path: &Path) -> Option<CertificateKeyPair> {
    if !path.exists() {
        return None;
    }
    let read = CertificateKeyPair::read(path, path);
    read.inspect_err(|error| {
        let err = error_chain(error.as_ref());
        tracing::warn!(path = %path.display(), err, "The issued serving certificate is unusable");
    })
    .ok()
}

/// Makes every handshake fail: a node that uses certificates of the cluster must never present another one.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        tracing::debug!("No serving certificate available for the kubelet");
        None
    }
}

fn config(
    options: &TlsOptions,
    pair: Option<&CertificateKeyPair>,
    ca: Option<&Arc<CaBundle>>,
) -> anyhow::Result<Arc<ServerConfig>> {
    let builder = ServerConfig::builder_with_provider(options.provider())
        .with_protocol_versions(options.versions())
        .context("incompatible TLS versions and cipher suites")?;
    let builder = match ca {
        Some(ca) => builder.with_client_cert_verifier(RequestCertificate::of(ca.clone())),
        None => builder.with_no_client_auth(),
    };
    let resolver: Arc<dyn ResolvesServerCert> = match pair {
        Some(pair) => pair.resolver(),
        None => Arc::new(NoCertificate),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(Arc::new(config))
}
