//! TLS bootstrap: the first client certificate of a node.
//!
//! Upstream: `LoadClientCert` of `pkg/kubelet/certificate/bootstrap`.

use super::failure::{log_and_backoff, store_with_retries};
use super::plan::Template;
use super::request::{CLIENT, RequestError, bootstrap_name, request};
use super::store::{FileStore, create_directory};
use crate::apiserver::{
    ApiServer, certificate_is_valid, kubeconfig_is_valid, write_for_certificate,
};
use crate::base::{atomic_file, clock, spawn_blocking};
use anyhow::Context as _;
use rcgen::KeyPair;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::sleep;

/// How long a request may wait for approval and its certificate.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Interval of checks whether the current certificate has expired.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which tasks that wait for a bootstrap check whether it is done.
const DONE_INTERVAL: Duration = Duration::from_millis(500);

/// Requests a client certificate whenever the kubeconfig has no valid one.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: PathBuf,
    /// `--kubeconfig`, which the bootstrap writes.
    pub kubeconfig: PathBuf,
    /// Storage of the certificate.
    pub store: FileStore,
    /// Whether the stored certificate replaces the one of the kubeconfig while it is valid (`rotateCertificates`).
    pub rotates: bool,
    /// The node's name.
    pub node_name: String,
}

impl Bootstrap {
    /// Runs without an end; failures are logged and retried. The kubelet runs without a certificate meanwhile.
    pub async fn run(self) {
        loop {
            if !self.is_needed().await {
                sleep(CHECK_INTERVAL).await;
                continue;
            }
            self.until_done().await;
        }
    }

    /// Waits until there is a valid client certificate.
    pub async fn done(&self) {
        while self.is_needed().await {
            sleep(DONE_INTERVAL).await;
        }
    }

    async fn is_needed(&self) -> bool {
        let own = self.clone();
        let check = move || {
            let now = clock::system_time();
            let is_renewed = own.rotates
                && own.kubeconfig.exists()
                && certificate_is_valid(&own.store.current_path(), now);
            !is_renewed && !kubeconfig_is_valid(&own.kubeconfig, now)
        };
        spawn_blocking(check).await.unwrap_or(false)
    }

    /// Retries until a certificate is issued, or until something else has written a kubeconfig with a valid one.
    pub(super) async fn until_done(&self) {
        tracing::info!(
            path = %self.kubeconfig.display(),
            "Using bootstrap kubeconfig to generate TLS client cert, key and kubeconfig file"
        );
        let mut failures = 0;
        while self.is_needed().await {
            let Err(error) = self.once().await else {
                tracing::info!(path = %self.kubeconfig.display(), "Wrote the kubeconfig with the new client certificate");
                return;
            };
            failures += 1;
            if matches!(error, RequestError::Rejected(_)) {
                // So that the next attempt creates a new request instead of finding the rejected one.
                self.remove_key().await;
            }
            sleep(log_and_backoff("client", failures, &error)).await;
        }
    }

    async fn once(&self) -> Result<(), RequestError> {
        let path = self.key_path();
        let key = spawn_blocking(move || read_or_create_key(&path)).await;
        let key = key.map_err(anyhow::Error::from)??;
        let api = ApiServer::of_kubeconfig(&self.bootstrap_kubeconfig).await?;
        let template = Template::client(&self.node_name);
        let name = bootstrap_name(&template, &key);
        let wanted = (CLIENT, &template);
        let certificate = request(&api, wanted, &key, Some(name), WAIT_TIMEOUT).await?;
        store_with_retries(&self.store, certificate, key.serialize_pem(), || {}).await?;
        let own = self.clone();
        let write = move || {
            let certificate = own.store.current_path();
            write_for_certificate(&own.bootstrap_kubeconfig, &own.kubeconfig, &certificate)
        };
        spawn_blocking(write).await.map_err(anyhow::Error::from)??;
        self.remove_key().await;
        Ok(())
    }

    /// Path of the private key until its certificate is issued.
    pub(super) fn key_path(&self) -> PathBuf {
        self.store.directory().join("kubelet-client.key.tmp")
    }

    async fn remove_key(&self) {
        let path = self.key_path();
        let removing = move || {
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), err = %error, "Removing the key of the bootstrap failed");
            }
        };
        let _ = spawn_blocking(removing).await;
    }
}

/// Reads the key of an interrupted bootstrap, or generates a new one. Blocking.
fn read_or_create_key(path: &Path) -> anyhow::Result<KeyPair> {
    let existing = fs::read_to_string(path).ok();
    if let Some(key) = existing.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
        return Ok(key);
    }
    let key = KeyPair::generate()?;
    if let Some(directory) = path.parent() {
        create_directory(directory)?;
    }
    atomic_file::write_durable(path, key.serialize_pem().as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(key)
}
