//! Static pods on a node without an API server: those that it has no room for are rejected, those that run stay.

use kubelet::host::{HostMachine, huge_pages};
use serde_json::{Value, json};
use std::time::Duration;

use crate::api_source::{bound, ids, joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::pods::{container, pod, simple, with, with_spec};
use crate::support::fake_runtime::{FakeRuntime, Fault, Rpc};
use crate::support::wait::{holds, wait_for};

pub(crate) fn on_port(name: &str) -> Value {
    let ports = json!({"ports": [{"containerPort": 80, "hostPort": 8080}]});
    pod(name, &[with(container("main"), ports)])
}

/// The reason and message of a rejected pod.
async fn rejection(node: &Node, pod: &Value) -> (String, String) {
    node.put(pod);
    let name = pod["metadata"]["name"].as_str().unwrap();
    let status = node.wait_phase(name, "Failed").await.status.unwrap();
    (status.reason.unwrap_or_default(), status.message.unwrap_or_default())
}

#[tokio::test]
async fn a_node_without_an_api_server_rejects_pods_that_it_has_no_room_for() {
    let mut node = Node::new().await;
    node.configure("maxPods: 2");
    node.start().await;
    node.put(&on_port("web"));
    node.wait_runs("web").await;
    let (reason, message) = rejection(&node, &on_port("other")).await;
    assert_eq!(reason, "NodePorts", "{message}");
    let text =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    assert!(message.contains(text), "{message}");
    let huge = json!({"resources": {"requests": {"memory": "1Pi"}}});
    let huge = pod("huge", &[with(container("main"), huge)]);
    let (reason, message) = rejection(&node, &huge).await;
    assert_eq!(reason, "UnexpectedAdmissionError", "{message}");
    let text = "no set of running pods found to reclaim resources: [(res: memory, q: ";
    assert!(message.contains(text), "{message}");
    // What was rejected takes no room.
    node.put(&simple("second"));
    node.wait_runs("second").await;
    let (reason, message) = rejection(&node, &simple("third")).await;
    assert_eq!(reason, "UnexpectedAdmissionError", "{message}");
    assert!(message.contains("[(res: pods, q: 1), ]"), "{message}");

    // A configuration with less room stops nothing that runs.
    node.stop().await;
    node.configure_anew();
    node.configure("maxPods: 1");
    node.start().await;
    for name in ["web", "second"] {
        node.wait_phase(name, "Running").await;
    }
}

#[tokio::test]
async fn a_pod_that_was_rejected_does_not_take_the_place_of_one_that_ran_when_both_are_read_at_a_restart()
 {
    let mut node = Node::new().await;
    node.start().await;
    node.put(&on_port("middle"));
    node.wait_runs("middle").await;
    // Whatever the order of names or files is.
    for name in ["early", "very-late"] {
        assert_eq!(rejection(&node, &on_port(name)).await.0, "NodePorts");
    }
    node.stop().await;
    node.start().await;
    for name in ["early", "very-late"] {
        node.wait_phase(name, "Failed").await;
    }
    node.wait_phase("middle", "Running").await;
    // After the machine was started again nothing runs, and what was admitted still comes first.
    node.stop().await;
    node.fake.kill_sandbox("middle");
    node.start().await;
    for name in ["early", "very-late"] {
        node.wait_phase(name, "Failed").await;
    }
    node.wait_runs("middle").await;
}

#[tokio::test]
async fn pods_that_run_are_not_rejected_if_the_runtime_is_slow_to_show_them_after_a_restart() {
    let (mut node, api) = joined().await;
    let names = ["one", "two"];
    for name in names {
        api.put(&path(name), bound(name));
    }
    node.start().await;
    let phase = |name: &str| {
        let pod = api.object(&path(name)).unwrap();
        pod["status"]["phase"].clone()
    };
    for name in names {
        wait_runs(&node, name).await;
        wait_for("its status was sent", WAIT_LIMIT, async || {
            holds(phase(name) == "Running", phase(name).to_string())
        })
        .await;
    }
    let before = names.map(|name| ids(&node.fake, name));
    node.stop().await;
    node.configure("maxPods: 1");
    for rpc in [Rpc::PodSandboxStatus, Rpc::ContainerStatus] {
        node.fake.inject(Fault::hang(rpc));
    }
    node.fake.clear_calls();
    node.start().await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    assert!(node.never(Duration::from_secs(3), stopped).await);
    for name in names {
        assert_eq!(phase(name), "Running", "{name}");
    }
    node.fake.clear_faults();
    assert!(node.never(Duration::from_secs(1), stopped).await);
    assert_eq!(names.map(|name| ids(&node.fake, name)), before);
}

#[tokio::test]
async fn a_container_without_limits_is_told_what_is_not_reserved_on_a_node_without_an_api_server() {
    let mut node = Node::new().await;
    node.configure("systemReserved: {cpu: 250m, memory: 100Mi}");
    node.configure("kubeReserved: {cpu: 50m, memory: 28Mi}");
    node.configure("evictionHard: {memory.available: 64Mi}");
    node.start().await;
    let field = |resource: &str, divisor: &str| json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}});
    let env = json!({"env": [
        {"name": "CPU", "valueFrom": field("limits.cpu", "1m")},
        {"name": "MEMORY", "valueFrom": field("limits.memory", "1")},
    ]});
    node.put(&pod("web", &[with(container("main"), env)]));
    node.wait_runs("web").await;
    let config = node.fake.container("web-node1/main").unwrap().config;
    let value = |name: &str| {
        let value = config.envs.iter().find(|env| env.key == name);
        value.map(|env| String::from_utf8_lossy(&env.value).parse::<i64>().unwrap())
    };
    let machine = HostMachine::read().unwrap();
    assert_eq!(value("CPU"), Some(i64::from(machine.cpus) * 1000 - 300), "{:?}", config.envs);
    let huge_pages: u64 = huge_pages().iter().map(|(_, bytes)| bytes).sum();
    let memory = machine.memory_bytes - (192 << 20) - huge_pages;
    assert_eq!(value("MEMORY"), i64::try_from(memory).ok());
}

#[tokio::test]
async fn a_running_pod_is_not_ended_by_a_rule_that_changed_while_no_kubelet_ran() {
    let mut node = Node::new().await;
    node.configure("allowedUnsafeSysctls: [net.core.somaxconn]");
    node.start().await;
    let sysctls = json!([{"name": "net.core.somaxconn", "value": "128"}]);
    let tuned = |name: &str| {
        let context = json!({"securityContext": {"sysctls": sysctls}});
        with_spec(simple(name), context)
    };
    node.put(&tuned("web"));
    let before = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.stop().await;
    node.configure_anew();
    node.put(&tuned("late"));
    node.fake.clear_calls();
    node.start().await;
    // One that does not run is rejected.
    let status = node.wait_phase("late", "Failed").await.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    wait_for("an event of the running one says so", WAIT_LIMIT, async || {
        let events = node.events().await;
        let text = "The pod keeps running although it would not be admitted now: forbidden sysctl";
        holds(events.contains(text), events)
    })
    .await;
    node.wait_phase("web", "Running").await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    assert!(node.never(Duration::from_millis(500), stopped).await);
    assert_eq!(node.wait_runs("web").await.id, before.id);
}
