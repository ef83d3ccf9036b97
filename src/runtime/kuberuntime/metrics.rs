//! The metric families of starting pods and containers, named as upstream names them.

use super::generate::user_namespaces;
use super::sync::{StartContainerError, StartFailure};
use crate::base::metrics::{DEFAULT_BUCKETS, metric_set};
use crate::model::{Pod, PodExt, reasons};
use k8s_openapi::api::core::v1::Container;
use std::time::Duration;

/// What runtimes write into the error of a container whose image volume cannot be mounted.
const IMAGE_VOLUME_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

metric_set! {
    /// Handles to the metrics. Clones share them.
    pub(super) struct StartMetrics {
        pods: Counter = "kubelet_started_pods_total", "Cumulative number of pods started";
        /// Sandboxes that could not be created.
        pub(super) pod_errors: Counter = "kubelet_started_pods_errors_total",
            "Cumulative number of errors when starting pods";
        user_namespaced: Counter = "kubelet_started_user_namespaced_pods_total",
            "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.";
        user_namespaced_errors: Counter = "kubelet_started_user_namespaced_pods_errors_total",
            "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.";
        containers: Counter["container_type"] = "kubelet_started_containers_total",
            "Cumulative number of containers started";
        container_errors: Counter["container_type", "code"] =
            "kubelet_started_containers_errors_total", "Cumulative number of errors when starting containers";
        sandbox_duration: Histogram(DEFAULT_BUCKETS)["runtime_handler"] =
            "kubelet_run_podsandbox_duration_seconds", "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.";
        sandbox_errors: Counter["runtime_handler"] = "kubelet_run_podsandbox_errors_total",
            "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.";
        image_volumes: Counter = "kubelet_image_volume_requested_total",
            "Number of requested image volumes.";
        image_volumes_mounted: Counter = "kubelet_image_volume_mounted_succeed_total",
            "Number of successful image volume mounts.";
        image_volume_errors: Counter = "kubelet_image_volume_mounted_errors_total",
            "Number of failed image volume mounts.";
    }
}

impl StartMetrics {
    /// Counts the start of a pod, when its sandbox is about to be created.
    pub(super) fn pod_start_attempted(&self, pod: &Pod) {
        self.pods.inc();
        if user_namespaces::is_wanted(pod) {
            self.user_namespaced.inc();
        }
    }

    /// Counts the failure of a sync that had to create the sandbox of a pod with a user namespace, in any
    /// step: some runtimes set the namespace up only when they create a container.
    pub(super) fn user_namespaced_pod_failed(&self, pod: &Pod) {
        if user_namespaces::is_wanted(pod) {
            self.user_namespaced_errors.inc();
        }
    }

    /// RunPodSandbox was called.
    pub(super) fn run_pod_sandbox_called(&self, handler: &str, took: Duration, failed: bool) {
        self.sandbox_duration.with([handler]).observe(took.as_secs_f64());
        if failed {
            self.sandbox_errors.with([handler]).inc();
        }
    }

    /// Counts the image volumes of a container that is created next.
    pub(super) fn image_volumes_requested(&self, count: usize) {
        self.image_volumes.inc_by(u64::try_from(count).unwrap_or_default());
    }

    /// Counts the same volumes when the container was started, or when the runtime says that they cannot be mounted.
    pub(super) fn image_volumes_mounted(&self, count: usize, error: Option<&StartContainerError>) {
        let counter = match error {
            None => &self.image_volumes_mounted,
            Some(StartContainerError::Failed(failure))
                if failure.message.contains(IMAGE_VOLUME_MOUNT_FAILED) =>
            {
                &self.image_volume_errors
            }
            Some(_) => return,
        };
        counter.inc_by(u64::try_from(count).unwrap_or_default());
    }

    /// Counts a start attempt and its failure, if any. A container in back-off counts as neither.
    pub(super) fn record_container_start(
        &self,
        pod: &Pod,
        container: &Container,
        failure: Option<&StartFailure>,
    ) {
        if failure.is_some_and(|failure| failure.reason == reasons::CRASH_LOOP_BACK_OFF) {
            return;
        }
        let container_type = kind(pod, container);
        self.containers.with([container_type]).inc();
        if let Some(failure) = failure {
            self.container_errors.with([container_type, failure.reason]).inc();
        }
    }
}

fn kind(pod: &Pod, container: &Container) -> &'static str {
    let inits = pod.init_containers();
    let mut ephemeral = pod.ephemeral_containers().iter();
    if inits.iter().any(|init| init.name == container.name) {
        "init_container"
    } else if ephemeral.any(|ephemeral| ephemeral.name == container.name) {
        "ephemeral_container"
    } else {
        "container"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_are_counted_by_their_kind() {
        let containers = |name: &str| json!([{"name": name}]);
        let pod: Pod = serde_json::from_value(json!({
            "spec": {
                "initContainers": containers("init"),
                "containers": containers("main"),
                "ephemeralContainers": containers("debug"),
            },
        }))
        .unwrap();
        for (name, expected) in
            [("init", "init_container"), ("main", "container"), ("debug", "ephemeral_container")]
        {
            let container = Container { name: name.into(), ..Container::default() };
            assert_eq!(kind(&pod, &container), expected);
        }
    }
}
