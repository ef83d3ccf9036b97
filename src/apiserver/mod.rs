//! The API server, as far as the kubelet's own port asks it about those who call.
//!
//! * Owns: the client that `--kubeconfig` describes, its deadlines and its second tries.
//! * Woken by its callers; publishes nothing.
//! * Must never take pods or write anything, log what a token is, or keep a caller waiting for longer than
//!   [`PATIENCE`].
//! * Answers to `k8s.io/client-go/tools/clientcmd` and to the clients of `TokenReview` and
//!   `SubjectAccessReview` in `k8s.io/apiserver/pkg/{authentication,authorization}`.

mod kubeconfig;
mod metrics;
mod review;
#[cfg(test)]
pub(crate) mod tests;

pub use kubeconfig::KubeconfigError;
pub use review::{PATIENCE, ReviewError};

use self::metrics::RequestMetrics;
use crate::metrics::Metrics;
use kube::Client;
use std::{fmt, path::Path, sync::Arc};

/// A client of the API server; clones share its connections.
#[derive(Clone)]
pub struct ApiServer {
    client: Client,
    /// Where it is, for people.
    url: String,
    metrics: Option<RequestMetrics>,
    /// Host and port, as metrics have them.
    host: Arc<str>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiServer").field(&self.url).finish()
    }
}

impl ApiServer {
    /// Reads the file and all that it refers to. Nothing is asked yet.
    ///
    /// # Errors
    /// What cannot be read or makes no sense, with the name of the file.
    pub async fn of_kubeconfig(path: &Path) -> Result<Self, KubeconfigError> {
        let (client, url) = kubeconfig::client(path).await?;
        let uri = url.parse::<http::Uri>().ok();
        let host = uri.and_then(|uri| Some(uri.authority()?.as_str().into()));
        Ok(Self {
            client,
            url,
            metrics: None,
            host: host.unwrap_or_default(),
        })
    }

    /// The same, and its requests are counted.
    #[must_use]
    pub fn measured(self, metrics: &Metrics) -> Self {
        let metrics = Some(RequestMetrics::new(metrics));
        Self { metrics, ..self }
    }
}
