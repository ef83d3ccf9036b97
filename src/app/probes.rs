//! The prober, and its view of containers.

use super::Stores;
use crate::{
    model::{Pod, PodExt, PodUid, is_terminal},
    pods::prober::{self, ProbeManager, ProbedContainer, ProbedContainerReader},
    pods::status::Statuses,
    runtime::handlers::runtime_exec,
    state::pod_cache::PodCache,
    state::pod_manager::PodManager,
    state::probe_results::ProbeResultsWriter,
};
use std::sync::Arc;

/// Builds the prober. A host-network pod is probed at `node_ip`.
pub(super) fn manager(
    stores: &Stores,
    node_ip: String,
    results: ProbeResultsWriter,
) -> ProbeManager {
    let deps = prober::ProberDeps {
        started_at: stores.started_at,
        exec: runtime_exec(stores.runtime.clone()),
        view: container_view(
            stores.cache.clone(),
            stores.pods.clone(),
            stores.statuses.clone(),
            node_ip,
        ),
        results,
        state_store: stores.state_store.clone(),
        events: stores.events.clone(),
    };
    ProbeManager::new(deps, &stores.metrics, &stores.probe_metrics)
}

fn container_view(
    cache: PodCache,
    manager: PodManager,
    statuses: Statuses,
    node_ip: String,
) -> ProbedContainerReader {
    Arc::new(move |uid: &PodUid, name: &str| {
        let runtime_status = cache.latest(uid);
        let pod: Option<Arc<Pod>> = manager.get(uid);
        let host_network = pod.as_ref().is_some_and(|pod| pod.host_network());
        ProbedContainer {
            container: runtime_status.newest(name).cloned(),
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
