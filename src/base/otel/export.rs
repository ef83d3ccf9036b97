//! Exports spans to the collector, and logs failures.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use super::collector::Collector;
use super::otlp::{self, wire};
use super::plan::{ExportRetry, FailureLog, after_failure};
use super::queue::{BATCH, Queue};
use super::span_data::SpanData;
use crate::base::clock;
use crate::base::metrics::{Metrics, metric_set};

/// How long spans are collected before they are exported, unless a batch is full earlier.
const GATHER: Duration = Duration::from_secs(1);
/// Timeout of an export.
const ANSWER: Duration = Duration::from_secs(10);

/// The exporter. Exports never overlap: they are made by the task, or by a flush after it has ended.
pub(super) struct Exporter {
    collector: String,
    resource: wire::Resource,
    channel: Channel,
    queue: Arc<Queue>,
    metrics: ExportMetrics,
    state: Mutex<ExportState>,
}

metric_set! {
    struct ExportMetrics {
        spans: Counter["outcome"] = "kubelet_trace_spans_total",
            "Number of spans by what became of them: exported, dropped for lack of room, or failed because the collector did not take them";
    }
}

#[derive(Default)]
struct ExportState {
    /// Being exported, or to be exported again.
    batch: Vec<SpanData>,
    failure_log: FailureLog,
    /// Number of dropped spans that were already counted as lost.
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
            metrics: ExportMetrics::register(metrics),
            state: Mutex::default(),
        })
    }

    /// Exports spans until shutdown. A batch whose export was interrupted is left for [`Exporter::flush`], which may
    /// send it a second time; collectors identify spans by their IDs.
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

    /// Exports the remaining spans, without retries. The caller sets the timeout.
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

    /// Exports the batch until it was accepted or retries are exhausted.
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

    /// One attempt; removes the batch on success.
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

    /// Drops the batch; returns its number of spans.
    fn lost(&self, state: &mut ExportState) -> u64 {
        let number = u64::try_from(state.batch.len()).unwrap_or(0);
        state.batch.clear();
        self.count("failed", number);
        number
    }

    fn count(&self, outcome: &'static str, number: u64) {
        if number > 0 {
            self.metrics.spans.with([outcome]).inc_by(number);
        }
    }

    /// Counts spans dropped since the last export, and logs them as a failure.
    fn count_dropped(&self, state: &mut ExportState) {
        let dropped = self.queue.dropped();
        let new = dropped.saturating_sub(std::mem::replace(&mut state.dropped, dropped));
        if new > 0 {
            self.count("dropped", new);
            self.print_error(state, new, &Status::resource_exhausted("too many spans at once"));
        }
    }

    fn print_error(&self, state: &mut ExportState, lost: u64, status: &Status) {
        if let Some(lost) = state.failure_log.failing(lost, clock::instant()) {
            let collector = &self.collector;
            tracing::warn!(collector, err = %reason(status), lost, "Traces cannot be sent");
        }
    }
}

/// Maximum length of a collector's message in the log, in bytes.
const MAX_REASON: usize = 256;

/// A short description of the error.
fn reason(status: &Status) -> String {
    let mut text = format!("{}: {}", status.code(), status.message());
    text.truncate(text.floor_char_boundary(MAX_REASON));
    text
}
