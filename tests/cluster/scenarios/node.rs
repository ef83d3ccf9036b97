//! The Node object, its status, its lease and its events.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::audit::counts;
use crate::cluster::{ADDRESS, Cluster, DEADLINE, NODE};
use crate::support::wait::{holds, wait_for};

/// In which a node that rests renews its lease once, at least.
const REST: Duration = Duration::from_secs(15);

fn lease(cluster: &Cluster) -> Value {
    cluster.get(&["lease", "-n", "kube-node-lease", NODE])
}

pub async fn a_node_registers_as_it_is_configured_and_then_only_renews_its_lease() {
    let cluster = Cluster::start_with_flags(&[
        "--node-labels=example.com/role=test",
        "--register-with-taints=example.com/only=me:PreferNoSchedule",
        "--provider-id=test://1",
    ]);
    let node = cluster.get(&["node", NODE]);
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["example.com/role"], "test");
    assert_eq!(labels["kubernetes.io/hostname"], NODE);
    assert_eq!(labels["kubernetes.io/os"], "linux");
    let annotations = &node["metadata"]["annotations"];
    let attach = "volumes.kubernetes.io/controller-managed-attach-detach";
    assert_eq!(annotations[attach], "true");
    assert_eq!(node["spec"]["providerID"], "test://1");
    let taint = json!({ "key": "example.com/only", "value": "me", "effect": "PreferNoSchedule" });
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(taints.contains(&taint), "{taints:?}");
    let status = &node["status"];
    let addresses = json!([
        { "type": "InternalIP", "address": ADDRESS },
        { "type": "Hostname", "address": NODE },
    ]);
    assert_eq!(status["addresses"], addresses);
    assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], json!(10250));
    assert_eq!(status["allocatable"]["pods"], "110");
    let version = status["nodeInfo"]["kubeletVersion"].as_str().unwrap();
    assert!(version.starts_with("v1.36."), "{version}");
    wait_for("its images and events are known", DEADLINE, || async {
        let node = cluster.get(&["node", NODE]);
        let events = cluster.kubectl(&["describe", "node", NODE]);
        let images = node["status"]["images"].as_array().map_or(0, Vec::len);
        let ready = events.contains("Node node1 status is now: NodeReady");
        holds(images > 0 && ready, format!("{images} images\n{events}"))
    })
    .await;
    let owner = &lease(&cluster)["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], node["metadata"]["uid"]);
    let renewed = || lease(&cluster)["spec"]["renewTime"].clone();
    let before = renewed();
    let update = ("update".to_owned(), "leases".to_owned());
    wait_for("the node only renews its lease", DEADLINE, || async {
        let rest = SignedDuration::try_from(REST).unwrap();
        let sent = counts(&cluster.requests(Timestamp::now() - rest));
        holds(sent.keys().eq([&update]), format!("{sent:?}"))
    })
    .await;
    assert_ne!(renewed(), before);
}

pub async fn a_node_that_is_deleted_registers_again() {
    let cluster = Cluster::start_with_flags(&[]);
    let uid = || cluster.get(&["node", NODE])["metadata"]["uid"].clone();
    let before = uid();
    cluster.kubectl(&["delete", "node", NODE]);
    cluster.wait("create", &format!("node/{NODE}"));
    cluster.wait("condition=Ready", &format!("node/{NODE}"));
    assert_ne!(uid(), before);
    wait_for("the lease is the new node's", DEADLINE, || async {
        let owners = lease_owners(&cluster);
        holds(owners == json!(uid()), owners.to_string())
    })
    .await;
}

/// The lease is gone for a moment: it goes with the node that it belonged to.
fn lease_owners(cluster: &Cluster) -> Value {
    let args = ["get", "lease", "-n", "kube-node-lease", NODE, "-o", "json"];
    let lease = cluster.try_kubectl(&args).unwrap_or_default();
    let lease: Value = serde_json::from_str(&lease).unwrap_or_default();
    lease["metadata"]["ownerReferences"][0]["uid"].clone()
}
