//! Pods that the node does not admit.

use std::time::Duration;

use serde_json::{Value, json};

use crate::node::{Node, WAIT_LIMIT, full, phase};
use crate::pods::{simple, with_metadata, with_spec};
use crate::support::fake_runtime::Rpc;

fn tuned(name: &str) -> Value {
    let sysctls = json!([{"name": "net.core.somaxconn", "value": "1024"}]);
    with_spec(simple(name), json!({"securityContext": {"sysctls": sysctls}}))
}

async fn wait_refused(node: &Node, name: &str) {
    let pod = node.wait_phase(name, "Failed").await;
    let status = pod.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: forbidden sysctl: \"net.core.somaxconn\" not allowlisted")
    );
}

#[tokio::test]
async fn a_refused_pod_is_not_set_up_and_another_configuration_may_allow_it() {
    let mut node = Node::new().await;
    node.start().await;
    node.put(&tuned("web"));
    wait_refused(&node, "web").await;
    assert!(node.entries("root/pods").is_empty());
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 0);
    node.stop().await;

    node.configure("allowedUnsafeSysctls: [\"net.core.*\"]");
    node.start().await;
    node.wait_runs("web").await;
    let sandbox = node.fake.pod(&full("web")).unwrap().config.linux.unwrap();
    assert_eq!(sandbox.sysctls["net.core.somaxconn"], "1024");
}

#[tokio::test]
async fn a_refused_pod_goes_with_its_manifest_and_may_come_back_under_its_uid() {
    let node = Node::started().await;
    let uid = json!({"uid": "11111111-2222-3333-4444-555555555555"});
    node.put(&with_metadata(tuned("web"), uid.clone()));
    wait_refused(&node, "web").await;
    node.remove("web");
    node.wait_gone("web").await;
    node.put(&with_metadata(simple("web"), uid.clone()));
    node.wait_runs("web").await;
    // Edited in place, it is refused, and then allowed again.
    node.put(&with_metadata(tuned("web"), uid.clone()));
    wait_refused(&node, "web").await;
    let runs = |fake: &crate::support::fake_runtime::FakeRuntime| {
        let main = fake.container(&format!("{}/main", full("web")));
        main.is_some_and(|container| container.is_running())
    };
    node.fake.wait_until("the old one has stopped", WAIT_LIMIT, |fake| !runs(fake)).await;
    assert!(node.never(Duration::from_millis(500), runs).await);
    let pod = node.pod("web").await.unwrap();
    assert_eq!(phase(&pod), "Failed");
    node.put(&with_metadata(simple("web"), uid));
    node.wait_runs("web").await;
    let running = |pod: &_| crate::node::runs(pod, "main");
    let pod = node.wait_pod("web", "runs", WAIT_LIMIT, running).await;
    assert_eq!(pod.status.unwrap().reason, None);
}
