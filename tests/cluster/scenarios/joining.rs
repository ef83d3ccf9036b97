//! How a node becomes part of the cluster.

use jiff::Timestamp;

use crate::audit::counts;
use crate::cluster::{Cluster, NODE};
use crate::kubelet::Join;

pub async fn a_node_joins_with_a_bootstrap_token() {
    let cluster = Cluster::start_with(Join::Token, std::process::id());
    let requests = cluster.get(&["certificatesigningrequests"]);
    let request = &requests["items"][0];
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(request["status"]["conditions"][0]["type"], "Approved");
    let sent = cluster.requests(Timestamp::MIN);
    let by = |user: &str| counts(sent.iter().filter(|request| request.user == user));
    let create = |resource: &str| ("create".to_owned(), resource.to_owned());
    let by_token = by("system:bootstrap:abcdef");
    assert_eq!(by_token[&create("certificatesigningrequests")], 1);
    assert!(!by_token.contains_key(&create("nodes")), "{by_token:?}");
    // NodeRestriction and the Node authorizer see the node only under the name in its new certificate.
    let by_node = by(&format!("system:node:{NODE}"));
    assert_eq!(by_node[&create("nodes")], 1, "{by_node:?}");
}
