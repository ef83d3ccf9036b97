//! Pod certificates for projected volumes (PodCertificateRequest).
//!
//! * Owns: per projection of a pod, a private key and the certificate that a signer issued for it, which is refreshed
//!   before it expires. They are stored only in the pod's volume, so a restarted kubelet requests new ones.
//! * Woken by: its callers, the watch of a pending request, and timers.
//! * Publishes: the set of pods whose certificates changed; notices that become events ([`CertificateNotice`]).
//! * Must never log a key, or remove a certificate because it cannot be refreshed.
//! * Upstream: `pkg/kubelet/podcertificate`.

mod certificate;
mod key;
mod rules;

pub use certificate::{
    CertificateNotice, FoundCertificates, PodCertificate, PodCertificateError, PodCertificateKey,
};

use super::subscriptions::{NoValue, Publisher, Subscriptions, sleep_until_time};
use super::{ApiError, ApiServer, ResourcePath, Selection, WatchEvent};
use crate::base::metrics::{AtScrape, Metrics, ScrapeSample};
use crate::base::{DirtySet, clock, error_chain, spawn_blocking};
use crate::model::PodUid;
use anyhow::Context as _;
use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use key::{KeyAndRequest, KeyType};
use parking_lot::Mutex;
use rules::{CertificateState, NoCertificate, Refusal, SignerDecision};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::sleep;

/// Maximum number of keys that are generated at the same time: an RSA key takes seconds of CPU time.
const MAX_KEYS: usize = 1;
/// Capacity of the queue of notices.
const MAX_NOTICES: usize = 64;
/// The delay after a failure, doubling from `FIRST_DELAY` to `MAX_DELAY`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The certificates that pods mount. Cheap to clone.
#[derive(Clone, Default)]
pub struct PodCertificates(
    Subscriptions<ApiCertificates, PodCertificateKey, Result<PodCertificate, PodCertificateError>>,
);

#[derive(Clone)]
struct ApiCertificates {
    api: ApiServer,
    node: watch::Receiver<Option<Arc<Node>>>,
    making: Arc<Semaphore>,
    notices: mpsc::Sender<CertificateNotice>,
    states: Arc<Mutex<HashMap<PodCertificateKey, CertificateState>>>,
    /// The random delay of a refresh, as a fraction of the maximum.
    max_jitter: f64,
}

impl PodCertificates {
    /// Requests certificates from signers of this API server. A pod is marked in `changed` when one of its certificates
    /// changes.
    pub fn new(
        api: ApiServer,
        changed: Arc<DirtySet<PodUid>>,
        node: watch::Receiver<Option<Arc<Node>>>,
    ) -> (Self, mpsc::Receiver<CertificateNotice>) {
        let (notices, to_read) = mpsc::channel(MAX_NOTICES);
        let certificates = ApiCertificates {
            api,
            node,
            making: Arc::new(Semaphore::new(MAX_KEYS)),
            notices,
            states: Arc::default(),
            max_jitter: 1.0,
        };
        (Self(Subscriptions::new(Some(certificates), changed)), to_read)
    }

    #[cfg(test)]
    pub(crate) fn without_jitter(self) -> Self {
        let without = |of| ApiCertificates { max_jitter: 0.0, ..of };
        let Self(mut certificates) = self;
        certificates.api = certificates.api.map(without);
        Self(certificates)
    }

    /// Whether pods can have certificates.
    pub fn is_served(&self) -> bool {
        self.0.api.is_some()
    }

    /// Registers `kubelet_podcertificate_states`.
    pub fn measured(self, metrics: &Metrics) -> Self {
        if let Some(of) = &self.0.api {
            let states = of.states.clone();
            metrics.register(
                "kubelet_podcertificate_states",
                "Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state",
                AtScrape::gauge(move || samples(&states.lock(), clock::timestamp())),
            );
        }
        self
    }

    /// Sets the certificates that a pod mounts.
    pub fn register(&self, uid: &PodUid, keys: BTreeSet<PodCertificateKey>) {
        let keep =
            |api: ApiCertificates, key, publisher| async move { api.keep(&key, &publisher).await };
        self.0.register(uid, keys, keep);
    }

    /// Removes the certificates of a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.forget(uid);
    }

    /// Returns these certificates. Waits a bounded time for the first ones.
    pub async fn get(&self, keys: BTreeSet<PodCertificateKey>) -> FoundCertificates {
        self.0.results(keys).await
    }
}

impl From<NoValue> for PodCertificateError {
    fn from(none: NoValue) -> Self {
        none.why().map_or(Self::Standalone, Self::NotIssued)
    }
}

fn samples(
    states: &HashMap<PodCertificateKey, CertificateState>,
    now: Timestamp,
) -> Vec<ScrapeSample> {
    let mut counts: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for (key, state) in states {
        *counts.entry((&key.signer, state.label(now))).or_default() += 1.0;
    }
    let sample = |((signer, state), count): ((&str, &str), f64)| {
        let labels = [("signer_name", signer), ("state", state)];
        (labels.map(|(name, value)| (name, value.to_owned())).into(), count)
    };
    counts.into_iter().map(sample).collect()
}

/// Counts one projection in the metric until it is dropped.
struct CountedCertificate<'a> {
    of: &'a ApiCertificates,
    key: &'a PodCertificateKey,
}

impl CountedCertificate<'_> {
    fn is(&self, state: CertificateState) {
        self.of.states.lock().insert(self.key.clone(), state);
    }
}

impl Drop for CountedCertificate<'_> {
    fn drop(&mut self) {
        self.of.states.lock().remove(self.key);
    }
}

impl ApiCertificates {
    /// Requests a certificate, and refreshes it before it expires, until the signer rejects a request.
    async fn keep(
        &self,
        key: &PodCertificateKey,
        publisher: &Publisher<Result<PodCertificate, PodCertificateError>>,
    ) {
        let counted = CountedCertificate { of: self, key };
        counted.is(CertificateState::NotIssued);
        let mut held = None;
        loop {
            // Boxed, because the large future would otherwise take memory in the task while it sleeps.
            let deciding = Box::pin(self.decided(key, publisher));
            let (name, made, outcome) = tokio::select! {
                biased;
                decided = deciding => decided,
                never = self.remind(key, held) => match never {},
            };
            match outcome {
                SignerDecision::Issued(issued) => {
                    let refresh_at = rules::refresh_at(&issued, fastrand::f64() * self.max_jitter);
                    let not_after = issued.not_after;
                    counted.is(CertificateState::Issued { refresh_at, not_after });
                    held = Some((refresh_at, not_after));
                    publisher.publish(Ok(PodCertificate { key: made, chain: issued.chain }));
                    if refresh_at <= clock::timestamp() {
                        // The signer's clock differs from this one, or its certificates are not usable.
                        sleep(MAX_DELAY).await;
                    }
                    sleep_until_time(refresh_at).await;
                }
                SignerDecision::Denied(refusal) => {
                    counted.is(CertificateState::Denied);
                    self.notice(key, "Denied", refused("was denied", &name, &refusal));
                    let Refusal { reason, message } = refusal;
                    publisher.publish(Err(PodCertificateError::Denied { reason, message }));
                    return pending().await;
                }
                SignerDecision::Failed(refusal) => {
                    counted.is(CertificateState::Failed);
                    self.notice(key, "Failed", refused("failed", &name, &refusal));
                    let Refusal { reason, message } = refusal;
                    publisher.publish(Err(PodCertificateError::Failed { reason, message }));
                    return pending().await;
                }
            }
        }
    }

    /// Requests a certificate and waits for the signer's decision. Returns the request's name, the private key, and the
    /// decision.
    async fn decided(
        &self,
        key: &PodCertificateKey,
        publisher: &Publisher<Result<PodCertificate, PodCertificateError>>,
    ) -> (String, Bytes, SignerDecision) {
        let mut delay = FIRST_DELAY;
        let mut recovery = self.api.recovery();
        loop {
            let error = match self.request(key).await {
                Ok((name, made)) => {
                    tracing::debug!(
                        namespace = key.namespace,
                        pod = key.pod_name,
                        request = name,
                        "Waiting for the certificate to be issued"
                    );
                    // For the event of a pod that waits for its volume.
                    publisher
                        .failed(format!("PodCertificateRequest {} is pending", full(key, &name)));
                    match self.wait(key, &name).await {
                        Ok(outcome) => return (full(key, &name), made, outcome),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            let why = error_chain(error.as_ref());
            if publisher.failed(why.clone()) {
                tracing::warn!(
                    namespace = key.namespace, pod = key.pod_name, podUID = %key.pod_uid, volume = key.volume, err = why,
                    "Failed to request a certificate"
                );
            }
            let wait = delay.mul_f64(1.0 + 0.5 * fastrand::f64());
            recovery.wait(&mut (clock::instant() + wait)).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    /// Generates a key and creates a PodCertificateRequest; returns its name and the private key.
    async fn request(&self, key: &PodCertificateKey) -> anyhow::Result<(String, Bytes)> {
        let account = ResourcePath::namespaced(&key.namespace, &key.service_account);
        let account: ServiceAccount =
            self.api.get(account).await.context("while fetching service account")?;
        let node = self.node.borrow().clone();
        let node = node.context("the Node object is not known yet")?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let made = self.make(&key.key_type).await?;
        let (node_name, node_uid) = (text(&node.metadata.name), text(&node.metadata.uid));
        let of = (&*text(&account.metadata.uid), &*node_name, &*node_uid);
        let object = rules::request(key, of, made.request);
        let created = self.api.create(Some(&key.namespace), &object).await;
        let created = created.map_err(not_served).context("while creating on API")?;
        let name = created.metadata.name.context("the request has no name")?;
        Ok((name, made.key))
    }

    async fn make(&self, key_type: &str) -> anyhow::Result<KeyAndRequest> {
        let parsed = KeyType::parse(key_type);
        let parsed = parsed.with_context(|| format!("unknown key type {key_type:?}"))?;
        // The semaphore is never closed.
        let _permit = self.making.acquire().await;
        let made = spawn_blocking(move || key::generate(parsed));
        made.await?.context("while generating keypair")
    }

    /// Waits for the decision of a signer about a request.
    async fn wait(&self, key: &PodCertificateKey, name: &str) -> anyhow::Result<SignerDecision> {
        let node = self.node.borrow().clone();
        let node = node.and_then(|node| node.metadata.name.clone());
        // The node authorizer permits the node to watch only its own requests.
        let node = node.context("the Node object is not known yet")?;
        let mut watch = self.api.list_watch::<PodCertificateRequest>(Selection {
            namespace: Some(key.namespace.clone()),
            field_selector: Some(format!("metadata.name={name},spec.nodeName={node}")),
        });
        let fault = |what| anyhow::anyhow!("PodCertificateRequest {} {what}", full(key, name));
        let deleted = || fault("was deleted");
        let no_certificate = |NoCertificate| fault("has no certificate");
        loop {
            let item = match watch.next().await {
                WatchEvent::Listed(mut items) => items.pop().ok_or_else(deleted)?,
                WatchEvent::Applied(item) => item,
                WatchEvent::Deleted(_) => return Err(deleted()),
                WatchEvent::Failed(error) => {
                    tracing::debug!(
                        request = name,
                        err = error_chain(&*error),
                        "Failed to watch a request for a certificate"
                    );
                    continue;
                }
            };
            // A request that cannot be decoded may be readable in its next version.
            let Ok(request) = item else { continue };
            if let Some(decision) = rules::decision(&request).map_err(no_certificate)? {
                return Ok(decision);
            }
        }
    }

    /// Sends a notice when the certificate is overdue for refresh, and when it has expired.
    async fn remind(
        &self,
        key: &PodCertificateKey,
        held: Option<(Timestamp, Timestamp)>,
    ) -> Infallible {
        if let Some((refresh_at, not_after)) = held {
            let mut reminders = [
                (
                    rules::overdue_at(refresh_at),
                    "CertificateOverdueForRefresh",
                    "PodCertificate refresh overdue",
                ),
                (not_after, "CertificateExpired", "PodCertificate expired"),
            ];
            reminders.sort_unstable();
            for (at, reason, message) in reminders {
                sleep_until_time(at).await;
                self.notice(key, reason, message.to_owned());
            }
        }
        pending().await
    }

    fn notice(&self, key: &PodCertificateKey, reason: &'static str, message: String) {
        let notice = CertificateNotice {
            namespace: key.namespace.clone(),
            pod_name: key.pod_name.clone(),
            pod_uid: key.pod_uid.clone(),
            reason,
            message,
        };
        if self.notices.try_send(notice).is_err() {
            tracing::warn!(pod = key.pod_name, reason, "Dropped an event of a certificate");
        }
    }
}

fn full(key: &PodCertificateKey, name: &str) -> String {
    format!("{}/{name}", key.namespace)
}

fn refused(how: &str, name: &str, refusal: &Refusal) -> String {
    let Refusal { reason, message } = refusal;
    format!("PodCertificateRequest {name} {how}, reason={reason:?}, message={message:?}")
}

fn not_served(error: ApiError) -> anyhow::Error {
    if error.is_not_served() {
        anyhow::anyhow!(
            "the API server does not serve podcertificaterequests of certificates.k8s.io/v1beta1"
        )
    } else {
        error.into()
    }
}

#[cfg(test)]
mod tests;
