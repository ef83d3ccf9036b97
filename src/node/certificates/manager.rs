//! Keeps one certificate current.

use super::{
    bootstrap::Bootstrap,
    failure::{report, stored},
    metrics::CertificateMetrics,
    plan::{Purpose, Template, delay, renewal},
    request::{self, RequestError, Signer, request},
    store::{Current, FileStore},
};
use crate::apiserver::ApiServer;
use rcgen::KeyPair;
use std::time::{Duration, SystemTime};
use tokio::{task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

/// How long a request may wait for its certificate.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How often names and the clock are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Requests a certificate when there is none that does, and renews it before it ends.
pub struct CertificateManager {
    purpose: Purpose,
    api: ApiServer,
    store: FileStore,
    /// `None` while it is not known what to request.
    template: Box<dyn Fn() -> Option<Template> + Send + Sync>,
    metrics: CertificateMetrics,
    /// Nothing can be requested before its end.
    bootstrap: Option<Bootstrap>,
}

impl CertificateManager {
    /// The template is read every ten seconds.
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
        }
    }

    /// The same, which begins when the bootstrap is done.
    #[must_use]
    pub fn after(self, bootstrap: Option<Bootstrap>) -> Self {
        Self { bootstrap, ..self }
    }

    /// Runs until the token is cancelled.
    ///
    /// # Errors
    /// None; a failure is logged, counted, and tried again.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = self.renew_forever() => {}
            () = shutdown.cancelled() => {}
        }
        Ok(())
    }

    async fn renew_forever(&self) {
        if let Some(bootstrap) = &self.bootstrap {
            bootstrap.done().await;
        }
        let mut current = self.read().await;
        let mut random = fastrand::f64();
        let mut failures = 0;
        loop {
            self.metrics.set_end(current.as_ref().map(end));
            let Some(template) = (self.template)() else {
                sleep(CHECK_INTERVAL).await;
                continue;
            };
            let due = current
                .as_ref()
                .filter(|current| current.satisfies(&template));
            let due = due.map(|current| renewal(&current.facts, random));
            if let Some(left) = due.and_then(|due| due.duration_since(SystemTime::now()).ok()) {
                sleep(left.min(CHECK_INTERVAL)).await;
                continue;
            }
            let stored = self.read().await;
            if stored.as_ref().map(end) != current.as_ref().map(end) {
                // A bootstrap has renewed it.
                current = stored;
                continue;
            }
            let renewing = self.renew(&template);
            let renewed = tokio::select! {
                renewed = renewing => renewed,
                // What is requested is not what is needed any more.
                () = self.changed(&template) => continue,
            };
            match renewed {
                Ok(new) => {
                    random = fastrand::f64();
                    let is_good =
                        new.satisfies(&template) && renewal(&new.facts, random) > SystemTime::now();
                    let old = current.replace(new);
                    self.observe(old.as_ref());
                    if is_good {
                        failures = 0;
                    } else {
                        // The signer may leave names out, or issue what ends at once, each time.
                        failures += 1;
                        self.metrics.set_end(current.as_ref().map(end));
                        sleep(delay(failures, false)).await;
                    }
                }
                Err(error) => {
                    failures += 1;
                    self.metrics.failed();
                    sleep(report(self.purpose.name(), failures, &error)).await;
                }
            }
        }
    }

    /// Waits until the template is another one.
    async fn changed(&self, template: &Template) {
        while (self.template)().as_ref() == Some(template) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn read(&self) -> Option<Current> {
        let store = self.store.clone();
        let read = spawn_blocking(move || store.current()).await;
        read.ok().flatten()
    }

    async fn renew(&self, template: &Template) -> Result<Current, RequestError> {
        tracing::info!(purpose = self.purpose.name(), "Rotating certificates");
        let key = KeyPair::generate().map_err(anyhow::Error::from)?;
        let wanted = (signer(self.purpose), template);
        let certificate = request(&self.api, wanted, &key, None, WAIT_TIMEOUT).await?;
        let counted = || self.metrics.failed();
        let key = key.serialize_pem();
        stored(&self.store, certificate, key, counted).await
    }

    fn observe(&self, old: Option<&Current>) {
        tracing::info!(purpose = self.purpose.name(), "Rotated certificates");
        if let Some(old) = old {
            let from = SystemTime::from(old.facts.not_before);
            let life = SystemTime::now().duration_since(from);
            self.metrics.lived(life.unwrap_or_default());
        }
    }
}

fn signer(purpose: Purpose) -> Signer {
    match purpose {
        Purpose::Client => request::CLIENT,
        Purpose::Serving => request::SERVING,
    }
}

fn end(current: &Current) -> SystemTime {
    SystemTime::from(current.facts.not_after)
}
