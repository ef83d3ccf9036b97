//! The Pods API (alpha, `PodsAPI`): agents on the node list and watch its pods with their statuses.
//!
//! * Owns: the socket `pods-api/pods-api.sock`.
//! * Woken by: requests, and changes of pods and statuses while there are watches.
//! * Must never hold events for a client: a watch compares the pods with those that it sent last, so that a slow client
//!   gets fewer events, and the newest state of each pod.
//! * Upstream: `pkg/kubelet/apis/pods`.

mod encode;
#[cfg(test)]
mod tests;
mod watch;

use super::handlers::pods::PodItem;
use super::known_pods::KnownPods;
use crate::base::{RequestRate, connections, error_chain, spawn_blocking};
use crate::host::unix_socket::listen_in;
use crate::model::{Pod, PodExt as _};
use crate::pods::pod_sync::PodWithStatus;
use anyhow::Context as _;
use encode::PodEncoder;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use v1alpha1::pods_server::{Pods, PodsServer};

/// The generated messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing, dead_code)]
pub mod v1alpha1 {
    include!(concat!(env!("OUT_DIR"), "/pods_api/v1alpha1.rs"));
}

/// The Pods service; cheap to clone.
#[derive(Clone)]
pub struct PodsApi(Arc<PodsApiInner>);

struct PodsApiInner {
    known: KnownPods,
    changes: Changes,
    encoder: PodEncoder,
    rate: RequestRate,
    shutdown: CancellationToken,
}

/// Versions of the stores of pods and statuses.
#[derive(Clone)]
pub(super) struct Changes {
    /// Of the desired pods.
    pub(super) pods: Receiver<u64>,
    /// Of the statuses.
    pub(super) statuses: Receiver<u64>,
}

impl Changes {
    /// Waits for the next change; `None` if there will be none.
    async fn next(&mut self) -> Option<()> {
        let changed = tokio::select! {
            changed = self.pods.changed() => changed,
            changed = self.statuses.changed() => changed,
        };
        changed.ok()
    }
}

impl PodsApi {
    /// Builds the service, which ends with `shutdown`.
    ///
    /// # Errors
    /// The compiled-in protobuf descriptors cannot be decoded.
    pub(super) fn new(
        known: KnownPods,
        changes: Changes,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(PodsApiInner {
            known,
            changes,
            encoder: PodEncoder::new()?,
            rate: RequestRate::default(),
            shutdown,
        })))
    }

    /// Serves on the socket until shutdown. If the socket cannot be created, logs an error and waits for shutdown.
    ///
    /// # Errors
    /// The server fails.
    pub async fn serve(self, socket: PathBuf) -> anyhow::Result<()> {
        let shutdown = self.0.shutdown.clone();
        let bound = spawn_blocking(move || listen_in(&socket)).await?;
        let bound = bound.inspect_err(|error| {
            tracing::error!(err = %error_chain(error.as_ref()), "Failed to create listener for pods API endpoint");
        });
        let Ok((listener, _socket_file)) = bound else {
            shutdown.cancelled().await;
            return Ok(());
        };
        let incoming = connections("pods-api", UnixListener::from_std(listener)?);
        let service = PodsServer::new(self);
        tokio::select! {
            served = Server::builder().serve_with_incoming(service, incoming) => {
                served.context("the pods API")
            }
            () = shutdown.cancelled() => Ok(()),
        }
    }

    /// All known pods, sorted by UID.
    async fn list(&self) -> Vec<PodWithStatus> {
        self.0.known.wait_for_sources().await;
        self.sorted()
    }

    fn sorted(&self) -> Vec<PodWithStatus> {
        let mut pods = self.0.known.list();
        pods.sort_by_key(|(pod, _)| pod.uid());
        pods
    }

    fn encode(&self, pod: PodWithStatus) -> Result<Vec<u8>, Status> {
        let (pod, status) = pod;
        let encoded = serde_json::to_value(PodItem { pod, status })
            .map_err(anyhow::Error::from)
            .and_then(|value| self.0.encoder.pod(&value));
        encoded.map_err(|error| {
            Status::internal(format!("failed to marshal pod: {}", error_chain(error.as_ref())))
        })
    }
}

#[tonic::async_trait]
impl Pods for PodsApi {
    type WatchPodsStream = BoxStream<'static, Result<v1alpha1::WatchPodsEvent, Status>>;

    async fn watch_pods(
        &self,
        _: Request<v1alpha1::WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let watch = watch::PodsWatch::start(self.clone()).await;
        let events = futures::stream::unfold(watch, watch::PodsWatch::next);
        let events = events.take_until(self.0.shutdown.clone().cancelled_owned());
        Ok(Response::new(events.boxed()))
    }

    async fn list_pods(
        &self,
        _: Request<v1alpha1::ListPodsRequest>,
    ) -> Result<Response<v1alpha1::ListPodsResponse>, Status> {
        self.0.rate.admit()?;
        let pods = self.list().await.into_iter().map(|pod| self.encode(pod));
        let pods = pods.collect::<Result<_, _>>()?;
        Ok(Response::new(v1alpha1::ListPodsResponse { pods }))
    }

    async fn get_pod(
        &self,
        request: Request<v1alpha1::GetPodRequest>,
    ) -> Result<Response<v1alpha1::GetPodResponse>, Status> {
        self.0.rate.admit()?;
        let uid = request.into_inner().pod_uid;
        let mut pods = self.list().await.into_iter();
        let pod = pods
            .find(|(pod, _)| pod.uid().as_str() == uid)
            .ok_or_else(|| Status::not_found(format!("pod with UID {uid} not found")))?;
        let pod = self.encode(pod)?;
        Ok(Response::new(v1alpha1::GetPodResponse { pod }))
    }
}

/// The pod with only its name, namespace and UID, as DELETED events have it.
fn identity(pod: &Pod) -> Pod {
    let mut identity = Pod::default();
    identity.metadata.name = pod.metadata.name.clone();
    identity.metadata.namespace = pod.metadata.namespace.clone();
    identity.metadata.uid = pod.metadata.uid.clone();
    identity
}
