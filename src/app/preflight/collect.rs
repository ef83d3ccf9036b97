//! Reads the pods of the runtime, of the manifests and of the API server. Only with calls that change nothing.

use super::forecast::of_pod;
use super::pods::{RuntimePods, SourceList};
use super::report::{Outcome, PodForecast};
use crate::apiserver::claim::PersistentVolumeClaimKey;
use crate::apiserver::{ApiItem, ApiServer, ResourcePath, Unreadable, WatchEvent};
use crate::app::Finding;
use crate::base::{StringInterner, error_chain, spawn_blocking};
use crate::cri::{CriError, RuntimeClient};
use crate::model::{
    AddressOrder, ContainerStatus, LenientNode, Pod, PodExt, PodSource, PodStatus, PodUid,
    SandboxId, SandboxStatus,
};
use crate::pods::pod_config::{FileConfig, accept_api_pod, find_manifests, pods_of};
use crate::runtime::kuberuntime::translate;
use crate::state::pod_cache::{ListEntry, PodRef};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Limit of concurrent reads of the runtime and of the API server.
const MAX_CONCURRENT: usize = 8;
/// Deadline of one read.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a list of the API server.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// The status of an item, or why it cannot be read; `None` if it is gone, or no kubelet's.
type ItemRead<T> = Option<(PodRef, Result<T, String>)>;

/// Reads every sandbox and container of the runtime.
///
/// # Errors
/// They cannot be listed.
pub(super) async fn runtime_pods(
    client: &RuntimeClient,
    order: AddressOrder,
) -> Result<RuntimePods, CriError> {
    let strings = &StringInterner::new();
    let sandboxes = client.list_pod_sandboxes(None).await?;
    let containers = client.list_containers(None).await?;
    let sandboxes = stream::iter(sandboxes.iter().map(async |listed| {
        let entry = translate::sandbox_from_list(listed, strings)?;
        let reading = timeout(TIMEOUT, client.pod_sandbox_status(&listed.id, false)).await;
        let read = match reading {
            Ok(Err(error)) if error.is_not_found() => return None,
            Ok(Ok(reply)) => Ok(translate::sandbox_status(&reply.sandbox, strings, order)?.status),
            Ok(Err(error)) => Err(format!("sandbox {}: {}", listed.id, error.grpc_text())),
            Err(_) => Err(format!("sandbox {}: no response", listed.id)),
        };
        Some((entry.pod_ref, read))
    }));
    let sandboxes: Vec<ItemRead<SandboxStatus>> =
        sandboxes.buffer_unordered(MAX_CONCURRENT).collect().await;
    let containers = stream::iter(containers.iter().map(async |listed| {
        let ListEntry { pod_ref, .. } = translate::container_from_list(listed, strings)?;
        let sandbox = SandboxId::from(listed.pod_sandbox_id.as_str());
        let reading = timeout(TIMEOUT, client.container_status(&listed.id)).await;
        let read = match reading {
            Ok(Err(error)) if error.is_not_found() => return None,
            Ok(Ok(reply)) => Ok(translate::container_status(&reply, sandbox, strings)?.status),
            Ok(Err(error)) => Err(format!("container {}: {}", listed.id, error.grpc_text())),
            Err(_) => Err(format!("container {}: no response", listed.id)),
        };
        Some((pod_ref, read))
    }));
    let containers: Vec<ItemRead<ContainerStatus>> =
        containers.buffer_unordered(MAX_CONCURRENT).collect().await;
    Ok(grouped(sandboxes, containers))
}

fn grouped(
    sandboxes: Vec<ItemRead<SandboxStatus>>,
    containers: Vec<ItemRead<ContainerStatus>>,
) -> RuntimePods {
    let mut pods: BTreeMap<PodUid, PodStatus> = BTreeMap::new();
    let mut unread = BTreeMap::new();
    for (pod, read) in sandboxes.into_iter().flatten() {
        let status = status_of(&mut pods, &pod);
        match read {
            Ok(sandbox) => status.sandboxes.push(sandbox),
            Err(why) => _ = unread.insert(pod.uid, why),
        }
    }
    for (pod, read) in containers.into_iter().flatten() {
        let status = status_of(&mut pods, &pod);
        match read {
            Ok(container) => status.containers.push(container),
            Err(why) => _ = unread.insert(pod.uid, why),
        }
    }
    let pods = pods.into_iter().map(|(uid, mut status)| {
        status.sort();
        (uid, Arc::new(status))
    });
    RuntimePods { pods: pods.collect(), unread }
}

fn status_of<'a>(pods: &'a mut BTreeMap<PodUid, PodStatus>, pod: &PodRef) -> &'a mut PodStatus {
    pods.entry(pod.uid.clone()).or_insert_with(|| PodStatus {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        ..PodStatus::default()
    })
}

/// Reads files on a thread of its own.
///
/// # Errors
/// The finding about a file system that does not respond.
pub(super) async fn blocking<T: Send + 'static>(
    subject: &'static str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Finding> {
    match timeout(TIMEOUT, spawn_blocking(read)).await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => Err(Finding::unknown(subject, error.to_string())),
        Err(_) => Err(Finding::unknown(subject, "a file system does not respond")),
    }
}

/// Reads the manifests; the findings name their files.
pub(super) async fn manifests(config: FileConfig, node_name: &str) -> (SourceList, Vec<Finding>) {
    const SUBJECT: &str = "manifests";
    let (source, name) = (config.source, node_name.to_owned());
    let read = blocking(SUBJECT, move || find_manifests(&config, &name)).await;
    let mut list = SourceList::unread(source);
    let found = match read {
        Ok(found) => found,
        Err(finding) => return (list, vec![finding]),
    };
    (list.pods, list.completeness) = (found.pods, found.completeness);
    let errors = found.problems.into_iter();
    let errors = errors.map(|why| Finding::error(SUBJECT, why));
    let warnings = found.warnings.into_iter();
    let warnings = warnings.map(|why| Finding::warning(SUBJECT, why));
    (list, errors.chain(warnings).collect())
}

/// Lists the pods of this node.
///
/// # Errors
/// The API server does not answer, or refuses.
pub(super) async fn api_pods(api: &ApiServer, node_name: &str) -> Result<SourceList, String> {
    let mut list = api.list_watch::<Pod>(pods_of(node_name));
    let items = match timeout(LIST_TIMEOUT, list.next()).await {
        Ok(WatchEvent::Listed(items)) => items,
        Ok(WatchEvent::Failed(error)) => return Err(error_chain(error.as_ref())),
        Ok(WatchEvent::Applied(_) | WatchEvent::Deleted(_)) => return Err("no list came".into()),
        Err(_) => return Err("no response".into()),
    };
    Ok(accepted(items, node_name))
}

/// The pods that this kubelet accepts. Mirrors are left out: they are the API server's copies of static pods.
fn accepted(items: Vec<ApiItem<Pod>>, node_name: &str) -> SourceList {
    let (mut pods, mut refused) = (Vec::new(), Vec::new());
    for item in items {
        let (mut forecast, why) = match item {
            Ok(pod) if pod.is_mirror() => continue,
            Ok(pod) => {
                let forecast = of_pod(&pod);
                match accept_api_pod(*pod, node_name) {
                    Ok(pod) => {
                        pods.push(Arc::new(pod));
                        continue;
                    }
                    Err(why) => (forecast, why),
                }
            }
            Err(Unreadable { metadata, why }) => {
                let pod = Pod { metadata: *metadata, ..Pod::default() };
                (of_pod(&pod), why)
            }
        };
        forecast.outcome = Outcome::Refused;
        forecast.reasons.push(why);
        refused.push((PodUid::from(forecast.uid.as_str()), forecast));
    }
    let unusable: BTreeSet<_> =
        refused.iter().map(|(uid, _): &(PodUid, PodForecast)| uid.to_string()).collect();
    SourceList { source: PodSource::Api, pods: Some(pods), completeness: unusable.into(), refused }
}

/// Reads the Node object; `None` if there is none.
///
/// # Errors
/// The API server does not answer, or refuses.
pub(super) async fn node(api: &ApiServer, node_name: &str) -> Result<Option<Node>, String> {
    let read = api.get::<LenientNode>(ResourcePath::cluster(node_name));
    match timeout(TIMEOUT, read).await {
        Ok(Ok(read)) => Ok(Some(read.node)),
        Ok(Err(error)) if error.is_not_found() => Ok(None),
        Ok(Err(error)) => Err(error_chain(&error)),
        Err(_) => Err("no response".into()),
    }
}

/// The PersistentVolumes of claims; `None` for a claim that is not bound. Errors name the claim.
pub(super) async fn claims(
    api: &ApiServer,
    keys: BTreeSet<PersistentVolumeClaimKey>,
) -> BTreeMap<PersistentVolumeClaimKey, Result<Option<Arc<PersistentVolume>>, String>> {
    let reads = stream::iter(keys.into_iter().map(async |key| {
        let read = timeout(TIMEOUT, claim(api, &key)).await;
        let read = read.unwrap_or_else(|_| Err("no response".into()));
        let read = read.map_err(|why| format!("claim {}/{}: {why}", key.namespace, key.name));
        (key, read)
    }));
    reads.buffer_unordered(MAX_CONCURRENT).collect().await
}

async fn claim(
    api: &ApiServer,
    key: &PersistentVolumeClaimKey,
) -> Result<Option<Arc<PersistentVolume>>, String> {
    let at = ResourcePath::namespaced(&key.namespace, &key.name);
    let claim = match api.get::<PersistentVolumeClaim>(at).await {
        Ok(claim) => claim,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error_chain(&error)),
    };
    let name = claim.spec.and_then(|spec| spec.volume_name);
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let volume = api.get::<PersistentVolume>(ResourcePath::cluster(&name)).await;
    volume.map(|volume| Some(Arc::new(volume))).map_err(|error| error_chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_of_the_api_server_that_are_not_accepted_are_refused_and_mirrors_left_out() {
        let pod = |name: &str, node: &str, annotations: serde_json::Value| {
            let pod = json!({
                "metadata": {"name": name, "namespace": "n", "uid": name, "annotations": annotations},
                "spec": {"nodeName": node, "containers": [{"name": "c"}]},
            });
            Ok(Box::new(serde_json::from_value::<Pod>(pod).unwrap()))
        };
        let unreadable = Unreadable {
            metadata: Box::new(serde_json::from_value(json!({"name": "x", "uid": "x"})).unwrap()),
            why: "no spec".to_owned(),
        };
        let list = accepted(
            vec![
                pod("a", "node1", json!({})),
                pod("b", "node2", json!({})),
                pod("m", "node1", json!({"kubernetes.io/config.mirror": "h"})),
                Err(unreadable),
            ],
            "node1",
        );
        let names: Vec<_> = list.pods.iter().flatten().map(|pod| pod.name().to_owned()).collect();
        assert_eq!(names, ["a"]);
        let refused: Vec<_> =
            list.refused.iter().map(|(uid, pod)| (uid.as_str(), pod.outcome)).collect();
        assert_eq!(refused, [("b", Outcome::Refused), ("x", Outcome::Refused)]);
        assert!(!list.completeness.covers(Some("b")) && list.completeness.covers(Some("gone")));
    }

    #[test]
    fn a_pod_of_which_one_item_cannot_be_read_is_not_known() {
        let pod = PodRef { uid: "u".into(), name: "web".into(), namespace: "n".into() };
        let sandbox = |attempt| SandboxStatus { attempt, ..SandboxStatus::default() };
        let found = grouped(
            vec![Some((pod.clone(), Ok(sandbox(0)))), None, Some((pod.clone(), Ok(sandbox(1))))],
            vec![Some((pod, Err("no response".to_owned())))],
        );
        let status = &found.pods[&PodUid::from("u")];
        assert_eq!((status.sandboxes[0].attempt, status.sandboxes.len()), (1, 2));
        assert_eq!(found.unread[&PodUid::from("u")], "no response");
    }
}
