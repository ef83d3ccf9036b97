//! The least that anybody must do to run a pod: three calls, in order, without a kubelet.

use kubelet::cri::v1;
use std::collections::HashMap;

pub use crate::support::cri_client::{Client, connect};

/// Runs one pod of one container and returns its sandbox.
pub async fn run_pod(client: &mut Client, name: &str, cgroup_parent: &str) -> String {
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "bare".to_owned(),
            attempt: 0,
        }),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            ..Default::default()
        }),
        labels: HashMap::from([("io.kubernetes.pod.name".to_owned(), name.to_owned())]),
        ..Default::default()
    };
    let request =
        v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
    let pod = client.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id;
    let container = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec {
            image: "localhost/busybox:dev".to_owned(),
            ..Default::default()
        }),
        command: vec!["sleep".to_owned(), "1000000".to_owned()],
        linux: Some(v1::LinuxContainerConfig::default()),
        ..Default::default()
    };
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container),
        sandbox_config: Some(config),
    };
    let container_id = client.create_container(request).await.unwrap().into_inner().container_id;
    client.start_container(v1::StartContainerRequest { container_id }).await.unwrap();
    pod
}

/// Removes sandboxes by force.
pub async fn remove_pods(client: &mut Client, pods: Vec<String>) {
    for pod_sandbox_id in pods {
        let _ = client
            .stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() })
            .await;
        let _ = client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id }).await;
    }
}

/// When each running container started, in seconds since 1970, by pod name.
pub async fn start_times(client: &mut Client) -> HashMap<String, f64> {
    let all = client
        .list_containers(v1::ListContainersRequest { filter: None })
        .await
        .unwrap()
        .into_inner();
    let mut times = HashMap::new();
    for container in all.containers {
        let request = v1::ContainerStatusRequest { container_id: container.id, verbose: false };
        let Ok(answer) = client.container_status(request).await else {
            continue;
        };
        let Some(status) = answer.into_inner().status else {
            continue;
        };
        let pod = status.labels.get("io.kubernetes.pod.name").cloned().unwrap_or_default();
        if status.started_at > 0 {
            times.insert(pod, status.started_at as f64 / 1e9);
        }
    }
    times
}
