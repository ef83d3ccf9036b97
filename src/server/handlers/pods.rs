//! `/pods`, `/runningpods/`, `/podInfo` and `/spec/`.

use crate::host::HostMachine;
use crate::model::{ContainerState, Pod, PodStatus};
use crate::pods::pod_sync::PodWithStatus;
use crate::server::http::list;
use crate::server::http::response::{Body, json_object, json_stream, not_found};
use crate::server::known_pods::{KnownPods, until_shutdown};
use crate::server::streaming::{PodName, lookup};
use crate::state::pod_cache::PodCache;
use hyper::Response;
use k8s_openapi::api::core::v1::{self, Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A list item: a pod with its current status in place of `pod.status`. Serializes the shared objects without copying
/// them.
pub(in crate::server) struct PodItem {
    pub(in crate::server) pod: Arc<Pod>,
    pub(in crate::server) status: Option<Arc<v1::PodStatus>>,
}

impl Serialize for PodItem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut item = serializer.serialize_struct("Pod", 3)?;
        item.serialize_field("metadata", &self.pod.metadata)?;
        if let Some(spec) = &self.pod.spec {
            item.serialize_field("spec", spec)?;
        }
        if let Some(status) = self.status.as_deref().or(self.pod.status.as_ref()) {
            item.serialize_field("status", status)?;
        }
        item.end()
    }
}

/// The handlers of the pod lists.
#[derive(Clone)]
pub struct PodLists {
    /// All known pods.
    pub known: KnownPods,
    /// The runtime status of every pod.
    pub cache: PodCache,
}

impl PodLists {
    /// `/pods`.
    pub(in crate::server) async fn pods(&self, shutdown: &CancellationToken) -> Response<Body> {
        let pods = self.list_when_ready(shutdown).await;
        self.known.after_flush(pod_list(pods)).await
    }

    /// `/runningpods/`.
    pub(in crate::server) async fn running(&self, shutdown: &CancellationToken) -> Response<Body> {
        until_shutdown(shutdown, self.known.wait_for_sources()).await;
        running_pods(self.cache.pods())
    }

    /// `/podInfo`.
    pub(in crate::server) async fn info(
        &self,
        name: &PodName,
        shutdown: &CancellationToken,
    ) -> Response<Body> {
        let pods = self.list_when_ready(shutdown).await;
        self.known.after_flush(pod_info(pods, name)).await
    }

    /// All known pods, after waiting for the first list of each source.
    pub(in crate::server) async fn list_when_ready(
        &self,
        shutdown: &CancellationToken,
    ) -> Vec<PodWithStatus> {
        until_shutdown(shutdown, self.known.wait_for_sources()).await;
        self.known.list()
    }
}

pub(super) fn pod_list(pods: Vec<PodWithStatus>) -> Response<Body> {
    let items = pods.into_iter().map(|(pod, status)| PodItem { pod, status });
    json_stream(list::body("PodList", items))
}

/// The pods with a running container, in upstream's form: metadata, and the name and image of each running container.
fn running_pods(pods: Vec<Arc<PodStatus>>) -> Response<Body> {
    #[derive(Serialize)]
    struct RunningPod {
        metadata: ObjectMeta,
        spec: PodSpec,
        status: v1::PodStatus,
    }
    let items = pods.into_iter().filter_map(|pod| {
        let running = pod.containers.iter().filter(|c| c.state == ContainerState::Running);
        let containers: Vec<Container> = running
            .map(|container| Container {
                name: container.name.to_string(),
                image: Some(container.image.to_string()),
                ..Container::default()
            })
            .collect();
        (!containers.is_empty()).then(|| RunningPod {
            metadata: ObjectMeta {
                name: Some(pod.name.to_string()),
                namespace: Some(pod.namespace.to_string()),
                uid: Some(pod.uid.to_string()),
                ..ObjectMeta::default()
            },
            spec: PodSpec { containers, ..PodSpec::default() },
            status: v1::PodStatus::default(),
        })
    });
    json_stream(list::body("PodList", items))
}

/// The status of one pod, or 404.
fn pod_info(known: Vec<PodWithStatus>, name: &PodName) -> Response<Body> {
    match lookup::pod(known, name) {
        Ok((pod, status)) => match status.as_deref().or(pod.status.as_ref()) {
            Some(status) => json_object(status),
            None => json_object(&v1::PodStatus::default()),
        },
        Err(missing) => not_found(&missing.to_string()),
    }
}

/// The machine, in cAdvisor's format of machine information.
pub(in crate::server) fn machine(machine: &HostMachine) -> Response<Body> {
    json_object(&serde_json::json!({
        "num_cores": machine.cpus,
        "memory_capacity": machine.memory_bytes,
        "boot_id": machine.boot_id,
        "kernel_version": machine.kernel_release,
    }))
}
