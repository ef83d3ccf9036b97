//! Archives of containers, and what the first kubelets reported of a pod and the machine.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::node::{Node, WAIT_LIMIT};
use crate::pods::simple;
use crate::support::fake_runtime::{FakeRuntime, Rpc};
use crate::support::http;

impl Node {
    async fn told_by_socket(&self, method: &str, target: &str) -> (u16, String) {
        let socket = self.path("root/kubelet.sock");
        http::local(&socket, method, target, "").await.expect("an answer")
    }
}

#[tokio::test]
async fn a_running_container_is_checkpointed_into_the_root_directory() {
    let node = Node::started().await;
    node.manifests.put("web.yaml", &simple("web").to_string());
    let runs = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) == 1;
    node.fake.wait_until("it runs", WAIT_LIMIT, runs).await;
    node.wait_phase("web", "Running").await;
    let (code, body) =
        node.told_by_socket("POST", "/checkpoint/default/web-node1/main?timeout=7").await;
    assert_eq!(code, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    let path = std::path::Path::new(answer["items"][0].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(path).unwrap(), "state");
    let directory = path.parent().unwrap();
    assert_eq!(directory, node.path("root/checkpoints"));
    let mode = std::fs::metadata(directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let calls = node.fake.calls_of(Rpc::CheckpointContainer);
    assert!(calls.len() == 1 && calls[0].detail.ends_with(" 7"), "{calls:?}");

    let rows = [
        ("POST", "/checkpoint/default/none/c", 404),
        ("POST", "/checkpoint/default/web-node1/none", 404),
        ("POST", "/checkpoint/default/web-node1/main?timeout=soon", 400),
        ("GET", "/checkpoint/default/web-node1/main", 405),
    ];
    for (method, target, expected) in rows {
        let (code, body) = node.told_by_socket(method, target).await;
        assert_eq!(code, expected, "{target}: {body}");
    }
    assert_eq!(node.fake.calls_of(Rpc::CheckpointContainer).len(), 1);
}

#[tokio::test]
async fn the_first_kubelets_questions_are_answered() {
    let node = Node::started().await;
    node.manifests.put("web.yaml", &simple("web").to_string());
    let runs = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) == 1;
    node.fake.wait_until("it runs", WAIT_LIMIT, runs).await;
    let (code, body) =
        node.told_by_socket("GET", "/podInfo?podID=web-node1&podNamespace=default").await;
    assert_eq!(code, 200, "{body}");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert!(status["phase"].is_string(), "{status}");
    let (code, body) = node.told_by_socket("GET", "/spec/").await;
    assert_eq!(code, 200);
    let machine: Value = serde_json::from_str(&body).unwrap();
    assert!(
        machine["num_cores"].as_u64() > Some(0) && machine["memory_capacity"].as_u64() > Some(0)
    );
    let (code, body) = node.told_by_socket("GET", "/stats/").await;
    assert_eq!(code, 200, "{body}");
    let machine: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(machine["name"], "/");
    assert!(machine["stats"][0]["memory"]["usage"].as_u64() > Some(0), "{machine}");
    let rows = [
        ("/stats/?num_stats=many", 400, "num_stats"),
        ("/stats/container?containerName=/none/such", 404, "/none/such"),
        ("/stats/none/c", 404, "pod does not exist"),
        ("/stats/default/web-node1/other/c", 404, "another UID"),
        ("/stats/web-node1/none", 404, "container not found"),
        // A container of this runtime has no process, and so no cgroup.
        ("/stats/web-node1/main", 404, "no running process in a cgroup"),
        ("/podInfo?podNamespace=default", 400, "podID"),
        ("/podInfo?podID=none&podNamespace=default", 404, "pod does not exist"),
        ("/podInfo?podID=web-node1&podNamespace=default&UUID=other", 404, "UID"),
    ];
    for (target, expected, why) in rows {
        let (code, body) = node.told_by_socket("GET", target).await;
        assert_eq!(code, expected, "{target}: {body}");
        assert!(body.contains(why), "{target}: {body}");
    }
}
