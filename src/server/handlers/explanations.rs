//! `/explain` and `/explain/<namespace>/<pod>`, and the corresponding pages for browsers.

use super::page;
use crate::base::clock;
use crate::server::explain::{Explanation, Overview};
use crate::server::http::params::{RequestParams, RouteError};
use crate::server::http::query::BadQuery;
use crate::server::http::response::{Body, json_object, not_found};
use crate::server::known_pods::until_shutdown;
use crate::server::streaming::PodName;
use futures::future::BoxFuture;
use hyper::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Maximum time that a request waits for a change.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(25);

/// Returns the overview of all known pods.
pub type ReadOverview = Arc<dyn Fn() -> Overview + Send + Sync>;
/// Explains the state of one pod; `None` if the pod is unknown.
pub type ExplainPod = Arc<dyn Fn(&PodName) -> Option<Explanation> + Send + Sync>;
/// Returns the version of the overview, and a future that completes when it changes after this call.
pub type OverviewVersion = Arc<dyn Fn() -> (String, BoxFuture<'static, ()>) + Send + Sync>;

/// Parameters of `/explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverviewQuery {
    /// `after=<version>`: wait until the version differs, or a timeout.
    pub after: Option<String>,
}

impl OverviewQuery {
    pub(in crate::server) fn parse(params: &RequestParams) -> Result<Self, BadQuery> {
        Ok(Self { after: params.query_parameter("after")? })
    }
}

/// The pod to explain; `uid=<uid>` selects one of several pods of this name.
pub(in crate::server) fn pod_name(params: &RequestParams) -> Result<PodName, RouteError> {
    Ok(PodName {
        namespace: params.name("namespace")?,
        name: params.name("pod")?,
        uid: params.query_parameter("uid")?,
    })
}

/// The handlers of explanations.
#[derive(Clone)]
pub struct Explanations {
    /// Returns the list of pods.
    pub overview: ReadOverview,
    /// Explains one pod.
    pub explain: ExplainPod,
    /// Returns the version, for requests that wait for a change.
    pub overview_version: OverviewVersion,
    /// This program's version, shown on the pages.
    pub version: &'static str,
}

impl Explanations {
    /// `/explain`.
    pub(in crate::server) async fn overview(
        &self,
        query: &OverviewQuery,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        self.wait(query, shutdown).await;
        json_object(&(self.overview)())
    }

    /// `/explain/<namespace>/<pod>`.
    pub(in crate::server) fn explain(&self, pod: &PodName) -> Response<Body> {
        (self.explain)(pod).map_or_else(
            || {
                let (namespace, name) = (&pod.namespace, &pod.name);
                not_found(&format!("pod {namespace}/{name} not found"))
            },
            |explanation| json_object(&explanation),
        )
    }

    /// `/`: the list as a page.
    pub(in crate::server) async fn node_page(
        &self,
        query: &OverviewQuery,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        self.wait(query, shutdown).await;
        let explain = self.explain.clone();
        let explain_row = move |namespace: &str, name: &str, uid: &str| {
            explain(&PodName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: Some(uid.to_owned()),
            })
        };
        page::node((self.overview)(), explain_row, self.version, clock::timestamp())
    }

    /// `/pod/<namespace>/<pod>`: one pod as a page.
    pub(in crate::server) async fn pod_page(
        &self,
        pod: &PodName,
        query: &OverviewQuery,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        self.wait(query, shutdown).await;
        // Read before the pod, so that a concurrent change is noticed by the next request.
        let (overview_version, _) = (self.overview_version)();
        let explanation = (self.explain)(pod);
        let name = (pod.namespace.as_str(), pod.name.as_str());
        page::pod(name, explanation.as_ref(), &overview_version, self.version)
    }

    /// Waits until the version differs from the client's, or a timeout.
    async fn wait(&self, query: &OverviewQuery, shutdown: &CancellationToken) {
        let Some(after) = &query.after else { return };
        let changed = async {
            loop {
                let (version, changed) = (self.overview_version)();
                if version != *after {
                    return;
                }
                changed.await;
            }
        };
        let changed = async { drop(tokio::time::timeout(LONG_POLL_TIMEOUT, changed).await) };
        until_shutdown(shutdown, changed).await;
    }
}
