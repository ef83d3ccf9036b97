//! Sends events of pods and the node to the API server.
//!
//! * Owns: the queue of pending events; the task `node.events`.
//! * Woken by: the outbox of the event recorder, which it has from the start of the kubelet on: events of the start wait
//!   there until the task runs.
//! * Publishes: core/v1 Events of the component `kubelet`.
//! * Must never block callers that record events, or grow without bound while the API server is unavailable.
//! * Upstream: `client-go/tools/record`.

mod correlate;
mod lru;
mod pending;
#[cfg(test)]
mod tests;

use crate::apiserver::{ApiError, ApiServer, ResourcePath, StrategicPatch};
use crate::base::clock::{self, Instant};
use crate::base::metrics::{Counter, MetricVec, Metrics};
use crate::base::{TokenBucket, error_chain};
use crate::state::events::{EventRecord, EventRecorder, OnOverflow, Outbox};
use correlate::{Correlator, EventKey};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pending::{FIRST_DELAY, MAX_DELAY, PendingEvent, PendingEvents, delay_after};
use std::time::Duration;
use tokio::time::sleep_until;

/// Capacity of the outbox, and of the queue of pending events.
const CAPACITY: usize = 1000;

/// Events that were not sent, by reason.
type Dropped = MetricVec<Counter, 1>;

/// `eventRecordQPS` and `eventBurst`.
#[derive(Clone, Copy, Debug)]
pub struct EventRate {
    /// Average events per second; zero for no limit.
    pub qps: u32,
    /// Burst.
    pub burst: u32,
}

/// Sends events to the API server.
pub struct EventSink {
    api: ApiServer,
    outbox: Outbox,
    node_name: String,
    rate: TokenBucket,
    correlator: Correlator,
    pending: PendingEvents,
    dropped: Dropped,
    delay: Option<Duration>,
    next_try: Instant,
}

/// Why events are not sent.
const DROP_REASONS: [&str; 6] =
    ["namespace_terminating", "queue_full", "rate", "rejected", "retries", "too_many"];

/// The events that wait for the sink. Opened before the first event is recorded, so that none is missed.
pub struct EventQueue {
    outbox: Outbox,
    dropped: Dropped,
}

impl EventQueue {
    /// Queues what is recorded from now on; `None` if another queue does already.
    pub fn open(recorder: &EventRecorder, metrics: &Metrics) -> Option<Self> {
        let family = [
            "kubelet_events_dropped_total",
            "Total number of events that were not sent to the API server, by reason",
        ];
        let dropped: Dropped = MetricVec::register(metrics, family, &["reason"], Counter::default);
        // From the start on: what appears with its first event has no increase for Prometheus.
        for reason in DROP_REASONS {
            dropped.with([reason]);
        }
        let counted = dropped.clone();
        let on_overflow: OnOverflow = Box::new(move || count(&counted, "queue_full"));
        let outbox = recorder.outbox(CAPACITY, on_overflow)?;
        Some(Self { outbox, dropped })
    }
}

/// Whether the API server is unavailable or rejects this kubelet, so that the next event would fail as well.
fn is_api_unavailable(error: &ApiError) -> bool {
    error.is_absence() || error.is_unauthorized()
}

fn count(dropped: &Dropped, reason: &str) {
    dropped.with([reason]).inc();
}

impl EventSink {
    /// Builds the sink for this queue.
    pub fn new(api: ApiServer, queue: EventQueue, node_name: String, rate: EventRate) -> Self {
        Self {
            api,
            outbox: queue.outbox,
            node_name,
            rate: TokenBucket::new(f64::from(rate.qps), rate.burst),
            correlator: Correlator::new(),
            pending: PendingEvents::new(CAPACITY),
            dropped: queue.dropped,
            delay: None,
            next_try: clock::instant(),
        }
    }

    /// Sends without an end.
    pub async fn run(mut self) {
        loop {
            let due = self.pending.next_due();
            let next_try = due.map_or(self.next_try, |due| due.max(self.next_try));
            tokio::select! {
                biased;
                Some(occurrence) = self.outbox.recv() => {
                    let now = clock::instant();
                    match self.correlator.observe(occurrence, now) {
                        Some((key, record)) => {
                            if self.pending.put(key, record, now) {
                                count(&self.dropped, "too_many");
                            }
                        }
                        None => count(&self.dropped, "rate"),
                    }
                }
                () = sleep_until(next_try), if due.is_some() => self.send_next().await,
            }
        }
    }

    /// Sends the oldest event that is due. New occurrences wait in the outbox meanwhile.
    async fn send_next(&mut self) {
        let Some((key, mut event)) = self.pending.take(clock::instant()) else {
            return;
        };
        let sent = self.send(&key, &event.record).await;
        let is_absent = sent.as_ref().err().is_some_and(is_api_unavailable);
        // While the API server is unavailable, failures do not count as attempts of an event.
        let is_counted = !(is_absent && self.delay.is_some());
        self.schedule(is_absent);
        match sent {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                event.tries += u32::from(is_counted);
                self.retry(key, event, &error);
            }
            // Events of the pods of a namespace that is deleted, as upstream at a higher verbosity.
            Err(error) if error.is_namespace_terminating() => {
                let (object, reason) = (event.record.object.name, event.record.reason);
                tracing::debug!(object, reason = %reason, err = %error_chain(&error), "Server rejected event (will not retry!)");
                count(&self.dropped, "namespace_terminating");
            }
            Err(error) => {
                let (object, reason) = (event.record.object.name, event.record.reason);
                tracing::warn!(object, reason = %reason, err = %error_chain(&error), "Server rejected event (will not retry!)");
                count(&self.dropped, "rejected");
            }
        }
    }

    /// Sets the time of the next request.
    fn schedule(&mut self, is_absent: bool) {
        let last = self.delay.take();
        let wait = if is_absent {
            let delay = last.map_or(FIRST_DELAY, |last| (last * 2).min(MAX_DELAY));
            self.delay = Some(delay);
            delay.mul_f64(1.0 + 0.5 * fastrand::f64())
        } else {
            let wait = self.rate.take(clock::instant(), Duration::MAX);
            wait.unwrap_or_default()
        };
        self.next_try = clock::instant() + wait;
    }

    fn retry(&mut self, key: EventKey, event: PendingEvent, error: &ApiError) {
        let (object, reason) = (&event.record.object.name, &event.record.reason);
        let Some(delay) = delay_after(event.tries) else {
            tracing::error!(object, reason = %reason, err = %error_chain(error), "Unable to write event (retry limit exceeded!)");
            count(&self.dropped, "retries");
            return;
        };
        if event.tries == 1 && !self.api.is_reported(error) {
            tracing::error!(object, reason = %reason, err = %error_chain(error), "Unable to write event (may retry after sleeping)");
        }
        self.pending.put_back(key, event, clock::instant() + delay);
    }

    async fn send(&mut self, key: &EventKey, record: &EventRecord) -> Result<(), ApiError> {
        let namespace = record.object.event_namespace();
        if let Some(name) = self.correlator.name(key) {
            match self.count_in(namespace, &name, record).await {
                // The Event object has expired: the API server keeps events for an hour.
                Err(error) if error.is_not_found() => {}
                sent => return sent,
            }
        }
        let event = record.to_api(&self.node_name);
        let name = event.metadata.name.clone().unwrap_or_default();
        let sent = match self.api.create(Some(namespace), &event).await {
            // Created by an earlier attempt whose response was lost.
            Err(error) if error.is_already_exists() => {
                self.count_in(namespace, &name, record).await
            }
            created => created.map(drop),
        };
        if sent.is_ok() {
            self.correlator.set_name(key, name);
        }
        sent
    }

    async fn count_in(
        &self,
        namespace: &str,
        name: &str,
        record: &EventRecord,
    ) -> Result<(), ApiError> {
        let at = ResourcePath::namespaced(namespace, name);
        let patch = StrategicPatch(counted(record));
        self.api.patch::<Event>(at, None, &patch).await.map(drop)
    }
}

fn counted(record: &EventRecord) -> serde_json::Value {
    serde_json::json!({
        "count": record.count,
        "lastTimestamp": Time(record.last_seen),
        "message": record.message,
    })
}
