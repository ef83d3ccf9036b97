//! Spans that ended and wait to be sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::span_data::SpanData;

/// As many spans are kept at most (upstream's `OTEL_BSP_MAX_QUEUE_SIZE`). Newer ones are dropped.
pub(super) const CAPACITY: usize = 2048;
/// As many are sent at once (upstream's `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
pub(super) const BATCH: usize = 512;

/// Never blocks.
#[derive(Debug, Default)]
pub(super) struct Queue {
    spans: Mutex<VecDeque<SpanData>>,
    dropped: AtomicU64,
    grown: Notify,
}

impl Queue {
    /// Takes a span if there is room.
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

    /// Waits until there are as many: one, or a whole batch.
    pub(super) async fn holds(&self, number: usize) {
        while self.len() < number {
            self.grown.notified().await;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.spans.lock().len()
    }

    /// Takes the oldest, at most a batch of them.
    pub(super) fn take(&self) -> Vec<SpanData> {
        let mut spans = self.spans.lock();
        let number = spans.len().min(BATCH);
        spans.drain(..number).collect()
    }

    /// How many were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
