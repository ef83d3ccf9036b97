//! The metric families of probes.

use super::PodProbes;
use crate::base::metrics::{Counter, DEFAULT_BUCKETS, Histogram, metric_set};
use crate::model::{PodExt, ProbeKind};
use crate::runtime::handlers::ProbeOutcome;
use std::time::Duration;

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

metric_set! {
    /// The metrics that are served at `/metrics/probes`; clones share them.
    pub(super) struct ProbeMetrics {
        durations: Histogram(DEFAULT_BUCKETS)["probe_type", "container", "pod", "namespace"] =
            "prober_probe_duration_seconds", "Duration in seconds for a probe response.";
        probes: Counter["probe_type", "result", "container", "pod", "namespace", "pod_uid"] =
            "prober_probe_total", "Cumulative number of a liveness, readiness or startup probe for a container by result";
    }
}

metric_set! {
    /// The metrics of the prober itself.
    pub(super) struct ProberMetrics {
        /// Runs that have not returned although their hard deadline is over.
        pub(super) overdue: Gauge = "kubelet_prober_overdue_probes",
            "Number of probes that have not returned long after their timeout";
    }
}

/// The series of one probe. Created with the first sample and removed by [`Self::remove`].
pub(super) struct ProbeSeries {
    metrics: ProbeMetrics,
    counters: [Option<Counter>; 3],
    duration: Option<Histogram>,
}

impl ProbeSeries {
    pub(super) fn new(metrics: &ProbeMetrics) -> Self {
        Self { metrics: metrics.clone(), counters: Default::default(), duration: None }
    }

    pub(super) fn count(
        &mut self,
        probes: &PodProbes,
        container: &str,
        kind: ProbeKind,
        outcome: &ProbeOutcome,
        took: Duration,
    ) {
        // As upstream, failed runs are not measured.
        if !matches!(outcome, ProbeOutcome::Failure { .. }) {
            let duration = || self.metrics.durations.with(duration_labels(probes, container, kind));
            self.duration.get_or_insert_with(duration).observe(took.as_secs_f64());
        }
        let [successful, failed, unknown] = &mut self.counters;
        let (counter, result) = match outcome {
            ProbeOutcome::Success { .. } | ProbeOutcome::Warning { .. } => {
                (successful, "successful")
            }
            ProbeOutcome::Failure { .. } => (failed, "failed"),
            ProbeOutcome::Unknown { .. } => (unknown, "unknown"),
        };
        let new = || self.metrics.probes.with(series(probes, container, kind, result));
        counter.get_or_insert_with(new).inc();
    }

    /// Removes the series from the registry.
    pub(super) fn remove(&mut self, probes: &PodProbes, container: &str, kind: ProbeKind) {
        for (counter, result) in self.counters.iter_mut().zip(RESULTS) {
            if counter.take().is_some() {
                self.metrics.probes.remove(series(probes, container, kind, result));
            }
        }
        if self.duration.take().is_some() {
            self.metrics.durations.remove(duration_labels(probes, container, kind));
        }
    }
}

/// Values in the order of the labels.
fn duration_labels<'a>(probes: &'a PodProbes, container: &'a str, kind: ProbeKind) -> [&'a str; 4] {
    [kind.as_str(), container, probes.pod.name(), probes.pod.namespace()]
}

/// Values in the order of the labels.
fn series<'a>(
    probes: &'a PodProbes,
    container: &'a str,
    kind: ProbeKind,
    result: &'static str,
) -> [&'a str; 6] {
    let [kind, container, pod, namespace] = duration_labels(probes, container, kind);
    [kind, result, container, pod, namespace, probes.uid.as_str()]
}
