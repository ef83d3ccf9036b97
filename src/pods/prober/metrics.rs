//! The metric families of probes.

use super::PodProbes;
use crate::{
    base::metrics::{DEFAULT_BUCKETS, Metrics},
    model::{PodExt, ProbeKind},
    runtime::handlers::ProbeOutcome,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use std::time::Duration;

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeLabels {
    probe_type: String,
    result: &'static str,
    container: String,
    pod: String,
    namespace: String,
    pod_uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    probe_type: String,
    container: String,
    pod: String,
    namespace: String,
}

type Durations = Family<DurationLabels, Histogram, fn() -> Histogram>;

fn histogram() -> Histogram {
    Histogram::new(DEFAULT_BUCKETS)
}

pub(super) struct ProberMetrics {
    probes: Family<ProbeLabels, Counter>,
    durations: Durations,
    /// Runs that have not returned although their hard deadline is over.
    overdue: Gauge,
}

impl ProberMetrics {
    /// Registers the probe metrics in `probes`, which is served at a separate path, and the others in `metrics`.
    pub(super) fn new(metrics: &Metrics, probes: &Metrics) -> Self {
        Self {
            durations: probes.register(
                "prober_probe_duration_seconds",
                "Duration in seconds for a probe response.",
                Family::new_with_constructor(histogram as fn() -> Histogram),
            ),
            probes: probes.register(
                "prober_probe_total",
                "Cumulative number of a liveness, readiness or startup probe for a container by result",
                Family::default(),
            ),
            overdue: metrics.register_default(
                "kubelet_prober_overdue_probes",
                "Number of probes that have not returned long after their timeout",
            ),
        }
    }

    pub(super) fn overdue(&self) -> Gauge {
        self.overdue.clone()
    }
}

/// The series of one probe. Created with the first sample and removed by [`Self::remove`].
pub(super) struct ProbeSeries {
    probes: Family<ProbeLabels, Counter>,
    counters: [Option<Counter>; 3],
    durations: Durations,
    duration: Option<Histogram>,
}

impl ProbeSeries {
    pub(super) fn new(metrics: &ProberMetrics) -> Self {
        Self {
            probes: metrics.probes.clone(),
            counters: Default::default(),
            durations: metrics.durations.clone(),
            duration: None,
        }
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
            let durations = &self.durations;
            let duration = self.duration.get_or_insert_with(|| {
                durations.get_or_create_owned(&duration_labels(probes, container, kind))
            });
            duration.observe(took.as_secs_f64());
        }
        let [successful, failed, unknown] = &mut self.counters;
        let (counter, result) = match outcome {
            ProbeOutcome::Success { .. } | ProbeOutcome::Warning { .. } => {
                (successful, "successful")
            }
            ProbeOutcome::Failure { .. } => (failed, "failed"),
            ProbeOutcome::Unknown { .. } => (unknown, "unknown"),
        };
        counter
            .get_or_insert_with(|| {
                let series = series(probes, container, kind, result);
                self.probes.get_or_create_owned(&series)
            })
            .inc();
    }

    /// Removes the series from the registry.
    pub(super) fn remove(&mut self, probes: &PodProbes, container: &str, kind: ProbeKind) {
        for (counter, result) in self.counters.iter_mut().zip(RESULTS) {
            if counter.take().is_some() {
                self.probes.remove(&series(probes, container, kind, result));
            }
        }
        if self.duration.take().is_some() {
            self.durations.remove(&duration_labels(probes, container, kind));
        }
    }
}

fn duration_labels(probes: &PodProbes, container: &str, kind: ProbeKind) -> DurationLabels {
    DurationLabels {
        probe_type: kind.to_string(),
        container: container.to_owned(),
        pod: probes.pod.name().to_owned(),
        namespace: probes.pod.namespace().to_owned(),
    }
}

fn series(
    probes: &PodProbes,
    container: &str,
    kind: ProbeKind,
    result: &'static str,
) -> ProbeLabels {
    ProbeLabels {
        probe_type: kind.to_string(),
        result,
        container: container.to_owned(),
        pod: probes.pod.name().to_owned(),
        namespace: probes.pod.namespace().to_owned(),
        pod_uid: probes.uid.to_string(),
    }
}
