//! The queue of ended spans that are to be exported.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::span_data::SpanData;

/// Maximum number of queued spans (OpenTelemetry's default `OTEL_BSP_MAX_QUEUE_SIZE`). Further ones are dropped.
pub(super) const CAPACITY: usize = 2048;
/// Maximum number of spans per export (OpenTelemetry's default `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
pub(super) const BATCH: usize = 512;

/// A bounded queue; pushing never blocks.
#[derive(Debug, Default)]
pub(super) struct Queue {
    spans: Mutex<VecDeque<SpanData>>,
    dropped: AtomicU64,
    grown: Notify,
}

impl Queue {
    /// Adds a span, or drops it if the queue is full.
    pub(super) fn push(&self, span: SpanData) {
        let length = {
            let mut spans = self.spans.lock();
            if spans.len() >= CAPACITY {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            spans.push_back(span);
            spans.len()
        };
        if length == 1 || length == BATCH {
            self.grown.notify_one();
        }
    }

    /// Waits until the queue has at least `number` spans.
    pub(super) async fn holds(&self, number: usize) {
        while self.len() < number {
            self.grown.notified().await;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.spans.lock().len()
    }

    /// Takes the oldest spans, at most one batch.
    pub(super) fn take(&self) -> Vec<SpanData> {
        let mut spans = self.spans.lock();
        let number = spans.len().min(BATCH);
        spans.drain(..number).collect()
    }

    /// Number of spans dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
