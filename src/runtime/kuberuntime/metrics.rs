//! The metric families of starting pods and containers, named as upstream names them.

use super::{
    generate::user_namespaces,
    sync::{StartContainerError, StartFailure},
};
use crate::{
    base::metrics::{DEFAULT_BUCKETS, Labels, Metrics},
    model::{Pod, PodExt, reasons},
};
use k8s_openapi::api::core::v1::Container;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use std::time::Duration;

/// What runtimes write into the error of a container whose image volume cannot be mounted.
const IMAGE_VOLUME_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// Handles to the metrics. Clones share them.
#[derive(Clone)]
pub(super) struct StartMetrics {
    pods: Counter,
    pod_errors: Counter,
    user_namespaced: Counter,
    user_namespaced_errors: Counter,
    containers: Family<Labels, Counter>,
    container_errors: Family<Labels<2>, Counter>,
    sandbox_duration: Family<Labels<1, String>, Histogram>,
    sandbox_errors: Family<Labels<1, String>, Counter>,
    image_volumes: Counter,
    image_volumes_mounted: Counter,
    image_volume_errors: Counter,
}

impl StartMetrics {
    /// Declares the families.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counter = |name, help| metrics.register(name, help, Counter::default());
        Self {
            pods: counter("kubelet_started_pods_total", "Cumulative number of pods started"),
            pod_errors: counter(
                "kubelet_started_pods_errors_total",
                "Cumulative number of errors when starting pods",
            ),
            user_namespaced: counter(
                "kubelet_started_user_namespaced_pods_total",
                "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
            ),
            user_namespaced_errors: counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
            ),
            containers: metrics.register_default(
                "kubelet_started_containers_total",
                "Cumulative number of containers started",
            ),
            container_errors: metrics.register_default(
                "kubelet_started_containers_errors_total",
                "Cumulative number of errors when starting containers",
            ),
            sandbox_duration: metrics.register(
                "kubelet_run_podsandbox_duration_seconds",
                "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
                Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
            ),
            sandbox_errors: metrics.register_default(
                "kubelet_run_podsandbox_errors_total",
                "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
            ),
            image_volumes: counter(
                "kubelet_image_volume_requested_total",
                "Number of requested image volumes.",
            ),
            image_volumes_mounted: counter(
                "kubelet_image_volume_mounted_succeed_total",
                "Number of successful image volume mounts.",
            ),
            image_volume_errors: counter(
                "kubelet_image_volume_mounted_errors_total",
                "Number of failed image volume mounts.",
            ),
        }
    }

    /// Counts the start of a pod, when its sandbox is about to be created.
    pub(super) fn pod_start_attempted(&self, pod: &Pod) {
        self.pods.inc();
        if user_namespaces::is_wanted(pod) {
            self.user_namespaced.inc();
        }
    }

    /// Counts a sandbox that could not be created.
    pub(super) fn pod_start_failed(&self) {
        self.pod_errors.inc();
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
        let handler = [("runtime_handler", handler.to_owned())];
        let duration = self.sandbox_duration.get_or_create_owned(&handler);
        duration.observe(took.as_secs_f64());
        if failed {
            self.sandbox_errors.get_or_create_owned(&handler).inc();
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
        let tried = self.containers.get_or_create_owned(&[("container_type", container_type)]);
        tried.inc();
        if let Some(failure) = failure {
            let code = failure.reason;
            let labels = [("container_type", container_type), ("code", code)];
            self.container_errors.get_or_create_owned(&labels).inc();
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
