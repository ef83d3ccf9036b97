//! OpenTelemetry traces, exported to a collector.
//!
//! * **Owns** the spans that have ended and were not exported yet, at most 2,048, and the connection to the
//!   collector.
//! * **Woken by** ended spans only.
//! * **Publishes** spans in batches over OTLP; the context of the current operation, which is the parent of new spans
//!   and is propagated to the runtime.
//! * **Must never** block a caller, exceed its queue's size, log or export what may be a secret, or connect anywhere
//!   without the configuration's `tracing` section.
//! * Upstream: `k8s.io/component-base/tracing`; `docs/adr/0002-traces.md` explains why no library is
//!   used.

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
pub use span::{Parent, Span, current, in_current_context, traced};
pub use span_data::{AttributeValue, TraceSpanKind};

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::base::metrics::Metrics;
use export::Exporter;
use queue::Queue;
use sampling::Ratio;

/// Timeout of the last export when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The `tracing` section of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// The collector.
    pub collector: Collector,
    /// Number of recorded traces per million that start in this process. For traces with a remote parent, the
    /// parent's sampled flag decides.
    pub sampling_rate_per_million: u32,
}

/// Creates spans; cheap to clone. A disabled tracer creates none.
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
    /// A disabled tracer: no task, no connection, no spans.
    pub fn disabled() -> Tracer {
        Tracer::default()
    }

    /// A tracer for this node's kubelet. Registers its metrics; must be called within a tokio runtime. Connects when
    /// the first spans are exported.
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

    /// Whether traces are enabled.
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// Starts a span, which ends when it is dropped. `None` if traces are disabled. An unsampled span has a context
    /// too, so that its children are not sampled either; its name is not computed.
    pub fn start(
        &self,
        kind: TraceSpanKind,
        parent: Parent,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Option<Span> {
        let shared = self.shared.as_ref()?;
        Some(Span::start(&shared.queue, shared.ratio, kind, parent, name))
    }

    /// Exports spans until shutdown. [`Tracer::flush`] exports the remaining ones.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        match &self.shared {
            Some(shared) => shared.exporter.run(shutdown).await,
            None => shutdown.cancelled().await,
        }
        Ok(())
    }

    /// Exports the remaining spans, with a timeout of two seconds. Returns immediately if there are none.
    pub async fn flush(&self) {
        let Some(shared) = &self.shared else { return };
        if tokio::time::timeout(FLUSH, shared.exporter.flush()).await.is_err() {
            tracing::warn!("The last traces could not be sent in time");
        }
    }
}
