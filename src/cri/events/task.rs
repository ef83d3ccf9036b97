//! The task that owns the event stream.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::{Response, Status, Streaming};

use super::changes::{ChangeWriter, RuntimeEventSource};
use super::containerd;
use super::containerd::wire::Envelope;
use super::containerd::wire::events_client::EventsClient;
use super::exits::PendingExits;
use super::metrics::EventMetrics;
use super::retry::{EventsEnded, EventsReport, ReconnectState};
use crate::base::clock;
use crate::cri::connection::{MAX_REPLY, finish};
use crate::cri::error::CriError;
use crate::cri::rpc::Rpc;
use crate::cri::runtime::RuntimeClient;
use crate::cri::v1::{ContainerEventResponse, GetEventsRequest};
use crate::model::PodUid;

/// The server sends response headers only with its first event, so a stream counts as connected if no error arrives
/// within this time. An error is returned immediately, and so is the end of a stream without events.
const ASSUME_CONNECTED_AFTER: Duration = Duration::from_millis(300);

/// The event stream of the runtime, for as long as the process runs.
pub struct EventStream {
    pub(super) runtime: RuntimeClient,
    pub(super) changes: ChangeWriter,
    pub(super) metrics: EventMetrics,
}

impl EventStream {
    /// Runs without an end.
    pub async fn run(self) {
        let mut reconnect = ReconnectState::new();
        loop {
            let started_at = clock::instant();
            let source = self.source(reconnect.source()).await;
            let Err(ended) = match source {
                RuntimeEventSource::Containerd => self.containerd().await,
                RuntimeEventSource::Cri | RuntimeEventSource::None => self.cri().await,
            };
            self.changes.disconnected();
            if source == RuntimeEventSource::Cri {
                self.metrics.errors.inc();
            }
            let next = reconnect.after(&ended, clock::since(started_at));
            match next.report {
                Some(EventsReport::Lost) => {
                    tracing::warn!(err = %ended, "Lost the runtime's event stream, reconnecting");
                }
                Some(EventsReport::NoEvents) => tracing::info!(
                    err = %ended,
                    "The container runtime sends no events, relying on relists"
                ),
                None => {}
            }
            sleep(next.wait).await;
        }
    }

    /// The source to connect to. containerd 1.7 delivers each CRI event to only one of its subscribers, which may be
    /// one that has disconnected, so its own events are used, which all subscribers receive.
    async fn source(&self, planned: RuntimeEventSource) -> RuntimeEventSource {
        if planned == RuntimeEventSource::Cri
            && let Ok(version) = self.runtime.version().await
            && containerd::delivers_events_to_one_subscriber(&version)
        {
            return RuntimeEventSource::Containerd;
        }
        planned
    }

    async fn cri(&self) -> Result<Infallible, EventsEnded> {
        let rpc = Rpc::GetContainerEvents;
        let mut client = self.runtime.raw();
        let call = client.get_container_events(GetEventsRequest {});
        let (first, mut stream) = self.open(rpc, RuntimeEventSource::Cri, call).await?;
        self.cri_event(first);
        loop {
            self.cri_event(next(rpc, &mut stream).await?);
        }
    }

    fn cri_event(&self, event: ContainerEventResponse) {
        self.metrics.received(event.created_at, clock::system_time());
        let metadata = event.pod_sandbox_status.and_then(|sandbox| sandbox.metadata);
        let pod = metadata.map(|metadata| metadata.uid).filter(|uid| !uid.is_empty());
        self.changes.mark(event.container_id, pod.map(PodUid::from));
    }

    async fn containerd(&self) -> Result<Infallible, EventsEnded> {
        let rpc = Rpc::Subscribe;
        let mut client = EventsClient::new(self.runtime.connection().service())
            .max_decoding_message_size(MAX_REPLY);
        let call = client.subscribe(containerd::subscription());
        let (first, mut stream) = self.open(rpc, RuntimeEventSource::Containerd, call).await?;
        let mut exits = PendingExits::new(self.runtime.clone());
        self.containerd_event(&first, &mut exits);
        loop {
            tokio::select! {
                event = next(rpc, &mut stream) => self.containerd_event(&event?, &mut exits),
                id = exits.confirmed() => self.changes.mark(id, None),
            }
        }
    }

    fn containerd_event(&self, envelope: &Envelope, exits: &mut PendingExits) {
        let overflow = containerd::container_of(envelope).and_then(|id| exits.add(id));
        if let Some(id) = overflow {
            self.changes.mark(id, None);
        }
    }

    /// Waits for the first event. The stream may count as connected long before that, see [`ASSUME_CONNECTED_AFTER`].
    async fn open<T>(
        &self,
        rpc: Rpc,
        source: RuntimeEventSource,
        call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<(T, Streaming<T>), EventsEnded> {
        let mut first = pin!(async {
            let mut stream = finish(rpc, call.await)?;
            match message(rpc, &mut stream).await? {
                Some(event) => Ok((event, stream)),
                None => Err(EventsEnded::Closed { any_event: false }),
            }
        });
        match timeout(ASSUME_CONNECTED_AFTER, first.as_mut()).await {
            Ok(first) => {
                let first = first?;
                self.connected(source);
                Ok(first)
            }
            Err(_) => {
                self.connected(source);
                first.await
            }
        }
    }

    fn connected(&self, source: RuntimeEventSource) {
        tracing::info!(?source, "Receiving events of the runtime");
        if source == RuntimeEventSource::Cri {
            self.metrics.connections.inc();
        }
        self.changes.connected(source);
    }
}

/// The next event after the first one.
async fn next<T>(rpc: Rpc, stream: &mut Streaming<T>) -> Result<T, EventsEnded> {
    let event = message(rpc, stream).await?;
    event.ok_or(EventsEnded::Closed { any_event: true })
}

/// The next event; `None` when the runtime closed the stream.
async fn message<T>(rpc: Rpc, stream: &mut Streaming<T>) -> Result<Option<T>, CriError> {
    let reply = stream.message().await;
    reply.map_err(|status| CriError::from_status(rpc, &status))
}
