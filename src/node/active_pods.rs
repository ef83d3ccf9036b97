//! Active pods (upstream's `filterOutInactivePods`), and the wait for their termination.

use crate::model::{Pod, PodExt};
use crate::pods::pod_workers::PodWorkers;
use crate::state::pod_manager::PodManager;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Interval of checks whether a pod has terminated.
pub(super) const TERMINATION_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Desired pods that may have running containers.
pub(super) fn active_pods(pod_manager: &PodManager, workers: &PodWorkers) -> Vec<Arc<Pod>> {
    let mut pods = pod_manager.pods();
    pods.retain(|pod| workers.is_active(pod));
    pods
}

/// Waits until these pods have terminated and their resources, volumes included, are cleaned up.
pub(super) async fn until_finished(workers: &PodWorkers, pods: &[Arc<Pod>]) {
    until_all(pods, |pod| workers.should_pod_be_finished(&pod.uid())).await;
}

/// Waits until the predicate holds for all pods.
pub(super) async fn until_all(pods: &[Arc<Pod>], predicate: impl Fn(&Pod) -> bool) {
    while !pods.iter().all(|pod| predicate(pod)) {
        sleep(TERMINATION_CHECK_INTERVAL).await;
    }
}
