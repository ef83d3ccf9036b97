//! Repairs the volumes of a pod before its containers start.

use super::PodSync;
use crate::model::{Pod, PodExt as _, PodStatus};
use crate::volumes::VolumeError;
use std::collections::BTreeSet;

impl PodSync {
    /// Has volumes mounted again whose mounts are dead, unless all containers of the pod run. Returns why some cannot be.
    pub(super) async fn repair_volumes(&self, pod: &Pod, status: &PodStatus) -> Vec<VolumeError> {
        let mut containers = pod.containers().iter();
        if containers.all(|container| status.runs(&container.name)) {
            return Vec::new();
        }
        self.volumes.repair(pod, &mounted(pod, status)).await
    }
}

/// The volumes that running containers mount.
fn mounted<'a>(pod: &'a Pod, status: &PodStatus) -> BTreeSet<&'a str> {
    let containers = pod.containers().iter().chain(pod.init_containers());
    let containers = containers.map(|it| (&it.name, &it.volume_mounts));
    let ephemeral = pod.ephemeral_containers().iter();
    let ephemeral = ephemeral.map(|it| (&it.name, &it.volume_mounts));
    let running = containers.chain(ephemeral).filter(|(name, _)| status.runs(name));
    let mounts = running.flat_map(|(_, mounts)| mounts.iter().flatten());
    mounts.map(|mount| mount.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerState, ContainerStatus};
    use serde_json::json;

    #[test]
    fn volumes_of_running_containers_of_any_kind_are_in_use() {
        let container = |name: &str, volume: &str| json!({"name": name, "volumeMounts": [{"name": volume, "mountPath": "/v"}]});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [container("sidecar", "a"), container("init", "b")],
            "containers": [container("main", "c"), container("other", "d"), {"name": "plain"}],
            "ephemeralContainers": [container("debug", "e")],
        }}))
        .unwrap();
        let status = |name: &str, state| ContainerStatus {
            name: name.into(),
            state,
            ..ContainerStatus::default()
        };
        let status = PodStatus {
            containers: vec![
                status("sidecar", ContainerState::Running),
                status("init", ContainerState::Exited),
                status("main", ContainerState::Unknown),
                status("other", ContainerState::Exited),
                status("debug", ContainerState::Running),
            ],
            ..PodStatus::default()
        };
        assert_eq!(mounted(&pod, &status), ["a", "c", "e"].into());
    }
}
