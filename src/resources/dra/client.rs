//! Calls to a DRA driver, each with a timeout.

use super::error::DraError;
use super::metrics::DraMetrics;
use super::proto::{
    Claim, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::base::clock;
use crate::cri::{SmallBuffers, go_code};
use crate::resources::plugin_manager::connection::call_with_timeout;
use http::uri::PathAndQuery;
use prost::Message;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Upstream's `defaultClientCallTimeout`.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

/// A version of the DRA driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraService {
    V1,
    /// The same messages under another service name.
    V1beta1,
}

impl DraService {
    const ALL: [(&'static str, Self); 2] =
        [("v1.DRAPlugin", Self::V1), ("v1beta1.DRAPlugin", Self::V1beta1)];

    /// The first service in `supported` that this kubelet knows.
    ///
    /// # Errors
    /// None is known; texts as upstream's.
    pub(super) fn choose(supported: &[String]) -> Result<Self, String> {
        if supported.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".into());
        }
        let known = |name: &String| {
            let mut all = Self::ALL.into_iter();
            all.find(|(own, _)| own == name).map(|(_, service)| service)
        };
        supported.iter().find_map(known).ok_or_else(|| {
            let own = Self::ALL.map(|(name, _)| name);
            format!(
                "none of services supported by the plugin ({supported:?}) are supported by the kubelet ({own:?})"
            )
        })
    }

    /// The path of a gRPC call: `/SERVICE/CALL`.
    fn path(self, call: &'static str) -> &'static str {
        match (self, call) {
            (Self::V1, PREPARE) => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            (Self::V1, _) => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            (Self::V1beta1, PREPARE) => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"
            }
            (Self::V1beta1, _) => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
            }
        }
    }
}

/// A connected driver.
pub(super) struct DraDriver {
    pub(super) name: String,
    pub(super) service: DraService,
    pub(super) channel: Channel,
    pub(super) metrics: DraMetrics,
}

impl DraDriver {
    /// Calls `NodePrepareResources`. A successful response has every claim exactly once.
    pub(super) async fn prepare(
        self,
        claims: &[Claim],
    ) -> Result<NodePrepareResourcesResponse, DraError> {
        let request = NodePrepareResourcesRequest { claims: claims.to_vec() };
        let response: NodePrepareResourcesResponse = self.call(PREPARE, request).await?;
        let results = response.claims.iter();
        let results = results.map(|(uid, result)| (uid.as_str(), result.error.as_str()));
        check(PREPARE, claims, results)?;
        Ok(response)
    }

    /// Calls `NodeUnprepareResources`.
    pub(super) async fn unprepare(self, claims: &[Claim]) -> Result<(), DraError> {
        let request = NodeUnprepareResourcesRequest { claims: claims.to_vec() };
        let response: NodeUnprepareResourcesResponse = self.call(UNPREPARE, request).await?;
        let results = response.claims.iter();
        let results = results.map(|(uid, result)| (uid.as_str(), result.error.as_str()));
        check(UNPREPARE, claims, results)
    }

    async fn call<Q, R>(self, call: &'static str, request: Q) -> Result<R, DraError>
    where
        Q: Message + Send + Sync + 'static,
        R: Message + Default + Send + 'static,
    {
        let started_at = clock::instant();
        let path = self.service.path(call);
        let mut code = Code::DeadlineExceeded;
        let calling = async {
            let called = unary(self.channel, PathAndQuery::from_static(path), request).await;
            code = called.as_ref().map_or_else(Status::code, |_| Code::Ok);
            called
        };
        let called = call_with_timeout(CALL_TIMEOUT, calling).await;
        let metric = self.metrics.calls.with([&self.name, path, go_code(code)]);
        metric.observe(clock::since(started_at).as_secs_f64());
        called.map_err(|why| DraError::Call { call, why })
    }
}

async fn unary<Q, R>(
    channel: Channel,
    path: PathAndQuery,
    request: Q,
) -> Result<Response<R>, Status>
where
    Q: Message + Send + Sync + 'static,
    R: Message + Default + Send + 'static,
{
    let mut client = Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = SmallBuffers::<Q, R>::default();
    client.unary(Request::new(request), path, codec).await
}

/// Checks that a response has exactly the requested claims, and no error.
fn check<'a>(
    call: &'static str,
    claims: &[Claim],
    results: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<(), DraError> {
    let number = claims.len().saturating_sub(results.len());
    for (uid, error) in results {
        let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
            let uid = uid.to_owned();
            return Err(DraError::UnknownClaim { call, uid });
        };
        if !error.is_empty() {
            return Err(DraError::Failed {
                call,
                claim: claim.name.clone(),
                why: error.to_owned(),
            });
        }
    }
    if number > 0 {
        return Err(DraError::Skipped { call, number });
    }
    Ok(())
}
