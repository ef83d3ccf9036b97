//! Exclusive CPUs and memory: who gets which, what changes for the others, and what a restart finds again.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use kubelet::resources::pod_resources::v1::{
    AllocatableResourcesRequest, ContainerMemory, ListPodResourcesRequest,
};

use crate::api_source::{bound, joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT, phase};
use crate::pods::{container, pod, simple, with, with_metadata};
use crate::resize::{request_resize, sized, wait_resized};
use crate::support::api_server::Mode;
use crate::support::fake_runtime::{FakeRuntime, Fault, PodView, Rpc};
use crate::support::wait::{holds, wait_for};
use crate::sysfs;

const UID: &str = "0b9d3f1c-0000-4000-8000-000000000001";

/// A node with four CPUs, of which the first is reserved, and 8 GiB.
async fn node() -> Node {
    let mut node = Node::new().await;
    configure(&mut node);
    node
}

fn configure(node: &mut Node) {
    sysfs::four_cpus(&node.path("sys"), 1);
    node.configure("cpuManagerPolicy: static");
    node.configure("cpuManagerReconcilePeriod: 100ms");
    node.configure("reservedSystemCPUs: \"0\"");
    node.configure("memoryManagerPolicy: Static");
    node.configure("systemReserved: {memory: 1Gi}");
    node.configure("reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]");
}

/// A Guaranteed pod with so many CPUs.
fn guaranteed(name: &str, cpu: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": "64Mi"});
    let resources = json!({"resources": {"requests": amounts, "limits": amounts}});
    pod(name, &[with(container("main"), resources)])
}

/// What the container of a pod was created with.
async fn created(node: &Node, name: &str) -> (String, String, i64) {
    let linux = node.wait_runs(name).await.config.linux.unwrap();
    let resources = linux.resources.unwrap();
    (resources.cpuset_cpus, resources.cpuset_mems, resources.cpu_quota)
}

async fn wait_update(node: &Node, name: &str, cpus: &str) {
    let wanted = format!("cpuset_cpus: \"{cpus}\"");
    wait_for("its CPUs are updated", WAIT_LIMIT, || async {
        let calls = node.calls(name, Rpc::UpdateContainerResources);
        let last = calls.iter().rfind(|call| call.code == Some(Code::Ok));
        let done = last.is_some_and(|call| call.detail.contains(&wanted));
        holds(done, format!("{calls:?}"))
    })
    .await;
}

fn state(node: &Node, name: &str) -> String {
    std::fs::read_to_string(node.path("root").join(name)).unwrap_or_default()
}

#[tokio::test]
async fn a_guaranteed_pod_has_its_cpus_for_itself_and_keeps_them_over_a_restart() {
    let mut node = node().await;
    node.start().await;
    node.put(&simple("shared"));
    let all = ("0-3".to_owned(), String::new(), 0);
    assert_eq!(created(&node, "shared").await, all);
    node.put(&guaranteed("pinned", "1"));
    let own = ("1".to_owned(), "0".to_owned(), -1);
    assert_eq!(created(&node, "pinned").await, own);
    let sandbox = node.fake.pod("pinned-node1").unwrap().config.linux.unwrap();
    assert_eq!(sandbox.resources.unwrap().cpu_quota, -1);
    wait_update(&node, "shared", "0,2-3").await;
    let saved = state(&node, "cpu_manager_state");
    assert!(saved.contains("\"defaultCpuSet\":\"0,2-3\""), "{saved}");
    assert!(saved.contains("{\"main\":\"1\"}"), "{saved}");
    let saved = state(&node, "memory_manager_state");
    assert!(saved.contains("\"size\":67108864"), "{saved}");

    node.stop().await;
    node.fake.clear_calls();
    node.start().await;
    node.put(&simple("late"));
    assert_eq!(created(&node, "late").await.0, "0,2-3");
    let quiet =
        node.never(Duration::from_secs(1), |fake| fake.count(Rpc::UpdateContainerResources) > 1);
    assert!(quiet.await, "nothing has changed");
    let updates = node.calls("pinned", Rpc::UpdateContainerResources);
    assert!(updates.is_empty(), "{updates:?}");
    let updates = node.calls("shared", Rpc::UpdateContainerResources);
    assert!(updates.is_empty(), "{updates:?}");

    node.remove("pinned");
    node.wait_removed("pinned").await;
    wait_update(&node, "shared", "0-3").await;
    wait_update(&node, "late", "0-3").await;
    wait_for("the state is saved", WAIT_LIMIT, || async {
        let saved = state(&node, "cpu_manager_state");
        let free = saved.contains("\"defaultCpuSet\":\"0-3\"") && !saved.contains("entries");
        holds(free, saved)
    })
    .await;
}

/// The API server is silent after a restart, so that only its running pods are known.
#[tokio::test]
async fn a_pod_that_is_not_known_yet_after_a_restart_keeps_its_cpus() {
    let (mut node, api) = joined().await;
    configure(&mut node);
    api.put(&path("web"), bound("web"));
    let mut pod = guaranteed("pinned", "1");
    pod["metadata"] = bound("pinned")["metadata"].clone();
    pod["spec"]["nodeName"] = json!("node1");
    api.put(&path("pinned"), pod);
    node.start().await;
    wait_runs(&node, "web").await;
    wait_runs(&node, "pinned").await;
    let has_its_cpu =
        |node: &Node| state(node, "cpu_manager_state").contains(r#""uid-of-pinned":{"main":"1"}"#);
    assert!(has_its_cpu(&node), "{}", state(&node, "cpu_manager_state"));

    node.stop().await;
    node.fake.kill_sandbox("pinned");
    api.answer(Mode::Silent);
    node.start().await;
    node.put(&guaranteed("late", "1"));
    assert_eq!(created(&node, "late").await.0, "2");
    let loses_it = |_: &FakeRuntime| !has_its_cpu(&node);
    assert!(node.never(Duration::from_secs(1), loses_it).await);
}

#[tokio::test]
async fn an_update_that_fails_is_tried_again() {
    let mut node = node().await;
    node.start().await;
    node.put(&simple("shared"));
    node.wait_runs("shared").await;
    let fault = Fault::fail(Rpc::UpdateContainerResources, Code::Unavailable, "not now");
    node.fake.inject(fault.times(2));
    node.put(&guaranteed("pinned", "2"));
    assert_eq!(created(&node, "pinned").await.0, "1-2");
    wait_update(&node, "shared", "0,3").await;
    let calls = node.calls("shared", Rpc::UpdateContainerResources);
    assert_eq!(calls.len(), 3, "{calls:?}");
}

#[tokio::test]
async fn a_pod_that_requests_more_cpus_than_there_are_is_rejected_and_holds_none() {
    let mut node = node().await;
    node.start().await;
    node.put(&guaranteed("first", "2"));
    assert_eq!(created(&node, "first").await.0, "1-2");
    node.put(&guaranteed("greedy", "2"));
    let rejected = node.wait_phase("greedy", "Failed").await;
    assert_eq!(phase(&rejected), "Failed");
    let status = rejected.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    let message = status.message.unwrap();
    let text = "no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]";
    assert!(message.contains(text), "{message}");
    node.put(&guaranteed("modest", "1"));
    assert_eq!(created(&node, "modest").await.0, "3");
}

#[tokio::test]
async fn a_pod_waits_for_the_cpus_of_one_that_is_being_stopped() {
    let mut node = node().await;
    node.start().await;
    let first = guaranteed("first", "2");
    let second = guaranteed("second", "2");
    let edited = with_metadata(guaranteed("second", "2"), json!({"labels": {"a": "b"}}));
    node.manifests.put("web.yaml", &first.to_string());
    assert_eq!(created(&node, "first").await.0, "1-2");
    // Another name, for which its requests count first, and the same name.
    let by_requests = "waiting for terminating pods: Node didn't have enough resource: cpu";
    let by_cpus = "waiting for exclusive CPUs and memory of terminating pods";
    for (pod, kept, text) in [(second, "first", by_requests), (edited, "second", by_cpus)] {
        node.fake.inject(Fault::hang(Rpc::StopContainer));
        let before = node.fake.pods();
        node.manifests.put("web.yaml", &pod.to_string());
        wait_for("an event says why it waits", WAIT_LIMIT, || async {
            let events = node.events().await;
            holds(events.contains(text), events)
        })
        .await;
        let begins = |fake: &FakeRuntime| fake.pods().len() > before.len();
        assert!(node.never(Duration::from_millis(500), begins).await);
        assert!(node.fake.container(&format!("{kept}-node1/main")).unwrap().is_running());
        node.fake.clear_faults();
        let replaced = |fake: &FakeRuntime| {
            let pods = fake.pods();
            let is_new = |pod: &PodView| before.iter().all(|old| old.id != pod.id);
            let runs = |pod: &PodView| pod.containers.iter().any(|one| one.is_running());
            pods.iter().any(|pod| is_new(pod) && runs(pod))
        };
        node.fake.wait_until("the new one runs", WAIT_LIMIT, replaced).await;
        assert_eq!(created(&node, "second").await.0, "1-2");
        node.wait_shown(1).await;
        node.wait_phase("second", "Running").await;
        wait_for("nothing of the old one is left", WAIT_LIMIT, || async {
            holds(node.fake.pods().len() == 1, "it is there")
        })
        .await;
    }
}

#[tokio::test]
async fn a_running_pod_for_which_no_cpus_are_left_moves_to_the_shared_ones() {
    let mut node = Node::new().await;
    sysfs::four_cpus(&node.path("sys"), 1);
    node.start().await;
    for name in ["one", "two"] {
        node.put(&guaranteed(name, "2"));
        assert_eq!(created(&node, name).await.0, "", "no policy yet");
    }
    node.stop().await;
    node.configure("cpuManagerPolicy: static");
    node.configure("cpuManagerReconcilePeriod: 100ms");
    node.configure("reservedSystemCPUs: \"0\"");
    node.start().await;
    let updated = |name: &str, cpus: &str| {
        let wanted = format!("cpuset_cpus: \"{cpus}\"");
        let calls = node.calls(name, Rpc::UpdateContainerResources);
        calls.iter().any(|call| call.detail.contains(&wanted))
    };
    wait_for("one pod has CPUs, the other shares the rest", WAIT_LIMIT, || async {
        let ways = [("one", "two"), ("two", "one")];
        let done = ways.iter().any(|(own, shared)| updated(own, "1-2") && updated(shared, "0,3"));
        holds(done, String::new())
    })
    .await;
    let events = node.events().await;
    let text = "The pod keeps running without exclusive CPUs and memory: Allocate failed due to not enough cpus available";
    assert!(events.contains(text), "{events}");
}

/// As the Go kubelet wrote it.
const STATE: &str = r#"{"policyName":"static","defaultCpuSet":"0-2","entries":{"0b9d3f1c-0000-4000-8000-000000000001":{"main":"3"}},"checksum":1700135330}"#;

#[tokio::test]
async fn the_state_of_the_go_kubelet_is_taken_over() {
    let mut node = node().await;
    std::fs::create_dir_all(node.path("root")).unwrap();
    std::fs::write(node.path("root/cpu_manager_state"), STATE).unwrap();
    let none = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
    std::fs::write(node.path("root/memory_manager_state"), none).unwrap();
    let pinned = guaranteed("pinned", "1");
    node.put(&with_metadata(pinned, json!({"uid": UID})));
    node.start().await;
    assert_eq!(created(&node, "pinned").await.0, "3");
    node.put(&simple("shared"));
    assert_eq!(created(&node, "shared").await.0, "0-2");
}

#[tokio::test]
async fn a_state_that_cannot_be_used_ends_the_start_and_says_what_to_do() {
    let mut node = node().await;
    std::fs::create_dir_all(node.path("root")).unwrap();
    let path = node.path("root/cpu_manager_state");
    std::fs::write(&path, STATE.replace("\"3\"", "\"2\"")).unwrap();
    let error = node.start_error().await;
    let expected = format!(
        "could not restore state from checkpoint: checkpoint is corrupted, please drain this node and delete the CPU manager checkpoint file {path:?} before restarting Kubelet"
    );
    assert!(error.contains(&expected), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), STATE.replace("\"3\"", "\"2\""));
    let other = r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":0}"#;
    std::fs::write(&path, other).unwrap();
    let error = node.start_error().await;
    let expected = "current set of available CPUs \"0-3\" doesn't match with CPUs in state \"0-7\"";
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn agents_read_which_containers_have_which_cpus_and_memory() {
    let mut node = node().await;
    node.start().await;
    node.put(&guaranteed("pinned", "2"));
    node.put(&simple("shared"));
    created(&node, "pinned").await;
    created(&node, "shared").await;
    let mut agent = crate::devices::agent(&node.path("root")).await;
    let list = agent.list(ListPodResourcesRequest {}).await.unwrap();
    let mut pods = list.into_inner().pod_resources;
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    let [pinned, shared] = pods.as_slice() else {
        panic!("{pods:?}");
    };
    let own = &pinned.containers[0];
    assert_eq!(own.cpu_ids, [1, 2]);
    let memory = |memory: &ContainerMemory| {
        let nodes = memory.topology.as_ref().unwrap().nodes.iter();
        let nodes: Vec<_> = nodes.map(|node| node.id).collect();
        (memory.memory_type.clone(), memory.size, nodes)
    };
    let shown: Vec<_> = own.memory.iter().map(memory).collect();
    assert_eq!(shown, [("memory".to_owned(), 64 << 20, vec![0])]);
    assert_eq!((shared.containers[0].cpu_ids.len(), shared.containers[0].memory.len()), (0, 0));
    let all =
        agent.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.cpu_ids, [1, 2, 3]);
    let shown: Vec<_> = all.memory.iter().map(memory).collect();
    assert_eq!(shown, [("memory".to_owned(), 7 << 30, vec![0])]);
}

#[tokio::test]
async fn updates_of_one_container_are_sent_one_after_the_other() {
    let (mut node, api) = joined().await;
    configure(&mut node);
    api.put(&path("web"), sized("web", 100, "64Mi"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    let rpc = Rpc::UpdateContainerResources;
    node.fake.inject(Fault::hang(rpc).only("web"));
    let updates = |fake: &FakeRuntime| {
        let mut calls = fake.calls_of(rpc);
        calls.retain(|call| call.subject.pod == "web");
        calls
    };
    request_resize(&api, "web", 200, "64Mi");
    let resizes = |fake: &FakeRuntime| updates(fake).len() == 1;
    node.fake.wait_until("it is resized", WAIT_LIMIT, resizes).await;
    // Takes CPUs away from the other pod, whose resize has not been answered.
    node.put(&guaranteed("pinned", "2"));
    assert_eq!(created(&node, "pinned").await.0, "1-2");
    let overlaps = |fake: &FakeRuntime| updates(fake).len() > 1;
    assert!(node.never(Duration::from_secs(1), overlaps).await);
    node.fake.release(rpc);
    let moved = |fake: &FakeRuntime| {
        let last = updates(fake).pop();
        last.is_some_and(|call| call.succeeded() && call.detail.contains("cpuset_cpus: \"0,3\""))
    };
    node.fake.wait_until("its CPUs are updated", WAIT_LIMIT, moved).await;
    wait_resized(&api, "web", "200m").await;
}
