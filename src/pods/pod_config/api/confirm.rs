//! Confirms that pods which a list lacks are gone: one further list, the Node object, and the identity of the cluster.

use crate::apiserver::{ApiItem, ApiServer, ResourcePath, Selection, WatchEvent};
use crate::base::error_chain;
use crate::model::{LenientNode, Pod};
use k8s_openapi::api::core::v1::Service;

/// The API server's answer to a further list.
pub(super) struct Confirmation {
    /// The pods of this node. One that is not among them is gone, unless the server is of another cluster.
    pub(super) pods: Vec<ApiItem<Pod>>,
    /// The server is of another cluster than the known pods, or without a known identity.
    pub(super) is_other_cluster: bool,
}

/// The pods that are bound to a node.
pub fn pods_of(node_name: &str) -> Selection {
    Selection { namespace: None, field_selector: Some(format!("spec.nodeName={node_name}")) }
}

/// Asks the API server again for the pods of this node. `known` is the identity of the cluster that the known pods came
/// from. One list serves all pods in doubt, because a node may lose all of its pods at once.
///
/// # Errors
/// The API server does not answer, or does not know this node.
pub(super) async fn confirm(
    api: &ApiServer,
    node_name: &str,
    known: Option<&str>,
) -> Result<Confirmation, String> {
    let mut list = api.list_watch::<Pod>(pods_of(node_name));
    let pods = match list.next().await {
        WatchEvent::Listed(pods) => pods,
        WatchEvent::Failed(error) => return Err(error_chain(error.as_ref())),
        WatchEvent::Applied(_) | WatchEvent::Deleted(_) => return Err("no list came".into()),
    };
    let node = api.get::<LenientNode>(ResourcePath::cluster(node_name)).await;
    let node = node.map_err(|error| error_chain(&error))?;
    if node.node.metadata.name.as_deref() != Some(node_name) {
        return Err("the API server does not know this node".into());
    }
    let is_other_cluster = known.is_some() && cluster(api).await?.as_deref() != known;
    Ok(Confirmation { pods, is_other_cluster })
}

/// The identity of a cluster; `None` if the Service does not exist or this kubelet may not read it.
pub(super) async fn cluster(api: &ApiServer) -> Result<Option<String>, String> {
    let service = ResourcePath::namespaced("default", "kubernetes");
    match api.get::<Service>(service).await {
        Ok(service) => Ok(service.metadata.uid),
        Err(error) if error.is_not_found() || error.is_forbidden() => Ok(None),
        Err(error) => Err(error_chain(&error)),
    }
}
