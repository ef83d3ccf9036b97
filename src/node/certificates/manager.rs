//! Rotates one certificate (client-go's `certificate.Manager`).

use super::bootstrap::Bootstrap;
use super::failure::{log_and_backoff, store_with_retries};
use super::metrics::CertificateMetrics;
use super::plan::{Purpose, Template, delay, renewal};
use super::request::{self, RequestError, Signer, request};
use super::store::{FileStore, StoredCertificate};
use crate::apiserver::{ApiServer, kubeconfig_certificate};
use crate::base::{clock, error_chain, spawn_blocking};
use rcgen::KeyPair;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tokio::time::sleep;

/// How long a request may wait for approval and its certificate.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Interval of checks of the template and the clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Requests a certificate if none satisfies the template, and renews it before it expires.
pub struct CertificateManager {
    purpose: Purpose,
    api: ApiServer,
    store: FileStore,
    /// Returns the content to request; `None` while it is unknown.
    template: Box<dyn Fn() -> Option<Template> + Send + Sync>,
    metrics: CertificateMetrics,
    /// A bootstrap that has to be done before a certificate can be requested.
    bootstrap: Option<Bootstrap>,
    /// The kubeconfig whose certificate is used at first.
    embedded: Option<PathBuf>,
}

struct RotationState {
    current: Option<StoredCertificate>,
    /// Random number from 0 to 1 that selects the time of renewal within its range.
    random: f64,
    failures: u32,
    /// Whether the current certificate is that of the kubeconfig, which is replaced at once.
    replaces_kubeconfig_certificate: bool,
}

impl CertificateManager {
    /// Builds a manager. `template` is called every ten seconds.
    pub fn new(
        purpose: Purpose,
        api: ApiServer,
        store: FileStore,
        template: impl Fn() -> Option<Template> + Send + Sync + 'static,
        metrics: CertificateMetrics,
    ) -> Self {
        Self {
            purpose,
            api,
            store,
            template: Box::new(template),
            metrics,
            bootstrap: None,
            embedded: None,
        }
    }

    /// Starts only when the bootstrap is done.
    #[must_use]
    pub fn after_bootstrap(self, bootstrap: Option<Bootstrap>) -> Self {
        Self { bootstrap, ..self }
    }

    /// Uses the certificate of this kubeconfig if none is stored, and replaces it at once.
    #[must_use]
    pub fn with_initial_certificate(self, kubeconfig: PathBuf) -> Self {
        let embedded = Some(kubeconfig);
        Self { embedded, ..self }
    }

    /// Runs without an end; failures are logged, counted and retried.
    pub async fn run(self) {
        if let Some(bootstrap) = &self.bootstrap {
            bootstrap.done().await;
        }
        let store = self.store.clone();
        // A failure changes nothing: the current certificate is read below.
        let _ = spawn_blocking(move || store.recover()).await;
        let mut state = RotationState {
            current: self.read().await,
            random: fastrand::f64(),
            failures: 0,
            replaces_kubeconfig_certificate: false,
        };
        if state.current.is_none() {
            state.current = self.store_kubeconfig_certificate().await;
            state.replaces_kubeconfig_certificate = state.current.is_some();
        }
        loop {
            self.metrics.set_end(state.current.as_ref().map(end));
            let template = self.due(&mut state).await;
            let renewed = tokio::select! {
                renewed = self.renew(&template) => renewed,
                // The template changed: the pending request is obsolete.
                () = self.changed(&template) => continue,
            };
            match renewed {
                Ok(new) => self.replace(&mut state, new, &template).await,
                Err(error) => {
                    state.failures += 1;
                    self.metrics.failed();
                    let retry_after =
                        log_and_backoff(self.purpose.as_str(), state.failures, &error);
                    sleep(retry_after).await;
                }
            }
        }
    }

    /// Stores the certificate of the kubeconfig as the current one, for programs that read that file.
    async fn store_kubeconfig_certificate(&self) -> Option<StoredCertificate> {
        let (kubeconfig, store) = (self.embedded.clone()?, self.store.clone());
        let adopting = move || {
            let (certificate, key) = kubeconfig_certificate(&kubeconfig)?;
            let updated = store.update(&certificate, &key);
            let failed = |error: &anyhow::Error| {
                let err = error_chain(error.as_ref());
                tracing::warn!(err, "Storing the certificate of the kubeconfig failed");
            };
            updated.inspect_err(failed).ok()
        };
        spawn_blocking(adopting).await.ok().flatten()
    }

    /// Waits until a certificate has to be requested; returns its content.
    async fn due(&self, state: &mut RotationState) -> Template {
        loop {
            let Some(template) = (self.template)() else {
                sleep(CHECK_INTERVAL).await;
                continue;
            };
            if state.replaces_kubeconfig_certificate {
                return template;
            }
            let current = state.current.as_ref();
            let current = current.filter(|current| current.satisfies(&template));
            let due = current.map(|current| renewal(&current.facts, state.random));
            if let Some(left) = due.and_then(|due| due.duration_since(clock::system_time()).ok()) {
                sleep(left.min(CHECK_INTERVAL)).await;
                continue;
            }
            let stored = self.read().await;
            if stored.as_ref().map(end) == state.current.as_ref().map(end) {
                return template;
            }
            // A bootstrap has replaced it.
            self.metrics.set_end(stored.as_ref().map(end));
            state.current = stored;
        }
    }

    async fn replace(
        &self,
        state: &mut RotationState,
        new: StoredCertificate,
        template: &Template,
    ) {
        tracing::info!(purpose = self.purpose.as_str(), "Rotated certificates");
        (state.replaces_kubeconfig_certificate, state.random) = (false, fastrand::f64());
        let is_good =
            new.satisfies(template) && renewal(&new.facts, state.random) > clock::system_time();
        self.metrics.set_end(Some(end(&new)));
        if let Some(old) = state.current.replace(new) {
            let from = SystemTime::from(old.facts.not_before);
            let life = clock::system_time().duration_since(from);
            self.metrics.record_lifetime(life.unwrap_or_default());
        }
        if is_good {
            state.failures = 0;
        } else {
            // With a back-off, because the signer may omit names or issue a certificate that expires at once, every
            // time.
            state.failures += 1;
            sleep(delay(state.failures, false)).await;
        }
    }

    /// Waits until the template changes.
    async fn changed(&self, template: &Template) {
        while (self.template)().as_ref() == Some(template) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn read(&self) -> Option<StoredCertificate> {
        let store = self.store.clone();
        let read = spawn_blocking(move || store.current()).await;
        read.ok().flatten()
    }

    async fn renew(&self, template: &Template) -> Result<StoredCertificate, RequestError> {
        tracing::info!(purpose = self.purpose.as_str(), "Rotating certificates");
        let key = KeyPair::generate().map_err(anyhow::Error::from)?;
        let wanted = (signer(self.purpose), template);
        let certificate = request(&self.api, wanted, &key, None, WAIT_TIMEOUT).await?;
        let counted = || self.metrics.failed();
        let key = key.serialize_pem();
        store_with_retries(&self.store, certificate, key, counted).await
    }
}

fn signer(purpose: Purpose) -> Signer {
    match purpose {
        Purpose::Client => request::CLIENT,
        Purpose::Serving => request::SERVING,
    }
}

fn end(current: &StoredCertificate) -> SystemTime {
    SystemTime::from(current.facts.not_after)
}
