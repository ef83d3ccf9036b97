//! What the kubelet shows of the pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::support::faults::pods::short;
use crate::support::http;

/// By the name in the manifest.
pub type Pods = BTreeMap<String, ShownPod>;

#[derive(Debug, Clone, Default)]
pub struct ShownPod {
    pub ready: bool,
    pub succeeded: bool,
    /// Ids of containers that are shown as running.
    pub running: BTreeSet<String>,
    /// Phase and containers, for people.
    pub text: String,
}

/// `None` while there is no kubelet that answers.
pub async fn pods(port: u16) -> Option<Pods> {
    let pods = http::pods(port).await.ok()?;
    Some(pods.iter().map(read).collect())
}

fn read(pod: &Pod) -> (String, ShownPod) {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready =
        |c: &k8s_openapi::api::core::v1::PodCondition| c.type_ == "Ready" && c.status == "True";
    let phase = status.phase.unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let states: Vec<_> = containers.iter().map(|c| c.state.as_ref()).collect();
    let text = format!("{phase} {}", serde_json::json!(states));
    let running = containers.iter().filter(|container| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    });
    let ids = running.filter_map(|container| {
        let (_, id) = container.container_id.as_deref()?.split_once("://")?;
        Some(id.to_owned())
    });
    let pod = ShownPod {
        ready: conditions.iter().any(ready),
        succeeded: phase == "Succeeded",
        running: ids.collect(),
        text,
    };
    (short(name).to_owned(), pod)
}
