//! OpenTelemetry traces, exported to a collector.
//!
//! * **Owns** the spans that ended and were not sent yet, at most 2,048 of them, and the
//!   connection to the collector.
//! * **Woken by** spans that end, and by nothing while none does.
//! * **Publishes** spans in batches over OTLP; the context of the current work, by which spans find
//!   their parents and the runtime finds its own.
//! * **Must never** block a caller, keep more than its room, log or send what may be a secret, or
//!   connect to anything without the configuration's `tracing` section.
//! * **Answers to** upstream's `k8s.io/component-base/tracing`; `docs/adr/0002-traces.md` says why no
//!   library does this.

mod collector;
mod context;
mod export;
mod otlp;
mod plan;
mod queue;
mod sampling;
mod span;
mod span_data;
#[cfg(test)]
pub(crate) mod tests;

pub use collector::{Collector, CollectorError};
pub use context::{SpanContext, TraceState, headers};
pub use span::{Parent, Span, carried, current, traced};
pub use span_data::{AttributeValue, TraceSpanKind};

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::base::metrics::Metrics;
use export::Exporter;
use queue::Queue;
use sampling::Ratio;

/// How long the last spans may take to be sent when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// What the configuration says of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// Where spans go.
    pub collector: Collector,
    /// Of a million traces that begin here, so many are recorded. A parent from elsewhere decides for
    /// its own.
    pub sampling_rate_per_million: u32,
}

/// Makes spans; cheap to clone. One that is off makes none.
#[derive(Clone, Default)]
pub struct Tracer {
    shared: Option<Arc<TracerInner>>,
}

struct TracerInner {
    ratio: Ratio,
    queue: Arc<Queue>,
    exporter: Exporter,
}

impl Tracer {
    /// No traces: no task, no connection, no spans.
    pub fn off() -> Tracer {
        Tracer::default()
    }

    /// Traces of the node's kubelet. Declares the metric family; needs a running tokio runtime. Nothing
    /// is connected before the first span is to be sent.
    ///
    /// # Errors
    /// The collector's address is invalid.
    pub fn new(
        settings: &TracingSettings,
        node_name: &str,
        metrics: &Metrics,
    ) -> anyhow::Result<Tracer> {
        let queue = Arc::new(Queue::default());
        let exporter = Exporter::new(&settings.collector, node_name, queue.clone(), metrics)?;
        Ok(Tracer {
            shared: Some(Arc::new(TracerInner {
                ratio: Ratio::per_million(settings.sampling_rate_per_million),
                queue,
                exporter,
            })),
        })
    }

    /// Whether there are spans at all.
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// Begins a span, which ends when it is dropped. `None` when traces are off. A span that is not
    /// recorded still has a context, so that its children are not recorded either; its name is
    /// not computed.
    pub fn start(
        &self,
        kind: TraceSpanKind,
        parent: Parent,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Option<Span> {
        let shared = self.shared.as_ref()?;
        Some(Span::start(&shared.queue, shared.ratio, kind, parent, name))
    }

    /// Sends what ends until shutdown. What is left then is for [`Tracer::flush`].
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        match &self.shared {
            Some(shared) => shared.exporter.run(shutdown).await,
            None => shutdown.cancelled().await,
        }
        Ok(())
    }

    /// Sends what is left, within two seconds. Costs nothing when there is nothing.
    pub async fn flush(&self) {
        let Some(shared) = &self.shared else { return };
        if tokio::time::timeout(FLUSH, shared.exporter.flush())
            .await
            .is_err()
        {
            tracing::warn!("The last traces could not be sent in time");
        }
    }
}
