//! Calls to the Node service of one driver.
//!
//! A call waits for a permit, connects if necessary, and returns within [`CSI_TIMEOUT`]. A call whose future is dropped
//! is cancelled here, but the driver may go on with it: its outcome is unknown, as after a deadline.

use super::error::CsiError;
use super::facts::{NodeCapabilities, NodeInfo, VolumeStats};
use super::metrics::CsiMetrics;
use super::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use super::redact::SensitiveValues;
use crate::base::clock::{self, Instant};
use crate::base::{EarlyReleaseSemaphore, ObservedStream, StreamObserver, error_chain};
use crate::cri::SmallBuffers;
use crate::resources::plugin_manager::connection::CONNECT_TIMEOUT;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::{DecodeError, Message};
use std::error::Error;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, io};
use tokio::net::UnixStream;
use tokio::time::{sleep_until, timeout, timeout_at};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstEncoder;

/// Maximum duration of a call, with the wait for a permit and a connection; upstream's `csiTimeout`.
pub const CSI_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of concurrent calls to a driver.
const MAX_CALLS: usize = 16;
/// A call that takes longer releases its permit, so that volumes that hang do not block all others.
const PERMIT_HOLD: Duration = Duration::from_secs(30);
/// Maximum size of a response, and of its headers, which have the error's message.
const MAX_RESPONSE: usize = 1024 * 1024;
const MAX_HEADERS: u32 = 256 * 1024;

const GET_INFO: &str = "/csi.v1.Node/NodeGetInfo";
const GET_CAPABILITIES: &str = "/csi.v1.Node/NodeGetCapabilities";
const STAGE: &str = "/csi.v1.Node/NodeStageVolume";
const UNSTAGE: &str = "/csi.v1.Node/NodeUnstageVolume";
const PUBLISH: &str = "/csi.v1.Node/NodePublishVolume";
const UNPUBLISH: &str = "/csi.v1.Node/NodeUnpublishVolume";
const GET_STATS: &str = "/csi.v1.Node/NodeGetVolumeStats";
const EXPAND: &str = "/csi.v1.Node/NodeExpandVolume";

/// The Node service of a registered driver. Clones share the connection, the limit and the cached capabilities.
#[derive(Clone)]
pub struct NodeClient {
    inner: Arc<NodeClientInner>,
    /// Its calls are for a volume that was translated from that of a former in-tree plugin.
    is_migrated: bool,
}

struct NodeClientInner {
    driver: String,
    endpoint: PathBuf,
    timeout: Duration,
    channel: Channel,
    permits: EarlyReleaseSemaphore,
    /// Number of connections that were lost: a new process may have other capabilities.
    losses: Arc<AtomicU64>,
    /// The capabilities, with the number of losses before they were read.
    capabilities: Mutex<Option<(u64, NodeCapabilities)>>,
    metrics: CsiMetrics,
}

impl fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeClient")
            .field("driver", &self.inner.driver)
            .field("endpoint", &self.inner.endpoint)
            .finish_non_exhaustive()
    }
}

impl NodeClient {
    /// A client of the driver at this socket. It connects at the first call, and again after the connection is lost.
    /// Needs a running tokio runtime.
    pub fn new(driver: &str, endpoint: &Path, metrics: CsiMetrics) -> Self {
        Self::with_timeout(driver, endpoint, metrics, CSI_TIMEOUT)
    }

    pub(super) fn with_timeout(
        driver: &str,
        endpoint: &Path,
        metrics: CsiMetrics,
        timeout: Duration,
    ) -> Self {
        let losses = Arc::<AtomicU64>::default();
        let inner = NodeClientInner {
            driver: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            timeout,
            channel: connect_lazily(endpoint, &losses),
            permits: EarlyReleaseSemaphore::new(MAX_CALLS, PERMIT_HOLD),
            losses,
            capabilities: Mutex::default(),
            metrics,
        };
        Self { inner: Arc::new(inner), is_migrated: false }
    }

    /// The same for the calls of one volume, whose metrics say whether it was translated.
    pub(super) fn of_volume(self, is_migrated: bool) -> Self {
        Self { is_migrated, ..self }
    }

    /// The driver's name.
    pub fn driver(&self) -> &str {
        &self.inner.driver
    }

    /// The driver's socket.
    pub fn endpoint(&self) -> &Path {
        &self.inner.endpoint
    }

    /// How the driver knows this node.
    ///
    /// # Errors
    /// The call fails. The content of the response is not checked.
    pub async fn info(&self) -> Result<NodeInfo, CsiError> {
        let nothing = SensitiveValues::default();
        let response: NodeGetInfoResponse =
            self.call(GET_INFO, NodeGetInfoRequest {}, nothing).await?;
        Ok(response.into())
    }

    /// What the driver can do; cached while the connection lasts.
    ///
    /// # Errors
    /// The call fails.
    pub async fn capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        let losses = self.inner.losses.load(Ordering::SeqCst);
        if let Some((_, known)) = self.inner.capabilities.lock().filter(|(at, _)| *at == losses) {
            return Ok(known);
        }
        let (request, nothing) = (NodeGetCapabilitiesRequest {}, SensitiveValues::default());
        let response: NodeGetCapabilitiesResponse =
            self.call(GET_CAPABILITIES, request, nothing).await?;
        let read = NodeCapabilities::from(response);
        // If the connection was lost meanwhile, the number is outdated and they are read again.
        *self.inner.capabilities.lock() = Some((losses, read));
        Ok(read)
    }

    /// Stages a volume on the node.
    ///
    /// # Errors
    /// See [`CsiError::outcome`] for what may have happened.
    pub async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), CsiError> {
        let hidden = SensitiveValues::of(&request.secrets, Some(&request.volume_context));
        let called = self.call::<_, NodeStageVolumeResponse>(STAGE, request, hidden);
        called.await.map(drop)
    }

    /// Reverts [`Self::stage`].
    ///
    /// # Errors
    /// See [`CsiError::outcome`] for what may have happened.
    pub async fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<(), CsiError> {
        let nothing = SensitiveValues::default();
        let called = self.call::<_, NodeUnstageVolumeResponse>(UNSTAGE, request, nothing);
        called.await.map(drop)
    }

    /// Publishes a volume for a pod.
    ///
    /// # Errors
    /// See [`CsiError::outcome`] for what may have happened.
    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), CsiError> {
        let hidden = SensitiveValues::of(&request.secrets, Some(&request.volume_context));
        let called = self.call::<_, NodePublishVolumeResponse>(PUBLISH, request, hidden);
        called.await.map(drop)
    }

    /// Reverts [`Self::publish`].
    ///
    /// # Errors
    /// See [`CsiError::outcome`] for what may have happened.
    pub async fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<(), CsiError> {
        let nothing = SensitiveValues::default();
        let called = self.call::<_, NodeUnpublishVolumeResponse>(UNPUBLISH, request, nothing);
        called.await.map(drop)
    }

    /// Reads the usage of a volume.
    ///
    /// # Errors
    /// The call fails.
    pub async fn stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats, CsiError> {
        let nothing = SensitiveValues::default();
        let response: NodeGetVolumeStatsResponse = self.call(GET_STATS, request, nothing).await?;
        Ok(response.into())
    }

    /// Expands a volume on the node. Returns the new capacity in bytes, or zero if the driver does not report it.
    ///
    /// # Errors
    /// See [`CsiError::outcome`] for what may have happened.
    pub async fn expand(&self, request: NodeExpandVolumeRequest) -> Result<i64, CsiError> {
        let hidden = SensitiveValues::of(&request.secrets, None);
        let called = self.call::<_, NodeExpandVolumeResponse>(EXPAND, request, hidden);
        called.await.map(|response| response.capacity_bytes)
    }

    async fn call<Q, R>(
        &self,
        method: &'static str,
        request: Q,
        hidden: SensitiveValues,
    ) -> Result<R, CsiError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let begin = clock::instant();
        let deadline = begin + self.inner.timeout;
        let permit = timeout_at(deadline, self.inner.permits.acquire()).await;
        let called = match permit {
            Err(_) => Err(CsiError::unsent(Code::DeadlineExceeded, "context deadline exceeded")),
            Ok(permit) => {
                let calling =
                    permit.run(unary(self.inner.channel.clone(), method, request, deadline));
                tokio::select! {
                    // The channel has the same deadline, but returns another code.
                    biased;
                    () = sleep_until(deadline) => {
                        let late = Status::deadline_exceeded("context deadline exceeded");
                        Err(error_of(&late, &hidden))
                    }
                    called = calling => match called {
                        Ok(Ok(response)) => Ok(response),
                        Ok(Err(error)) => Err(CsiError::InvalidResponse(error.to_string())),
                        Err(status) => Err(error_of(&status, &hidden)),
                    },
                }
            }
        };
        let code = match &called {
            Ok(_) => Some(Code::Ok),
            Err(error) => error.code(),
        };
        let took = clock::since(begin);
        let (metrics, driver) = (&self.inner.metrics, &self.inner.driver);
        metrics.called(driver, method, code, self.is_migrated, took);
        tracing::debug!(driverName = self.inner.driver, method, ?code, ?took, "CSI call ended");
        called
    }
}

/// One call; `Ok(Err(_))` for a response that cannot be decoded.
async fn unary<Q, R>(
    channel: Channel,
    method: &'static str,
    request: Q,
    deadline: Instant,
) -> Result<Result<R, DecodeError>, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(Box::new(error)))?;
    let mut request = Request::new(request);
    // A driver in Go gives up its work by this header.
    request.set_timeout(deadline.saturating_duration_since(clock::instant()));
    let codec = NodeCodec(PhantomData);
    let path = PathAndQuery::from_static(method);
    client.unary(request, path, codec).await.map(tonic::Response::into_inner)
}

/// The error of a call. Only errors that arise on this side have a source, and their codes differ from the codes of
/// Go's library, so all of them become the code that means a lost connection there.
fn error_of(status: &Status, hidden: &SensitiveValues) -> CsiError {
    let Some(source) = status.source() else {
        // The driver returned success with a response that was not read.
        let too_large = status.message().contains("decoded message length too large");
        if status.code() == Code::OutOfRange && too_large {
            let message = format!("it is larger than {MAX_RESPONSE} bytes");
            return CsiError::InvalidResponse(message);
        }
        return CsiError::Status {
            code: status.code(),
            message: hidden.message(status.message()),
            sent: true,
        };
    };
    let mut cause = Some(source);
    while let Some(error) = cause {
        if let Some(failure) = error.downcast_ref::<DialFailure>() {
            return CsiError::unsent(Code::Unavailable, failure.to_string());
        }
        cause = error.source();
    }
    CsiError::Status {
        code: Code::Unavailable,
        message: hidden.message(&format!("error reading from server: {}", error_chain(source))),
        sent: true,
    }
}

/// The socket cannot be opened; the text is from Go's library.
#[derive(Debug, thiserror::Error)]
#[error(
    "connection error: desc = \"transport: Error while dialing: dial unix {}: connect: {error}\"",
    endpoint.display()
)]
struct DialFailure {
    endpoint: PathBuf,
    error: io::Error,
}

/// Counts the loss of a connection when it is dropped with the stream.
struct LossCounter(Arc<AtomicU64>);

impl StreamObserver for LossCounter {}

impl Drop for LossCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn connect_lazily(endpoint: &Path, losses: &Arc<AtomicU64>) -> Channel {
    let (path, losses) = (endpoint.to_owned(), losses.clone());
    let connector = tower::service_fn(move |_| {
        let (endpoint, losses) = (path.clone(), losses.clone());
        async move {
            let connecting = timeout(CONNECT_TIMEOUT, UnixStream::connect(&endpoint));
            let connected = match connecting.await {
                Ok(connected) => connected,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            match connected {
                Ok(stream) => {
                    let stream = ObservedStream::new(stream, LossCounter(losses));
                    Ok(TokioIo::new(stream))
                }
                Err(error) => Err(DialFailure { endpoint, error }),
            }
        }
    });
    // The authority is not used on a Unix socket; drivers expect "localhost".
    Endpoint::from_static("http://localhost")
        .http2_max_header_list_size(MAX_HEADERS)
        .connect_with_connector_lazy(connector)
}

/// Protobuf with small buffers. A response that cannot be decoded is not an error of the call: the driver has returned
/// success.
struct NodeCodec<Q, R>(PhantomData<(Q, R)>);

impl<Q, R> Codec for NodeCodec<Q, R>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    type Encode = Q;
    type Decode = Result<R, DecodeError>;
    type Encoder = ProstEncoder<Q>;
    type Decoder = NodeDecoder<R>;

    fn encoder(&mut self) -> ProstEncoder<Q> {
        SmallBuffers::<Q, R>::default().encoder()
    }

    fn decoder(&mut self) -> NodeDecoder<R> {
        NodeDecoder(PhantomData)
    }
}

struct NodeDecoder<R>(PhantomData<R>);

impl<R: Message + Default> Decoder for NodeDecoder<R> {
    type Item = Result<R, DecodeError>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        Ok(Some(R::decode(buffer)))
    }
}
