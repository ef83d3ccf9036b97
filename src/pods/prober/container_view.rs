//! Reads the state of a probed container from the stores.

use super::{ProbedContainer, ProbedContainerReader};
use crate::{
    model::{Pod, PodExt, PodUid, is_terminal},
    pods::status::Statuses,
    state::{pod_cache::PodCache, pod_manager::PodManager, pod_state_store::PodStateStore},
};
use std::sync::Arc;

/// Reads the stores. A pod on the host network is probed at `node_ip`, and a container only after its postStart hook.
pub fn container_view(
    cache: PodCache,
    pod_manager: PodManager,
    statuses: Statuses,
    state_store: PodStateStore,
    node_ip: String,
) -> ProbedContainerReader {
    Arc::new(move |uid: &PodUid, name: &str| {
        let runtime_status = cache.latest(uid);
        let pod: Option<Arc<Pod>> = pod_manager.get(uid);
        // A static pod that terminates because its manifest was removed is not in the pod manager.
        let host_network = match &pod {
            Some(pod) => pod.host_network(),
            None => runtime_status.is_on_host_network(),
        };
        let newest = runtime_status.newest(name);
        let newest = newest.filter(|newest| !state_store.read(uid, |r| r.is_in_post_start(newest)));
        ProbedContainer {
            container: newest.cloned(),
            pod_ip: if host_network {
                Some(node_ip.clone())
            } else {
                runtime_status.ips().first().cloned()
            },
            pod_terminal: statuses.get(uid).is_some_and(|status| is_terminal(&status)),
            deleting: pod.is_some_and(|pod| pod.is_being_deleted()),
        }
    })
}
