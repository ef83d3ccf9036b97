//! The pods that a node may have to stop.

use crate::{
    model::{Pod, PodExt},
    pods::pod_workers::PodWorkers,
    state::pod_manager::PodManager,
};
use std::sync::Arc;

/// Desired pods that may have running containers and are not being stopped.
pub(super) fn active_pods(pods: &PodManager, workers: &PodWorkers) -> Vec<Arc<Pod>> {
    let mut pods = pods.pods();
    pods.retain(|pod| {
        let uid = pod.uid();
        !pod.is_terminal()
            && workers.could_have_running_containers(&uid)
            && !workers.is_pod_termination_requested(&uid)
    });
    pods
}
