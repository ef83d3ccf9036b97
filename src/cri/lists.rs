//! Lists of all sandboxes and containers. A list that fails is an error, never an empty list. A list that is too
//! large for one message is read as a stream, or in parts if the runtime does not support streams.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use prost::Message;
use tonic::{Response, Status};

use super::connection::{finish, unary};
use super::error::CriError;
use super::list_fingerprint::{ListChange, ListFingerprint};
use super::rpc::Rpc;
use super::runtime::RuntimeClient;
use super::v1::{
    Container, ContainerFilter, ContainerState, ContainerStateValue, ContainerStats,
    ListContainerStatsRequest, ListContainersRequest, ListContainersResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxFilter, PodSandboxState,
    PodSandboxStateValue, StreamContainerStatsRequest, StreamContainersRequest,
    StreamPodSandboxesRequest,
};

/// The order in which the container list is read by state. Containers only move from created to running to exited, so
/// one whose state changes between two parts is listed twice, but never missed; unknown is listed before and after
/// running, because containers change between these two states.
const CONTAINER_PARTS: [ContainerState; 5] = [
    ContainerState::ContainerUnknown,
    ContainerState::ContainerCreated,
    ContainerState::ContainerRunning,
    ContainerState::ContainerUnknown,
    ContainerState::ContainerExited,
];

/// The order for sandboxes: one that is not ready never becomes ready again.
const SANDBOX_PARTS: [PodSandboxState; 2] =
    [PodSandboxState::SandboxReady, PodSandboxState::SandboxNotready];

impl RuntimeClient {
    /// Sandboxes that match `filter`; all of them without one.
    pub async fn list_pod_sandboxes(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let streamed = self.sandboxes_streamed(filter.clone());
        if let Some(list) = self.streamed_first(streamed).await {
            return list;
        }
        match self.sandboxes_raw(filter.clone()).await {
            Ok(reply) => decode_sandboxes(reply),
            Err(error) => self.sandboxes_over_limit(filter, error).await,
        }
    }

    /// Containers that match `filter`; all of them without one.
    pub async fn list_containers(
        &self,
        filter: Option<ContainerFilter>,
    ) -> Result<Vec<Container>, CriError> {
        let streamed = self.containers_streamed(filter.clone());
        if let Some(list) = self.streamed_first(streamed).await {
            return list;
        }
        match self.containers_raw(filter.clone()).await {
            Ok(reply) => decode_containers(reply),
            Err(error) => self.containers_over_limit(filter, error).await,
        }
    }

    /// The resource usage of every container according to the runtime.
    pub async fn list_container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        if let Some(list) = self.streamed_first(self.stats_streamed()).await {
            return list;
        }
        let rpc = Rpc::ListContainerStats;
        let request = ListContainerStatsRequest { filter: None };
        match unary(rpc, self.raw().list_container_stats(request)).await {
            Ok(reply) => Ok(reply.stats),
            Err(CriError::Exhausted { .. }) => self.stats_streamed().await,
            Err(error) => Err(error),
        }
    }

    async fn stats_streamed(&self) -> Result<Vec<ContainerStats>, CriError> {
        let request = StreamContainerStatsRequest { filter: None };
        let stream = Box::pin(self.raw().stream_container_stats(request)).await;
        let rpc = Rpc::StreamContainerStats;
        collect(rpc, stream, |part| part.container_stats).await
    }

    /// Reads a list as a stream, if streams are preferred. `None` if it has to be read otherwise: if the runtime does
    /// not support streams, which is recorded, or if a message of the stream is too large.
    async fn streamed_first<T>(
        &self,
        streamed: impl Future<Output = Result<Vec<T>, CriError>>,
    ) -> Option<Result<Vec<T>, CriError>> {
        if !self.prefers_streams().load(Ordering::Relaxed) {
            return None;
        }
        let streamed = Box::pin(streamed).await;
        if let Err(CriError::Unimplemented { .. }) = &streamed {
            tracing::info!(
                "Container runtime does not support streaming lists, falling back to unary list calls"
            );
            self.prefers_streams().store(false, Ordering::Relaxed);
        }
        (!must_list_in_parts(&streamed)).then_some(streamed)
    }

    /// All sandboxes, unless they equal the last list compared with `fingerprint`. An unchanged reply is hashed but not
    /// decoded.
    pub async fn relist_pod_sandboxes(
        &self,
        fingerprint: &mut ListFingerprint<PodSandbox>,
    ) -> Result<ListChange<PodSandbox>, CriError> {
        let list = match self.streamed_first(self.sandboxes_streamed(None)).await {
            Some(list) => list,
            None => match self.sandboxes_raw(None).await {
                Ok(reply) => return fingerprint.compare(reply, decode_sandboxes),
                Err(error) => self.sandboxes_over_limit(None, error).await,
            },
        };
        fingerprint.forget();
        list.map(ListChange::Changed)
    }

    /// All containers, unless they equal the last list compared with `fingerprint`.
    pub async fn relist_containers(
        &self,
        fingerprint: &mut ListFingerprint<Container>,
    ) -> Result<ListChange<Container>, CriError> {
        let list = match self.streamed_first(self.containers_streamed(None)).await {
            Some(list) => list,
            None => match self.containers_raw(None).await {
                Ok(reply) => return fingerprint.compare(reply, decode_containers),
                Err(error) => self.containers_over_limit(None, error).await,
            },
        };
        fingerprint.forget();
        list.map(ListChange::Changed)
    }

    async fn sandboxes_raw(&self, filter: Option<PodSandboxFilter>) -> Result<Bytes, CriError> {
        let request = ListPodSandboxRequest { filter };
        self.connection().raw_reply(Rpc::ListPodSandbox, request).await
    }

    async fn containers_raw(&self, filter: Option<ContainerFilter>) -> Result<Bytes, CriError> {
        let request = ListContainersRequest { filter };
        self.connection().raw_reply(Rpc::ListContainers, request).await
    }

    async fn sandboxes_streamed(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let request = StreamPodSandboxesRequest { filter };
        let stream = self.raw().stream_pod_sandboxes(request).await;
        collect(Rpc::StreamPodSandboxes, stream, |part| part.pod_sandboxes).await
    }

    async fn containers_streamed(
        &self,
        filter: Option<ContainerFilter>,
    ) -> Result<Vec<Container>, CriError> {
        let request = StreamContainersRequest { filter };
        let stream = self.raw().stream_containers(request).await;
        collect(Rpc::StreamContainers, stream, |part| part.containers).await
    }

    async fn sandboxes_over_limit(
        &self,
        filter: Option<PodSandboxFilter>,
        error: CriError,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let filter = &filter;
        let streamed = self.sandboxes_streamed(filter.clone());
        let whole = filter.as_ref().is_none_or(|filter| filter.state.is_none());
        let states = if whole { &SANDBOX_PARTS[..] } else { &[] };
        let read = |state: PodSandboxState| async move {
            let state = Some(PodSandboxStateValue { state: state.into() });
            let part = PodSandboxFilter { state, ..filter.clone().unwrap_or_default() };
            decode_sandboxes(self.sandboxes_raw(Some(part)).await?)
        };
        over_limit(error, streamed, states, read, |sandbox| &sandbox.id).await
    }

    async fn containers_over_limit(
        &self,
        filter: Option<ContainerFilter>,
        error: CriError,
    ) -> Result<Vec<Container>, CriError> {
        let filter = &filter;
        let streamed = self.containers_streamed(filter.clone());
        let whole = filter.as_ref().is_none_or(|filter| filter.state.is_none());
        let states = if whole { &CONTAINER_PARTS[..] } else { &[] };
        let read = |state: ContainerState| async move {
            let state = Some(ContainerStateValue { state: state.into() });
            let part = ContainerFilter { state, ..filter.clone().unwrap_or_default() };
            match self.containers_raw(Some(part.clone())).await {
                Ok(reply) => decode_containers(reply),
                Err(CriError::Exhausted { .. }) => self.containers_by_sandbox(part).await,
                Err(error) => Err(error),
            }
        };
        over_limit(error, streamed, states, read, |container| &container.id).await
    }

    /// The containers of one state, read sandbox by sandbox. The sandboxes are listed first: sandboxes created later
    /// are newer than this list, and the containers of one removed meanwhile are removed with it.
    async fn containers_by_sandbox(
        &self,
        part: ContainerFilter,
    ) -> Result<Vec<Container>, CriError> {
        let sandboxes = Box::pin(self.list_pod_sandboxes(None)).await?;
        let mut all = Vec::new();
        for sandbox in sandboxes {
            let filter = ContainerFilter { pod_sandbox_id: sandbox.id, ..part.clone() };
            all.extend(decode_containers(self.containers_raw(Some(filter)).await?)?);
        }
        Ok(all)
    }
}

fn decode_sandboxes(reply: Bytes) -> Result<Vec<PodSandbox>, CriError> {
    let rpc = Rpc::ListPodSandbox;
    match ListPodSandboxResponse::decode(reply) {
        Ok(reply) => Ok(reply.items),
        Err(error) => Err(CriError::invalid(rpc, error.to_string())),
    }
}

fn decode_containers(reply: Bytes) -> Result<Vec<Container>, CriError> {
    let rpc = Rpc::ListContainers;
    match ListContainersResponse::decode(reply) {
        Ok(reply) => Ok(reply.containers),
        Err(error) => Err(CriError::invalid(rpc, error.to_string())),
    }
}

/// Handles a list whose unary call failed with `error`. If it was too large, reads it as a stream, or else state by
/// state, unless `states` is empty.
async fn over_limit<T, S: Copy, F>(
    error: CriError,
    streamed: impl Future<Output = Result<Vec<T>, CriError>>,
    states: &[S],
    read: impl Fn(S) -> F,
    id: fn(&T) -> &String,
) -> Result<Vec<T>, CriError>
where
    F: Future<Output = Result<Vec<T>, CriError>>,
{
    if !matches!(error, CriError::Exhausted { .. }) {
        return Err(error);
    }
    let streamed = streamed.await;
    if !must_list_in_parts(&streamed) {
        return streamed;
    }
    if states.is_empty() {
        return Err(error);
    }
    let mut all = HashMap::new();
    for state in states {
        let part = read(*state).await?;
        all.extend(part.into_iter().map(|item| (id(&item).clone(), item)));
    }
    Ok(all.into_values().collect())
}

/// Whether a list has to be read in parts although a stream was requested: the runtime does not support streams, or
/// puts too many entries into one message (containerd: 5,000).
fn must_list_in_parts<T>(streamed: &Result<T, CriError>) -> bool {
    matches!(streamed, Err(CriError::Unimplemented { .. } | CriError::Exhausted { .. }))
}

/// Joins all parts of a streamed list; an incomplete stream is an error.
async fn collect<P, T, S>(
    rpc: Rpc,
    stream: Result<Response<S>, Status>,
    entries: fn(P) -> Vec<T>,
) -> Result<Vec<T>, CriError>
where
    S: Stream<Item = Result<P, Status>> + Unpin,
{
    let mut stream = finish(rpc, stream)?;
    let mut all = Vec::new();
    loop {
        match stream.try_next().await {
            Ok(Some(part)) => all.extend(entries(part)),
            Ok(None) => return Ok(all),
            Err(status) => {
                let error = CriError::from_status(rpc, &status);
                if !matches!(error, CriError::Unimplemented { .. }) {
                    let text = format!("{} recv failed", rpc.method());
                    tracing::error!(err = %error, itemsReceived = all.len(), "{text}");
                }
                return Err(error);
            }
        }
    }
}
