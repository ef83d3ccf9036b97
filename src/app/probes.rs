//! What the prober is shown.

use crate::{
    model::{Pod, PodExt, PodUid},
    pods::prober::{ContainerView, View},
    pods::status::Statuses,
    state::pod_cache::PodCache,
    state::pod_manager::PodManager,
};
use std::sync::Arc;

/// What probes see of containers. A host-network pod is probed at the node's address; without one
/// configured, on loopback.
pub(super) fn container_view(
    cache: PodCache,
    manager: PodManager,
    statuses: Statuses,
    node_ip: String,
) -> ContainerView {
    Arc::new(move |uid: &PodUid, name: &str| {
        let runtime_status = cache.latest(uid);
        let pod: Option<Arc<Pod>> = manager.get(uid);
        let host_network = pod.as_ref().is_some_and(|pod| pod.host_network());
        let phase = statuses.get(uid).and_then(|status| status.phase.clone());
        View {
            container: runtime_status.newest(name).cloned(),
            pod_ip: if host_network {
                Some(node_ip.clone())
            } else {
                runtime_status.ips().first().cloned()
            },
            pod_terminal: matches!(phase.as_deref(), Some("Failed" | "Succeeded")),
            deleting: pod.is_some_and(|pod| pod.is_being_deleted()),
        }
    })
}
