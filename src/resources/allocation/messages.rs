//! Messages of resize events, as upstream's. Pure.

use super::PodResourceInfo;
use crate::model::{Pod, PodExt};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResizeEventData<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerAmounts<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerAmounts<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct ContainerAmounts<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

/// The message of an event, with the amounts of all containers of the pod.
pub fn event_message(what: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let amounts = PodResourceInfo::of(pod);
    let of = |containers: &'_ [Container]| -> Vec<_> {
        let names = containers.iter().map(|container| container.name.clone());
        names
            .filter_map(|name| amounts.containers.get_key_value(&name))
            .map(|(name, resources)| ContainerAmounts { name, resources: resources.clone() })
            .collect()
    };
    let data = ResizeEventData {
        init_containers: of(pod.init_containers()),
        containers: of(pod.containers()),
        generation: generation.unwrap_or_default(),
        error,
    };
    match serde_json::to_string(&data) {
        Ok(json) => format!("{what}: {json}"),
        Err(_) => what.to_owned(),
    }
}
