//! The task that owns the event stream.

use std::future::Future;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, Streaming};

use super::containerd::{self, wire::events_client::EventsClient};
use super::exits::Exits;
use super::hints::{EventsMode, HintWriter};
use super::metrics::EventMetrics;
use crate::cri::connection::{MAX_REPLY, finish};
use crate::cri::error::CriError;
use crate::cri::rpc::Rpc;
use crate::cri::runtime::RuntimeClient;
use crate::cri::v1::{ContainerEventResponse, GetEventsRequest};
use crate::model::PodUid;

/// A server answers a stream's request only with its first event, so silence for this long means
/// that the stream stands. A refusal comes at once.
const REFUSED_BY: Duration = Duration::from_millis(300);
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait before reconnecting to a runtime that is away …
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// … and before asking one again that answered with an error, …
const LONGEST_WAIT_REFUSED: Duration = Duration::from_secs(30);
/// … and one that knows no events of any kind: it may have been replaced by a newer version.
const WAIT_WITHOUT_EVENTS: Duration = Duration::from_secs(60);
/// A stream that lasted this long was good: the next failure is a first one.
const GOOD: Duration = Duration::from_secs(10);

/// Listens to the runtime for as long as the process runs.
pub struct EventStream {
    runtime: RuntimeClient,
    hints: HintWriter,
    metrics: EventMetrics,
}

impl EventStream {
    pub(super) fn new(
        runtime: RuntimeClient,
        hints: HintWriter,
        metrics: EventMetrics,
    ) -> EventStream {
        EventStream {
            runtime,
            hints,
            metrics,
        }
    }

    /// Runs until `shutdown`; never fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        shutdown.run_until_cancelled(self.listen()).await;
        Ok(())
    }

    async fn listen(self) {
        let mut source = EventsMode::Cri;
        let mut wait = Duration::ZERO;
        let mut told_of_none = false;
        loop {
            let begin = Instant::now();
            let error = match source {
                EventsMode::Cri => self.cri().await,
                EventsMode::Containerd => self.containerd().await,
                EventsMode::None => {
                    sleep(WAIT_WITHOUT_EVENTS).await;
                    source = EventsMode::Cri;
                    continue;
                }
            };
            self.hints.disconnected();
            if source == EventsMode::Cri {
                self.metrics.lost();
            }
            if let CriError::Unimplemented { .. } = error {
                source = next_source(source);
                // It is asked again every minute, and says so once.
                if source == EventsMode::None && !std::mem::replace(&mut told_of_none, true) {
                    tracing::info!(
                        "the runtime has no container events; changes show by relist only"
                    );
                }
                continue;
            }
            told_of_none = false;
            let cap = match error.is_unavailable() {
                true => LONGEST_WAIT,
                false => LONGEST_WAIT_REFUSED,
            };
            if begin.elapsed() >= GOOD {
                wait = Duration::ZERO;
            }
            if wait.is_zero() {
                tracing::warn!(%error, "runtime event stream lost; reconnecting");
            }
            wait = (wait * 2).clamp(FIRST_WAIT, cap);
            sleep(wait).await;
            // Another version may be listening by now.
            source = EventsMode::Cri;
        }
    }

    async fn cri(&self) -> CriError {
        let rpc = Rpc::GetContainerEvents;
        let mut client = self.runtime.raw();
        let call = client.get_container_events(GetEventsRequest {});
        let mut stream = match self.open(rpc, EventsMode::Cri, call).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        loop {
            match next(rpc, &mut stream).await {
                Ok(event) => self.cri_event(event),
                Err(error) => return error,
            }
        }
    }

    fn cri_event(&self, event: ContainerEventResponse) {
        self.metrics.came(event.created_at, SystemTime::now());
        let metadata = event
            .pod_sandbox_status
            .and_then(|sandbox| sandbox.metadata);
        let pod = metadata
            .map(|metadata| metadata.uid)
            .filter(|uid| !uid.is_empty());
        self.hints
            .container(event.container_id, pod.map(PodUid::from));
    }

    async fn containerd(&self) -> CriError {
        let rpc = Rpc::ContainerdSubscribe;
        let mut client = EventsClient::new(self.runtime.connection().service())
            .max_decoding_message_size(MAX_REPLY);
        let call = client.subscribe(containerd::subscription());
        let mut stream = match self.open(rpc, EventsMode::Containerd, call).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        let mut exits = Exits::new(self.runtime.clone());
        loop {
            tokio::select! {
                event = next(rpc, &mut stream) => match event {
                    Ok(envelope) => {
                        let overflow = containerd::container_of(&envelope).and_then(|id| exits.ended(id));
                        if let Some(id) = overflow {
                            self.hints.container(id, None);
                        }
                    }
                    Err(error) => return error,
                },
                id = exits.shown() => self.hints.container(id, None),
            }
        }
    }

    /// Waits until the stream stands, or is refused.
    async fn open<T>(
        &self,
        rpc: Rpc,
        mode: EventsMode,
        call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Streaming<T>, CriError> {
        let mut call = std::pin::pin!(call);
        let stream = match timeout(REFUSED_BY, call.as_mut()).await {
            Ok(reply) => {
                let stream = finish(rpc, reply)?;
                self.connected(mode);
                stream
            }
            Err(_) => {
                self.connected(mode);
                finish(rpc, call.await)?
            }
        };
        Ok(stream)
    }

    fn connected(&self, mode: EventsMode) {
        tracing::info!(?mode, "listening to events of the runtime");
        if mode == EventsMode::Cri {
            self.metrics.connected();
        }
        self.hints.connected(mode);
    }
}

/// What to listen to when the runtime does not know this.
fn next_source(refused: EventsMode) -> EventsMode {
    match refused {
        EventsMode::Cri => EventsMode::Containerd,
        EventsMode::Containerd | EventsMode::None => EventsMode::None,
    }
}

/// The next event; a stream that ends is an error, since it should never.
async fn next<T>(rpc: Rpc, stream: &mut Streaming<T>) -> Result<T, CriError> {
    match stream.message().await {
        Ok(Some(event)) => Ok(event),
        Ok(None) => Err(CriError::unavailable(rpc, "the stream ended")),
        Err(status) => Err(CriError::from_status(rpc, &status)),
    }
}
