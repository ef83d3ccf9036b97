//! The metric family that counts workers, named as upstream names it.

use super::{PodWorkers, WorkerPhase};
use crate::base::metrics::{AtScrape, Metrics, ScrapeSample};
use crate::model::PodUid;
use std::collections::{BTreeMap, HashSet};

/// Registers the family. `desired` is every pod that a source has.
pub fn register_working_pods(
    workers: &PodWorkers,
    desired: impl Fn() -> HashSet<PodUid> + Send + Sync + 'static,
    metrics: &Metrics,
) {
    let workers = workers.clone();
    metrics.register(
        "kubelet_working_pods",
        "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
        AtScrape::gauge(move || working(&workers, &desired())),
    );
}

fn working(workers: &PodWorkers, desired: &HashSet<PodUid>) -> Vec<ScrapeSample> {
    let kinds = [
        ("desired", ""),
        ("desired", "true"),
        ("orphan", ""),
        ("orphan", "true"),
        ("runtime_only", "unknown"),
    ];
    // All are always shown, as upstream does.
    let mut counts: BTreeMap<(&str, &str, &str), f64> = kinds
        .into_iter()
        .flat_map(|(config, is_static)| {
            let all = ["sync", "terminating", "terminated"];
            all.map(|lifecycle| ((config, lifecycle, is_static), 0.0))
        })
        .collect();
    for pod in workers.worker_pods() {
        let lifecycle = match pod.phase {
            WorkerPhase::WaitingToStart { .. }
            | WorkerPhase::Starting { .. }
            | WorkerPhase::Syncing => "sync",
            WorkerPhase::Terminating { .. } => "terminating",
            WorkerPhase::Terminated { .. } | WorkerPhase::Finished { .. } => "terminated",
        };
        let (config, is_static) = match (pod.has_spec, desired.contains(&pod.uid)) {
            (false, _) => ("runtime_only", "unknown"),
            (true, true) => ("desired", static_label(pod.is_static)),
            (true, false) => ("orphan", static_label(pod.is_static)),
        };
        *counts.entry((config, lifecycle, is_static)).or_default() += 1.0;
    }
    let sample = |((config, lifecycle, is_static), count): ((&str, &str, &str), f64)| {
        let labels = [("config", config), ("lifecycle", lifecycle), ("static", is_static)];
        (labels.map(|(name, value)| (name, value.to_owned())).to_vec(), count)
    };
    counts.into_iter().map(sample).collect()
}

/// The value of upstream's label `static`.
pub(in crate::pods) fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}
