//! Metrics and spans of every call of the syncer; names and descriptions are upstream's.

use super::state::PodSyncCall;
use crate::base::metrics::{DEFAULT_BUCKETS, Metrics, metric_set};
use crate::base::otel::{Parent, Span, TraceSpanKind, Tracer, traced};
use crate::base::panics::Panicked;
use crate::base::{clock, error_chain};
use crate::model::{Pod, PodExt, keys};
use crate::pods::pod_sync::syncer::{SyncPodOutcome, SyncPodType};
use jiff::Timestamp;

/// Records the metrics and spans.
pub struct PodSyncObserver {
    tracer: Tracer,
    metrics: WorkerMetrics,
}

metric_set! {
    struct WorkerMetrics {
        durations: Histogram(DEFAULT_BUCKETS)["operation_type"] =
            "kubelet_pod_worker_duration_seconds", "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
        starts: Histogram(DEFAULT_BUCKETS) = "kubelet_pod_worker_start_duration_seconds",
            "Duration in seconds from kubelet seeing a pod to starting a worker.";
    }
}

impl PodSyncObserver {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics, tracer: &Tracer) -> Self {
        Self { tracer: tracer.clone(), metrics: WorkerMetrics::register(metrics) }
    }

    pub(super) async fn observe<F>(&self, call: &PodSyncCall, sync: F) -> F::Output
    where
        F: Future<Output = Result<SyncPodOutcome, Panicked>>,
    {
        let started_at = clock::instant();
        let kind = match call {
            PodSyncCall::Sync(pod, kind) => {
                let waited = since_seen(pod, clock::timestamp());
                if let Some(waited) = waited.filter(|_| *kind == SyncPodType::Create) {
                    self.metrics.starts.observe(waited);
                }
                *kind
            }
            _ => SyncPodType::Kill,
        };
        let done = traced(self.span(call), sync, failure).await;
        let took = clock::since(started_at).as_secs_f64();
        self.metrics.durations.with([kind.as_str()]).observe(took);
        done
    }

    fn span(&self, call: &PodSyncCall) -> Option<Span> {
        let tracer = &self.tracer;
        let mut span =
            tracer.start(TraceSpanKind::Internal, Parent::Current, || call.operation().into())?;
        span.set_attributes(|| {
            let (namespace, name, uid) = call.pod();
            let full = match namespace {
                "" => name.to_owned(),
                namespace => format!("{namespace}/{name}"),
            };
            let kind = match call {
                PodSyncCall::Sync(_, kind) => Some(("k8s.pod.update_type", kind.as_str().into())),
                _ => None,
            };
            let always = [
                ("k8s.pod.uid", uid.to_string().into()),
                ("k8s.pod", full.into()),
                ("k8s.pod.name", name.to_owned().into()),
                ("k8s.namespace.name", namespace.to_owned().into()),
            ];
            always.into_iter().chain(kind)
        });
        Some(span)
    }
}

fn failure(done: &Result<SyncPodOutcome, Panicked>) -> Option<String> {
    match done {
        Ok(done) => Some(error_chain(done.result.as_ref().err()?.as_ref())),
        Err(panicked) => Some(panicked.to_string()),
    }
}

/// Seconds since this kubelet first saw a pod.
fn since_seen(pod: &Pod, now: Timestamp) -> Option<f64> {
    let seen: Timestamp = pod.annotation(keys::CONFIG_SEEN)?.parse().ok()?;
    Some(now.duration_since(seen).as_secs_f64().max(0.0))
}
