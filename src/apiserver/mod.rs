//! The client of the API server: reads, writes, watches and reviews.
//!
//! * Owns: the connections of `--kubeconfig`, their credentials and deadlines; the retries of reviews and watches.
//! * Woken by: its callers. Publishes nothing.
//! * Must never log a token or an object's data, treat a failed request as an empty response, or make a caller wait
//!   without a deadline.
//! * Upstream: `k8s.io/client-go/tools/clientcmd`, `k8s.io/client-go/transport` (renewed certificates) and to
//!   the clients of `TokenReview` and `SubjectAccessReview` in
//!   `k8s.io/apiserver/pkg/{authentication,authorization}`.

mod error;
mod metrics;
mod rate_limit;
mod storage;
mod recovery;
mod request;
mod review;
mod subscriptions;
pub mod claim;
pub mod token;
mod transport;
mod kubeconfig;
mod watch;
mod collection;
pub mod configmap_secret;
pub mod csi_driver;
pub mod runtime_class;
pub mod service;
pub mod volume_attachment;
mod pem;
pub mod trust_bundle;
pub mod pod_certificate;
mod cluster_objects;
#[cfg(test)]
pub(crate) mod tests;

pub use cluster_objects::ClusterObjects;
pub use error::ApiError;
pub use kubeconfig::{
    certificate_is_valid, kubeconfig_certificate, kubeconfig_is_valid, write_for_certificate,
};
pub use recovery::{AwaySince, Recovery};
pub use request::{ResourcePath, StrategicPatch};
pub use review::TIMEOUT;
pub use watch::{ApiItem, ListWatch, Selection, Unreadable, WatchEvent};

use self::metrics::ApiRequestMetrics;
use crate::base::metrics::Metrics;
use crate::base::proxy::ProxyEnvironment;
use crate::base::{Reloaded, clock};
use kubeconfig::ApiConnection;
use rate_limit::{RateLimit, RequestClass};
use recovery::Availability;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use storage::StorageVersions;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Maximum number of concurrent list pages, except for pods and nodes.
const MAX_PAGES: usize = 16;

/// How often a request that waits for credentials checks for them.
const IDENTITY_INTERVAL: Duration = Duration::from_millis(200);

/// A client of the API server; clones share its connections.
#[derive(Clone)]
pub struct ApiServer {
    connection: Arc<Reloaded<ApiConnection>>,
    availability: Arc<Availability>,
    metrics: Arc<ApiRequestMetrics>,
    storage: Arc<StorageVersions>,
    rate: Option<Arc<RateLimit>>,
    /// Whether requests use a separate connection.
    is_urgent: bool,
    /// Limits concurrent list pages of other kinds than pods and nodes: each may be large, and many kinds are listed at
    /// once after a start.
    pages: Arc<Semaphore>,
}

/// The files with the kubelet's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The kubeconfig.
    pub kubeconfig: PathBuf,
    /// A rotated certificate with its key, which replaces the credentials of the kubeconfig while it is valid.
    pub certificate: Option<PathBuf>,
    /// Whether the kubeconfig is written later, by a bootstrap; until then every request fails.
    pub is_awaited: bool,
    /// The environment that names proxies; `None` for the one of this process.
    pub proxies: Option<ProxyEnvironment>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &self.connection.latest().url;
        f.debug_tuple("ApiServer").field(url).finish()
    }
}

impl ApiServer {
    /// Reads the kubeconfig and the files that it names, and again when one of them changes. Sends no request.
    ///
    /// # Errors
    /// A file cannot be read or used. The error has the path of the kubeconfig.
    pub async fn of_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let kubeconfig = path.to_owned();
        Self::open(ClientIdentity {
            kubeconfig,
            certificate: None,
            is_awaited: false,
            proxies: None,
        })
        .await
    }

    /// Like [`Self::of_kubeconfig`], with a rotated certificate, or with a kubeconfig that does not exist yet.
    ///
    /// # Errors
    /// As [`Self::of_kubeconfig`]; none while the kubeconfig is awaited.
    pub async fn open(identity: ClientIdentity) -> anyhow::Result<Self> {
        let connection = Arc::new(kubeconfig::open(identity).await?);
        Ok(Self {
            connection,
            availability: Arc::default(),
            metrics: Arc::new(ApiRequestMetrics::register(&Metrics::new())),
            storage: Arc::default(),
            rate: None,
            is_urgent: false,
            pages: Arc::new(Semaphore::new(MAX_PAGES)),
        })
    }

    /// Limits requests per second; no limit if `qps` is zero. Reviews and the opening of watches are not limited here.
    #[must_use]
    pub fn limited(self, qps: u32, burst: u32) -> Self {
        let rate = (qps > 0).then(|| Arc::new(RateLimit::new(qps, burst)));
        Self { rate, ..self }
    }

    /// A client without the rate limit and with a separate connection, for the lease and the status of the node: these
    /// are few requests, and a node whose lease waits behind a thousand status patches would count as unreachable.
    #[must_use]
    pub fn unlimited(&self) -> Self {
        Self {
            rate: None,
            is_urgent: true,
            pages: Arc::new(Semaphore::new(MAX_PAGES)),
            ..self.clone()
        }
    }

    /// What the kubelet presents to the API server, without secrets.
    pub fn credentials(&self) -> String {
        self.connection.latest().credentials.clone()
    }

    /// The URL of the API server, without credentials; empty while the kubeconfig is awaited.
    pub fn url(&self) -> String {
        self.connection.latest().url.to_string()
    }

    /// The proxy of the requests, without its credentials.
    pub fn proxy(&self) -> Option<String> {
        self.connection.latest().proxy.clone()
    }

    /// Waits for the rate limit.
    ///
    /// # Errors
    /// Too many requests are waiting.
    async fn admitted(&self, class: RequestClass) -> Result<(), ApiError> {
        match &self.rate {
            Some(rate) => rate.admitted(class).await,
            None => Ok(()),
        }
    }

    /// Takes back the token of a request that did not reach the API server: an outage must not use up the rate.
    fn release_unreached<T>(&self, result: &Result<T, ApiError>) {
        if let (Some(rate), Err(ApiError::Unreachable(_))) = (&self.rate, result) {
            rate.give_back();
        }
    }

    /// The connection with the current credentials; waits until there are some.
    ///
    /// # Errors
    /// There are no credentials within the deadline.
    async fn connected(&self, deadline: Duration) -> Result<Arc<ApiConnection>, ApiError> {
        let end = clock::instant() + deadline;
        loop {
            let connection = self.connection.current().await;
            if connection.transport.is_some() {
                return Ok(connection);
            }
            if clock::instant() + IDENTITY_INTERVAL >= end {
                let text = "the kubelet has no credentials yet";
                return Err(ApiError::Unreachable(text.into()));
            }
            sleep(IDENTITY_INTERVAL).await;
        }
    }

    /// Shows the metrics of the requests in `metrics`.
    #[must_use]
    pub fn measured(self, metrics: &Metrics) -> Self {
        Self { metrics: Arc::new(ApiRequestMetrics::register(metrics)), ..self }
    }
}
