//! The metric families of probes.

use super::PodProbes;
use crate::{
    lifecycle::ProbeOutcome,
    metrics::Metrics,
    model::{PodExt, ProbeKind},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Series {
    probe_type: String,
    result: &'static str,
    container: String,
    pod: String,
    namespace: String,
    pod_uid: String,
}

/// Handles to the families.
pub(super) struct ProberMetrics {
    probes: Family<Series, Counter>,
    /// Runs that have not returned although their hard deadline is over.
    overdue: Gauge,
}

impl ProberMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            probes: metrics.register(
                "prober_probe_total",
                "Cumulative number of a liveness, readiness or startup probe for a container by result",
                Family::default(),
            ),
            overdue: metrics.register(
                "kubelet_prober_overdue_probes",
                "Number of probes that have not returned long after their timeout",
                Gauge::default(),
            ),
        }
    }

    pub(super) fn overdue(&self) -> Gauge {
        self.overdue.clone()
    }
}

/// The series of one probe. They appear with their first sample and go with this value.
pub(super) struct ProbeSeries {
    probes: Family<Series, Counter>,
    counters: [Option<Counter>; 3],
}

impl ProbeSeries {
    pub(super) fn new(metrics: &ProberMetrics) -> Self {
        Self {
            probes: metrics.probes.clone(),
            counters: Default::default(),
        }
    }

    pub(super) fn count(
        &mut self,
        probes: &PodProbes,
        container: &str,
        kind: ProbeKind,
        outcome: &ProbeOutcome,
    ) {
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

    /// Takes the series off the exposition.
    pub(super) fn remove(&mut self, probes: &PodProbes, container: &str, kind: ProbeKind) {
        for (counter, result) in self.counters.iter_mut().zip(RESULTS) {
            if counter.take().is_some() {
                self.probes.remove(&series(probes, container, kind, result));
            }
        }
    }
}

fn series(probes: &PodProbes, container: &str, kind: ProbeKind, result: &'static str) -> Series {
    Series {
        probe_type: kind.to_string(),
        result,
        container: container.to_owned(),
        pod: probes.pod.name().to_owned(),
        namespace: probes.pod.namespace().to_owned(),
        pod_uid: probes.uid.to_string(),
    }
}
