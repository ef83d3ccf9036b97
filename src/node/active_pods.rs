//! The pods that a node may have to stop, and the wait until they have stopped.

use crate::{
    model::{Pod, PodExt},
    pods::pod_workers::PodWorkers,
    state::pod_manager::PodManager,
};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// How often a pod that is being stopped is checked.
pub(super) const STOP_CHECK: Duration = Duration::from_millis(20);

/// Desired pods that may have running containers. One that is being stopped counts until its containers have ended,
/// as upstream's `filterOutInactivePods`.
pub(super) fn active_pods(pods: &PodManager, workers: &PodWorkers) -> Vec<Arc<Pod>> {
    let mut pods = pods.pods();
    pods.retain(|pod| {
        let uid = pod.uid();
        workers.could_have_running_containers(&uid)
            && (!pod.is_terminal() || workers.is_pod_termination_requested(&uid))
    });
    pods
}

/// Waits until nothing of these pods is left, their volumes included.
pub(super) async fn until_finished(workers: &PodWorkers, pods: &[Arc<Pod>]) {
    until_all(pods, |pod| workers.should_pod_be_finished(&pod.uid())).await;
}

/// Waits until something is true of all pods.
pub(super) async fn until_all(pods: &[Arc<Pod>], fact: impl Fn(&Pod) -> bool) {
    while !pods.iter().all(|pod| fact(pod)) {
        sleep(STOP_CHECK).await;
    }
}
