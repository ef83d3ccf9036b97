//! Pods that clients post to the kubelet.

use serde_json::{Value, json};

use crate::node::{Node, WAIT_LIMIT};
use crate::support::fake_runtime::{FakeRuntime, Rpc};
use crate::support::http;

fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": image}]},
    })
}

fn list(pods: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "PodList", "items": pods}).to_string()
}

impl Node {
    async fn post(&self, target: &str, body: &str) -> (u16, String) {
        let socket = self.path("root/kubelet.sock");
        let answer = http::local(&socket, "POST", target, body).await;
        answer.expect("an answer")
    }
}

/// Names of the pods whose containers run.
fn running(fake: &FakeRuntime) -> Vec<String> {
    let mut names: Vec<String> = fake
        .pods()
        .iter()
        .filter(|pod| pod.containers.iter().any(|c| c.is_running()))
        .map(|pod| pod.name.clone())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn posted_pods_run_are_replaced_and_outlive_a_restart() {
    let mut node = Node::new().await;
    node.argue("--allow-posted-pods");
    node.start().await;
    let (code, taken) = node.post("/container", &pod("a", "img:1").to_string()).await;
    assert_eq!(code, 200, "{taken}");
    let taken: Value = serde_json::from_str(&taken).unwrap();
    assert_eq!(taken["items"][0]["metadata"]["name"], "a-node1");
    let runs = |names: &'static [&'static str]| move |fake: &FakeRuntime| running(fake) == names;
    node.fake.wait_until("it runs", WAIT_LIMIT, runs(&["a-node1"])).await;
    let both = list(&[pod("a", "img:1"), pod("b", "img:1")]);
    let (code, _) = node.post("/containers", &both).await;
    assert_eq!(code, 200);
    node.fake.wait_until("both run", WAIT_LIMIT, runs(&["a-node1", "b-node1"])).await;
    let starts = node.fake.count(Rpc::StartContainer);
    assert_eq!(starts, 2, "what is posted again as it was is left alone");

    node.stop().await;
    node.start().await;
    let (code, _) = node.post("/container", &pod("b", "img:2").to_string()).await;
    assert_eq!(code, 200);
    let edited = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) == 3;
    node.fake.wait_until("the edited one is another pod", WAIT_LIMIT, edited).await;
    node.fake.wait_until("the old one is gone", WAIT_LIMIT, runs(&["a-node1", "b-node1"])).await;

    let (code, _) = node.post("/containers", &list(&[])).await;
    assert_eq!(code, 200);
    node.fake.wait_until("none runs", WAIT_LIMIT, runs(&[])).await;
    assert_eq!(node.fake.count(Rpc::StartContainer), 3);
}

#[tokio::test]
async fn what_cannot_run_is_refused_by_its_field_and_nobody_posts_unless_allowed() {
    let mut node = Node::new().await;
    node.start().await;
    let (code, why) = node.post("/container", &pod("a", "img:1").to_string()).await;
    assert_eq!(code, 405, "{why}");
    assert!(why.contains("--allow-posted-pods"), "{why}");
    node.stop().await;
    node.argue("--allow-posted-pods");
    node.start().await;
    let (code, why) = node.post("/container", &pod("a", "").to_string()).await;
    assert_eq!(code, 400, "{why}");
    assert!(why.contains("spec.containers[0].image"), "{why}");
    let (code, why) = node.post("/containers", "{").await;
    assert_eq!(code, 400, "{why}");
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 0);
}
