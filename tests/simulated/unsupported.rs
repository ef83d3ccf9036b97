//! Pods of the API server that need what this kubelet does not support: they wait, as with the Go kubelet for a volume
//! that cannot be mounted, because a controller replaces a failed pod at once, without an end.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api_source::{bound, joined, path, wait_event, wait_runs};
use crate::node::WAIT_LIMIT;
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{FakeRuntime, Rpc};
use crate::support::wait::{holds, wait_for};

/// Each volume, and what the event says of it.
fn volumes() -> Vec<(&'static str, Value, &'static str)> {
    let certificate = json!({"sources": [
        {"serviceAccountToken": {"path": "token"}},
        {"podCertificate": {"signerName": "x/y", "keyType": "ED25519"}},
    ]});
    vec![
        ("rbd", json!({"rbd": {"monitors": ["m"], "image": "i"}}), "source rbd"),
        ("cephfs", json!({"cephfs": {"monitors": ["m"]}}), "source cephfs"),
        (
            "git",
            json!({"gitRepo": {"repository": "r"}}),
            "git-repo volume plugin has been disabled",
        ),
        ("certificate", json!({"projected": certificate}), "podCertificate"),
        ("medium", json!({"emptyDir": {"medium": "Tape"}}), "emptyDir medium"),
    ]
}

/// A pod whose container mounts this volume beside an emptyDir.
fn mounting(name: &str, mut volume: Value) -> Value {
    volume["name"] = json!("data");
    let mut pod = bound(name);
    pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {}}, volume]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/data"},
    ]);
    pod
}

fn phase(api: &FakeApiServer, name: &str) -> Option<Value> {
    Some(api.object(&path(name))?["status"]["phase"].clone())
}

#[tokio::test]
async fn a_pod_with_a_volume_that_is_not_supported_waits_with_an_event_until_it_is_deleted() {
    let (mut node, api) = joined().await;
    for (name, volume, _) in volumes() {
        api.put(&path(name), mounting(name, volume));
    }
    node.start().await;
    for (name, _, what) in volumes() {
        wait_event(&node, what).await;
        wait_for("it is shown as waiting", WAIT_LIMIT, async || {
            let status = api.object(&path(name)).unwrap()["status"].clone();
            let reason = &status["containerStatuses"][0]["state"]["waiting"]["reason"];
            let waits = status["phase"] == "Pending" && reason == "ContainerCreating";
            holds(waits, status.to_string())
        })
        .await;
    }
    // Not after a restart of the kubelet, either.
    node.stop().await;
    node.start().await;
    wait_event(&node, "FailedMount").await;
    let ended = |fake: &FakeRuntime| {
        let failed = |(name, ..): (&str, _, _)| phase(&api, name) != Some(json!("Pending"));
        fake.count(Rpc::RunPodSandbox) > 0 || volumes().into_iter().any(failed)
    };
    assert!(node.never(Duration::from_secs(2), ended).await);
    for (name, ..) in volumes() {
        let mut pod = api.object(&path(name)).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        api.put(&path(name), pod);
    }
    for (name, ..) in volumes() {
        wait_for("it is gone from the API server", WAIT_LIMIT, async || {
            holds(api.object(&path(name)).is_none(), name)
        })
        .await;
    }
    wait_for("nothing is left", WAIT_LIMIT, async || {
        let left = node.entries("root/pods");
        holds(left.is_empty(), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_volume_that_no_container_mounts_is_not_needed() {
    let (mut node, api) = joined().await;
    let mut pod = bound("web");
    pod["spec"]["volumes"] = json!([{"name": "data", "rbd": {"monitors": ["m"], "image": "i"}}]);
    api.put(&path("web"), pod);
    node.start().await;
    wait_runs(&node, "web").await;
}
