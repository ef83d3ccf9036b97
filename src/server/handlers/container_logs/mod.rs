//! `/containerLogs`: the log of a container.
//!
//! Upstream: `getContainerLogs` of `pkg/kubelet/server` and `GetKubeletContainerLogs` of
//! `pkg/kubelet`.

pub(in crate::server) mod params;

pub use params::LogQuery;

use crate::base::{clock, error_chain};
use crate::model::PodExt as _;
use crate::runtime::logs::{ContainerLogs, LogError, LogStream, SelectedStreams};
use crate::server::http::response::{
    Body, BodyError, LongRunning, TEXT_TYPE, respond, text, until_sent, with_connection_close,
};
use crate::server::known_pods::KnownPods;
use crate::server::streaming::{ContainerName, lookup};
use bytes::Bytes;
use futures::future::ready;
use futures::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Maximum number of concurrent readers, including followers.
const MAX_READERS: usize = 2048;

/// Pause between the last data of a log and the end of the response.
const END_PAUSE: Duration = Duration::from_millis(2);

/// Dependencies of log requests.
pub struct LogDeps {
    /// Reads log files.
    pub logs: ContainerLogs,
    /// All known pods.
    pub known: KnownPods,
    /// `PodLogsQuerySplitStreams`: whether stdout and stderr can be requested separately.
    pub split_streams: bool,
    /// `streamingConnectionIdleTimeout`: a client that does not read for this time is disconnected; zero means no
    /// timeout.
    pub write_timeout: Duration,
}

/// Serves logs; cheap to clone.
#[derive(Clone)]
pub struct LogReaders {
    deps: Arc<LogDeps>,
    slots: Arc<Semaphore>,
}

/// Why a log request is rejected; the texts are upstream's.
#[derive(Debug, thiserror::Error)]
enum LogRefusal {
    #[error(transparent)]
    Invalid(#[from] params::Invalid),
    #[error("pod {0:?} does not exist")]
    NoPod(String),
    #[error("container {0:?} not found in pod {1:?}")]
    NoContainer(String, String),
    #[error(
        "unable to return the given log stream: {0:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet"
    )]
    NoSplit(SelectedStreams),
    #[error("too many logs are being read ({MAX_READERS}); close one and try again")]
    TooManyRequests,
    #[error(transparent)]
    Log(#[from] LogError),
}

impl LogReaders {
    /// Without readers.
    pub fn new(deps: LogDeps) -> Self {
        Self { deps: Arc::new(deps), slots: Arc::new(Semaphore::new(MAX_READERS)) }
    }

    /// Serves the log of a container, as selected by the query.
    pub(in crate::server) async fn serve(
        &self,
        name: &ContainerName,
        query: &LogQuery,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        let (logs, slot) = match self.open(name, query).await {
            Ok(opened) => opened,
            Err(refusal) => return refused(name, &refusal),
        };
        let (pod, container) = (name.pod.clone(), name.container.clone());
        let logs = logs.inspect(move |piece| {
            if let Err(error) = piece {
                tracing::warn!(pod = %pod.log_name(), containerName = container, err = %error_chain(error), "Reading a container log failed");
            }
        });
        let logs = ending_at_shutdown(ending_apart(logs), shutdown.clone());
        let body = StreamBody::new(logs).boxed_unsync();
        let mut response = until_sent(respond(StatusCode::OK, TEXT_TYPE, body), slot);
        let write_timeout = self.deps.write_timeout;
        response.extensions_mut().insert(LongRunning { write_timeout });
        // The connection is no longer counted by the port's limit, so it is not reused.
        with_connection_close(response)
    }

    async fn open(
        &self,
        name: &ContainerName,
        query: &LogQuery,
    ) -> Result<(LogStream, OwnedSemaphorePermit), LogRefusal> {
        let deps = &self.deps;
        let options = query.options(clock::timestamp())?;
        let found = lookup::pod(deps.known.list_when_ready().await, &name.pod);
        let (pod, status) = found.map_err(|_| LogRefusal::NoPod(name.pod.name.clone()))?;
        if !lookup::has_container(&pod, &name.container) {
            let (container, pod) = (&name.container, &name.pod.name);
            return Err(LogRefusal::NoContainer(container.clone(), pod.clone()));
        }
        if options.streams != SelectedStreams::All && !deps.split_streams {
            return Err(LogRefusal::NoSplit(options.streams));
        }
        let slot = self.slots.clone().try_acquire_owned();
        let slot = slot.map_err(|_| LogRefusal::TooManyRequests)?;
        let came_with = pod.status.clone().unwrap_or_default();
        let status = status.as_deref().unwrap_or(&came_with);
        let (uid, container) = (pod.uid(), name.container.as_str());
        let pod = (&uid, pod.name());
        let logs = deps.logs.read(pod, status, container, query.previous, options);
        Ok((logs.await?, slot))
    }
}

/// Sends the end of a log separately from its last data: an API server that forwards a log over WebSocket loses data
/// that it reads together with the end.
fn ending_apart(
    logs: impl Stream<Item = io::Result<Bytes>> + Unpin,
) -> impl Stream<Item = io::Result<Bytes>> + Unpin {
    let pause = stream::once(tokio::time::sleep(END_PAUSE));
    logs.chain(Box::pin(pause.filter_map(|()| ready(None))))
}

/// The log as frames. At shutdown it ends with an error, so that clients do not mistake it for the complete log.
fn ending_at_shutdown(
    mut logs: impl Stream<Item = io::Result<Bytes>> + Unpin,
    shutdown: CancellationToken,
) -> impl Stream<Item = Result<Frame<Bytes>, BodyError>> {
    let mut stopped = Box::pin(shutdown.cancelled_owned());
    stream::poll_fn(move |context| {
        if stopped.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("the kubelet stops".into())));
        }
        let piece = logs.poll_next_unpin(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(Into::into)))
    })
}

fn refused(name: &ContainerName, refusal: &LogRefusal) -> Response<Body> {
    let status = match refusal {
        LogRefusal::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        LogRefusal::NoPod(_) | LogRefusal::NoContainer(..) => StatusCode::NOT_FOUND,
        LogRefusal::NoSplit(_) => StatusCode::BAD_REQUEST,
        LogRefusal::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        LogRefusal::Log(LogError::Unavailable(_) | LogError::Gone(_)) => StatusCode::BAD_REQUEST,
        LogRefusal::Log(LogError::File(_)) => {
            let (pod, container) = (name.pod.log_name(), &name.container);
            tracing::warn!(pod = %pod, containerName = container, err = %error_chain(refusal), "Opening a container log failed");
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    text(status, format!("{}\n", error_chain(refusal)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test(start_paused = true)]
    async fn the_last_piece_is_sent_before_the_end() {
        let pieces = stream::iter([Ok(Bytes::from_static(b"last words"))]);
        let mut logs = ending_apart(pieces);
        let piece = logs.next().now_or_never().flatten();
        assert_eq!(piece.unwrap().unwrap(), "last words");
        assert!(logs.next().now_or_never().is_none(), "there is time to send it");
        assert!(logs.next().await.is_none());
    }
}
