//! The metric families about desired pods and orphans, named as upstream names them.

use crate::base::metrics::{AtScrape, Metrics, ScrapeSample, exponential_buckets, metric_set};
use crate::model::{Pod, PodExt};
use crate::pods::pod_sync::reason_label;
use crate::pods::pod_workers::PodWorkers;
use crate::pods::pod_workers::metrics::static_label;
use crate::state::pod_manager::PodManager;
use std::sync::Arc;

metric_set! {
    /// Handles to the metrics.
    pub struct LoopMetrics {
        preemptions: Counter["preemption_signal"] = "kubelet_preemptions",
            "Cumulative number of pod preemptions by preemption resource.";
        /// Running orphaned pods that were stopped.
        pub(super) orphans: Counter = "kubelet_orphaned_runtime_pods_total",
            "Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.";
        /// Pods that start after another one of their UID.
        pub(super) restarts: Counter["static"] = "kubelet_restarted_pods_total",
            "Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)";
        /// Of new pods.
        pub(super) containers: Histogram(exponential_buckets(1.0, 2.0, 5)) =
            "kubelet_containers_per_pod_count", "The number of containers per pod.";
        orphans_found: Gauge = "kubelet_orphan_pod_cleaned_volumes",
            "The number of orphaned Pods with a record that the last periodic sweep found, to be removed.";
        /// Something of a pod, an orphan or not, could not be removed.
        pub(super) incomplete_removals: Gauge = "kubelet_orphan_pod_cleaned_volumes_errors",
            "The number of removals of Pods that were incomplete since the last periodic sweep.";
    }
}

impl LoopMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics, pod_manager: &PodManager, workers: &PodWorkers) -> Self {
        let pods = pod_manager.clone();
        metrics.register(
            "kubelet_desired_pods",
            "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
            AtScrape::gauge(move || by_static(&pods.pods(), |_| true)),
        );
        let (pods, workers) = (pod_manager.clone(), workers.clone());
        metrics.register(
            "kubelet_active_pods",
            "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
            AtScrape::gauge(move || {
                let active = |pod: &Pod| {
                    let ended = pod.is_terminal() || workers.should_pod_be_finished(&pod.uid());
                    !ended
                };
                by_static(&pods.pods(), active)
            }),
        );
        let pods = pod_manager.clone();
        metrics.register(
            "kubelet_mirror_pods",
            "The number of mirror pods the kubelet will try to create (one per admitted static pod)",
            AtScrape::number(move || pods.mirrors().len() as f64),
        );
        let pods = pod_manager.clone();
        metrics.register(
            "kubelet_managed_ephemeral_containers",
            "Current number of ephemeral containers in pods managed by this kubelet.",
            AtScrape::number(move || ephemeral(&pods.pods())),
        );
        let new = Self::register(metrics);
        for is_static in [false, true] {
            new.restarts.with([static_label(is_static)]);
        }
        new
    }

    /// Counts a pod that was preempted to free this resource.
    pub(super) fn preempted(&self, resource: &str) {
        let preemption_signal =
            reason_label(&format!("OutOf{resource}")).strip_prefix("OutOf").unwrap_or_default();
        self.preemptions.with([preemption_signal]).inc();
    }

    /// Housekeeping found records of `orphans` pods, which are removed now. Upstream counts those with a pod directory.
    pub(super) fn orphans_found(&self, orphans: usize) {
        let orphans = i64::try_from(orphans).unwrap_or(i64::MAX);
        self.orphans_found.set(orphans);
        self.incomplete_removals.set(0);
    }
}

/// Both are always shown, as upstream does.
fn by_static(pods: &[Arc<Pod>], counts: impl Fn(&Pod) -> bool) -> Vec<ScrapeSample> {
    let sample = |is_static: bool| {
        let those = pods.iter().filter(|pod| pod.is_static() == is_static);
        let count = those.filter(|pod| counts(pod)).count();
        let labels = vec![("static", static_label(is_static).to_owned())];
        (labels, count as f64)
    };
    [false, true].map(sample).to_vec()
}

fn ephemeral(pods: &[Arc<Pod>]) -> f64 {
    let count = pods.iter().map(|pod| pod.ephemeral_containers().len());
    count.sum::<usize>() as f64
}
