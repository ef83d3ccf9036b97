//! Pods that no source has any more use what they have until their containers have stopped: another pod waits for it.

use std::time::Duration;

use kubelet::host::HostMachine;
use serde_json::{Value, json};

use crate::api_source::{joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::{container, pod, with, with_metadata};
use crate::resize::{allocatable, sized};
use crate::room::on_port;
use crate::support::fake_runtime::{FakeRuntime, Fault, PodView, Rpc};
use crate::support::wait::{holds, wait_for};

/// How long something that must not happen is waited for.
const A_WHILE: Duration = Duration::from_millis(500);

/// A pod that leaves no room for another one like it.
fn large(name: &str) -> Value {
    let milli = HostMachine::read().unwrap().cpus * 600;
    let resources = json!({"resources": {"requests": {"cpu": format!("{milli}m")}}});
    pod(name, &[with(container("main"), resources)])
}

fn find(fake: &FakeRuntime, pod: &Value) -> Option<PodView> {
    let name = full(pod["metadata"]["name"].as_str().unwrap());
    let mut pods = fake.pods().into_iter();
    pods.find(|found| found.name == name && found.namespace == pod["metadata"]["namespace"])
}

fn runs(fake: &FakeRuntime, pod: &Value) -> bool {
    let found = find(fake, pod);
    found.is_some_and(|pod| pod.containers.iter().any(|one| one.is_running()))
}

async fn wait_event(node: &Node, texts: [&str; 2]) {
    wait_for("an event says why it waits", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(texts.iter().all(|text| events.contains(text)), events)
    })
    .await;
}

/// A manifest becomes another pod, which needs what the first one has, while a kubelet runs or while none does.
async fn waits_until_the_first_has_stopped(first: Value, second: Value, obstacle: &str) {
    for edited_while_stopped in [false, true] {
        let mut node = Node::started().await;
        let put = |pod: &Value, node: &Node| node.manifests.put("web.yaml", &pod.to_string());
        put(&first, &node);
        let is_up = |fake: &FakeRuntime| runs(fake, &first);
        node.fake.wait_until("the first runs", WAIT_LIMIT, is_up).await;
        node.wait_phase(first["metadata"]["name"].as_str().unwrap(), "Running").await;
        node.fake.inject(Fault::hang(Rpc::StopContainer));
        if edited_while_stopped {
            node.stop().await;
        }
        put(&second, &node);
        if edited_while_stopped {
            node.start().await;
        }
        wait_event(&node, ["AdmissionPending", obstacle]).await;
        let begins = |fake: &FakeRuntime| find(fake, &second).is_some();
        assert!(node.never(A_WHILE, begins).await, "{edited_while_stopped}");
        assert!(runs(&node.fake, &first), "the first is being stopped");
        node.fake.clear_faults();
        let is_up = |fake: &FakeRuntime| {
            assert!(!(runs(fake, &first) && find(fake, &second).is_some()));
            runs(fake, &second)
        };
        node.fake.wait_until("the second runs", WAIT_LIMIT, is_up).await;
    }
}

#[tokio::test]
async fn a_pod_waits_for_the_ports_of_one_whose_manifest_was_moved_to_another_namespace() {
    let other = json!({"namespace": "other"});
    let second = with_metadata(on_port("web"), other);
    let obstacle = "Predicate NodePorts failed";
    waits_until_the_first_has_stopped(on_port("web"), second, obstacle).await;
}

#[tokio::test]
async fn a_pod_waits_for_the_cpu_of_one_whose_manifest_was_renamed() {
    let obstacle = "Node didn't have enough resource: cpu";
    waits_until_the_first_has_stopped(large("first"), large("second"), obstacle).await;
}

#[tokio::test]
async fn a_pod_waits_for_the_cpu_of_one_that_was_deleted_by_force() {
    let (mut node, api) = joined().await;
    node.start().await;
    let all = allocatable(&api).await;
    api.put(&path("first"), sized("first", all * 6 / 10, "64Mi"));
    wait_runs(&node, "first").await;
    node.fake.inject(Fault::hang(Rpc::StopContainer));
    api.remove(&path("first"));
    api.put(&path("second"), sized("second", all * 6 / 10, "64Mi"));
    let obstacle = "Node didn't have enough resource: cpu";
    wait_event(&node, ["AdmissionPending", obstacle]).await;
    let begins = |fake: &FakeRuntime| fake.pod("second").is_some();
    assert!(node.never(A_WHILE, begins).await);
    node.fake.clear_faults();
    wait_runs(&node, "second").await;
}
