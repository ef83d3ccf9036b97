//! Reads the state of a probed container from the stores.

use super::{ProbedContainer, ProbedContainerReader};
use crate::model::{ContainerId, ContainerStatus, Pod, PodExt, PodUid, is_terminal};
use crate::pods::status::Statuses;
use crate::state::pod_cache::PodCache;
use crate::state::pod_manager::PodManager;
use crate::state::pod_state_store::PodStateStore;
use k8s_openapi::api::core::v1 as api;
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
        let status = statuses.get(uid);
        let status = status.as_deref();
        let was_started = |newest| status.is_some_and(|status| shows_started(status, newest));
        ProbedContainer {
            container: newest.cloned(),
            was_started: newest.is_some_and(was_started),
            pod_ip: if host_network {
                Some(node_ip.clone())
            } else {
                runtime_status.ips().first().cloned()
            },
            pod_terminal: status.is_some_and(is_terminal),
            deleting: pod.is_some_and(|pod| pod.is_being_deleted()),
        }
    })
}

/// Whether the status of a pod says that this instance of a container has started.
fn shows_started(status: &api::PodStatus, instance: &ContainerStatus) -> bool {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let mut shown = lists.into_iter().flatten().flatten();
    shown.any(|shown| {
        let id = shown.container_id.as_deref().and_then(ContainerId::of_status);
        shown.started == Some(true) && id.as_ref() == Some(&instance.id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_speaks_of_the_instance_whose_id_it_has() {
        let shown = |started: Option<bool>, id: &str| {
            json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "started": started, "containerID": format!("containerd://{id}")})
        };
        let cases = [
            ("containerStatuses", shown(Some(true), "c1"), true),
            ("initContainerStatuses", shown(Some(true), "c1"), true),
            ("containerStatuses", shown(Some(true), "c0"), false),
            ("containerStatuses", shown(Some(false), "c1"), false),
            ("containerStatuses", shown(None, "c1"), false),
        ];
        let instance = ContainerStatus { id: "c1".into(), ..ContainerStatus::default() };
        for (list, shown, expected) in cases {
            let status = json!({ list: [shown] });
            let status: api::PodStatus = serde_json::from_value(status).unwrap();
            assert_eq!(shows_started(&status, &instance), expected, "{status:?}");
        }
        assert!(!shows_started(&api::PodStatus::default(), &instance));
    }
}
