//! Lists of pods: what is known, and what runs.

use super::{
    list,
    response::{Body, json, not_found, one},
    streaming::{PodName, lookup},
};
use crate::{
    host::Machine,
    model::{ContainerState, Pod, PodStatus},
};
use hyper::Response;
use k8s_openapi::{
    api::core::v1::{self, Container, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;
use std::sync::Arc;

/// A pod as an item of a list, with the status that the board has instead of the one it came with.
/// Nothing is copied: the shared objects are serialised where they are.
struct PodItem {
    pod: Arc<Pod>,
    status: Option<Arc<v1::PodStatus>>,
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

pub(super) fn pods(pods: Vec<(Arc<Pod>, Option<Arc<v1::PodStatus>>)>) -> Response<Body> {
    let items = pods
        .into_iter()
        .map(|(pod, status)| PodItem { pod, status });
    json(list::body("PodList", items))
}

/// Upstream's form: of each pod with a running container its names, and of each such container name
/// and image.
pub(super) fn running_pods(pods: Vec<Arc<PodStatus>>) -> Response<Body> {
    #[derive(Serialize)]
    struct Running {
        metadata: ObjectMeta,
        spec: PodSpec,
        status: v1::PodStatus,
    }
    let items = pods.into_iter().filter_map(|pod| {
        let running = pod
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Running);
        let containers: Vec<Container> = running
            .map(|container| Container {
                name: container.name.to_string(),
                image: Some(container.image.to_string()),
                ..Container::default()
            })
            .collect();
        (!containers.is_empty()).then(|| Running {
            metadata: ObjectMeta {
                name: Some(pod.name.to_string()),
                namespace: Some(pod.namespace.to_string()),
                uid: Some(pod.uid.to_string()),
                ..ObjectMeta::default()
            },
            spec: PodSpec {
                containers,
                ..PodSpec::default()
            },
            status: v1::PodStatus::default(),
        })
    });
    json(list::body("PodList", items))
}

/// The status of one pod, and 404 when it is not known.
pub(super) fn pod_info(
    known: Vec<(Arc<Pod>, Option<Arc<v1::PodStatus>>)>,
    name: &PodName,
) -> Response<Body> {
    match lookup::pod(known, name) {
        Ok((pod, status)) => match status.as_deref().or(pod.status.as_ref()) {
            Some(status) => one(status),
            None => one(&v1::PodStatus::default()),
        },
        Err(missing) => not_found(&missing.to_string()),
    }
}

/// The machine, in the words of cAdvisor's machine information.
pub(super) fn machine(machine: &Machine) -> Response<Body> {
    one(&serde_json::json!({
        "num_cores": machine.cpus,
        "memory_capacity": machine.memory_bytes,
        "boot_id": machine.boot_id,
        "kernel_version": machine.kernel_release,
    }))
}
