//! The client of the API server: reads, writes, watches and reviews.
//!
//! * Owns: the connections of `--kubeconfig`, their credentials and deadlines; the retries of reviews and watches.
//! * Woken by its callers; publishes nothing.
//! * Must never log a token or an object's data, take a failure for an empty answer, or keep a caller
//!   waiting without a deadline.
//! * Answers to `k8s.io/client-go/tools/clientcmd`, `k8s.io/client-go/transport` (renewed certificates) and to
//!   the clients of `TokenReview` and `SubjectAccessReview` in
//!   `k8s.io/apiserver/pkg/{authentication,authorization}`.

mod collection;
pub mod configmap_secret;
mod error;
mod kubeconfig;
mod metrics;
mod request;
mod review;
pub mod runtime_class;
pub mod service;
mod subscriptions;
pub mod token;
mod transport;
mod watch;
#[cfg(test)]
pub(crate) mod tests;

pub use error::ApiError;
pub use request::{Patch, Place};
pub use review::TIMEOUT;
pub use watch::{Item, ListWatch, Selection, Unreadable, WatchEvent};

use self::metrics::RequestMetrics;
use crate::{base::Reloaded, base::metrics::Metrics};
use kubeconfig::Connection;
use std::{fmt, path::Path, sync::Arc};

/// A client of the API server; clones share its connections.
#[derive(Clone)]
pub struct ApiServer {
    connection: Arc<Reloaded<Connection>>,
    metrics: Option<RequestMetrics>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &self.connection.latest().url;
        f.debug_tuple("ApiServer").field(url).finish()
    }
}

impl ApiServer {
    /// Reads the file and all that it refers to, and again when one of them changes. Sends no request.
    ///
    /// # Errors
    /// What cannot be read or used, with the path of the file.
    pub async fn of_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let connection = Arc::new(kubeconfig::open(path).await?);
        Ok(Self {
            connection,
            metrics: None,
        })
    }

    /// The same with metrics of its requests.
    #[must_use]
    pub fn measured(self, metrics: &Metrics) -> Self {
        let metrics = Some(RequestMetrics::new(metrics));
        Self { metrics, ..self }
    }
}
