//! Exports spans to the collector, and logs failures.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use super::collector::Collector;
use super::otlp::{self, wire};
use super::plan::{ExportRetry, FailureLog, after_failure};
use super::queue::{BATCH, Queue};
use super::span_data::SpanData;
use crate::base::metrics::Metrics;

/// For how long spans are gathered before they are sent, unless a batch is full before.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExportOutcome {
    outcome: &'static str,
}

/// One export at a time: by the task, or by a flush after it.
pub(super) struct Exporter {
    collector: String,
    resource: wire::Resource,
    channel: Channel,
    queue: Arc<Queue>,
    spans: Family<ExportOutcome, Counter>,
    state: Mutex<ExportState>,
}

#[derive(Default)]
struct ExportState {
    /// Being sent, or to be sent again.
    batch: Vec<SpanData>,
    failure_log: FailureLog,
    /// How many dropped spans have been counted.
    dropped: u64,
}

impl Exporter {
    pub(super) fn new(
        collector: &Collector,
        node_name: &str,
        queue: Arc<Queue>,
        metrics: &Metrics,
    ) -> anyhow::Result<Exporter> {
        Ok(Exporter {
            collector: collector.to_string(),
            resource: otlp::resource(node_name),
            channel: otlp::connect(collector)?,
            queue,
            spans: metrics.register(
                "kubelet_trace_spans_total",
                "Number of spans by what became of them: exported, dropped for lack of room, or failed because the collector did not take them",
                Family::default(),
            ),
            state: Mutex::default(),
        })
    }

    /// Sends what ends until shutdown. A batch that is under way then is left to [`Exporter::flush`],
    /// which may send it a second time: a collector knows spans by their numbers.
    pub(super) async fn run(&self, shutdown: CancellationToken) {
        let mut state = self.state.lock().await;
        let work = async {
            loop {
                self.queue.holds(1).await;
                let _ = timeout(GATHER, self.queue.holds(BATCH)).await;
                state.batch = self.queue.take();
                self.deliver(&mut state).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    /// Sends what is left, once. The caller sets the deadline.
    pub(super) async fn flush(&self) {
        let mut state = self.state.lock().await;
        loop {
            if state.batch.is_empty() {
                state.batch = self.queue.take();
            }
            if state.batch.is_empty() {
                return;
            }
            if let Err(status) = self.send(&mut state).await {
                let lost = state.batch.len() + self.queue.len();
                let (collector, lost) = (&self.collector, u64::try_from(lost).unwrap_or(0));
                tracing::warn!(collector, err = %reason(&status), lost, "The last traces could not be sent");
                return;
            }
        }
    }

    /// Sends the batch until it is taken or given up.
    async fn deliver(&self, state: &mut ExportState) {
        let mut again = 0;
        while let Err(status) = self.send(state).await {
            let next = after_failure(status.code(), again);
            let lost = match next {
                ExportRetry::GiveUp => self.lost(state),
                ExportRetry::Again(_) => 0,
            };
            self.print_error(state, lost, &status);
            match next {
                ExportRetry::Again(wait) => sleep(wait).await,
                ExportRetry::GiveUp => return,
            }
            again += 1;
        }
    }

    /// One try; the batch is gone when it was taken.
    async fn send(&self, state: &mut ExportState) -> Result<(), Status> {
        let request = otlp::request(&self.resource, &state.batch);
        let sending = otlp::export(self.channel.clone(), request);
        let answer = timeout(ANSWER, sending).await;
        self.count_dropped(state);
        let rejected = answer.unwrap_or_else(|_| Err(otlp::too_late()))?;
        let number = u64::try_from(state.batch.len()).unwrap_or(0);
        state.batch.clear();
        let Some((rejected, why)) = rejected else {
            self.count("exported", number);
            if let Some(lost) = state.failure_log.working() {
                let collector = &self.collector;
                tracing::info!(collector, lost, "Sending traces recovered");
            }
            return Ok(());
        };
        let rejected = rejected.min(number);
        self.count("exported", number - rejected);
        self.count("failed", rejected);
        self.print_error(state, rejected, &Status::invalid_argument(why));
        Ok(())
    }

    /// Gives the batch up.
    fn lost(&self, state: &mut ExportState) -> u64 {
        let number = u64::try_from(state.batch.len()).unwrap_or(0);
        state.batch.clear();
        self.count("failed", number);
        number
    }

    fn count(&self, outcome: &'static str, number: u64) {
        if number > 0 {
            let counter = self.spans.get_or_create_owned(&ExportOutcome { outcome });
            counter.inc_by(number);
        }
    }

    /// Counts what was dropped since the last export, and reports it as a failure.
    fn count_dropped(&self, state: &mut ExportState) {
        let dropped = self.queue.dropped();
        let new = dropped.saturating_sub(std::mem::replace(&mut state.dropped, dropped));
        if new > 0 {
            self.count("dropped", new);
            self.print_error(
                state,
                new,
                &Status::resource_exhausted("too many spans at once"),
            );
        }
    }

    fn print_error(&self, state: &mut ExportState, lost: u64, status: &Status) {
        if let Some(lost) = state.failure_log.failing(lost, Instant::now()) {
            let collector = &self.collector;
            tracing::warn!(collector, err = %reason(status), lost, "Traces cannot be sent");
        }
    }
}

/// The longest text that is logged of what a collector says, bytes.
const MAX_REASON: usize = 256;

/// What went wrong, in short.
fn reason(status: &Status) -> String {
    let mut text = format!("{}: {}", status.code(), status.message());
    text.truncate(text.floor_char_boundary(MAX_REASON));
    text
}
