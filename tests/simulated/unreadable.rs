//! Sandboxes and containers that the runtime lists and whose status it cannot give.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, OverlapWatch, WAIT_LIMIT, full, phase, runs, status_of};
use crate::pods::{container, pod, simple, version, with, with_spec};
use crate::support::fake_runtime::{Behaviour, Call, ContainerView, FakeRuntime, Fault, Rpc};
use crate::support::wait::{holds, wait_for};

/// How long something that must not happen is waited for.
const A_WHILE: Duration = Duration::from_millis(1500);

/// The first call of a kind about a pod.
fn first(node: &Node, name: &str, rpc: Rpc) -> Call {
    let mut calls = node.calls(name, rpc);
    assert!(!calls.is_empty(), "no {rpc}");
    calls.remove(0)
}

fn ended(call: &Call) -> tokio::time::Instant {
    call.at + call.took.expect("it has ended")
}

fn running(fake: &FakeRuntime, name: &str) -> usize {
    let pods = fake.pods();
    let of_name = pods.iter().filter(|pod| pod.name == full(name));
    let containers = of_name.flat_map(|pod| &pod.containers);
    containers.filter(|c| ContainerView::is_running(c)).count()
}

/// Starts the kubelet and waits until it wants the pod and has tried to read it.
async fn restarted(node: &mut Node, name: &str, unreadable: Fault) {
    node.wait_phase(name, "Running").await;
    node.stop().await;
    node.fake.clear_calls();
    node.fake.inject(unreadable);
    node.start().await;
    node.wait_pod(name, "it is shown", WAIT_LIMIT, |_| true).await;
    let tried = |fake: &FakeRuntime| fake.count(Rpc::ContainerStatus) > 0;
    node.fake.wait_until("it is read", WAIT_LIMIT, tried).await;
    // Its first sync has begun by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test]
async fn a_container_that_was_never_read_is_stopped_with_its_hook_before_its_sandbox() {
    let mut node = Node::started().await;
    let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}});
    let short = json!({"terminationGracePeriodSeconds": 5});
    let web = with_spec(pod("web", &[with(container("main"), hook)]), short);
    node.put(&web);
    node.wait_runs("web").await;
    restarted(&mut node, "web", Fault::hang(Rpc::ContainerStatus)).await;
    node.remove("web");
    let down = |fake: &FakeRuntime| fake.pod(&full("web")).is_none_or(|pod| !pod.ready);
    node.fake.wait_until("the sandbox is stopped", WAIT_LIMIT, down).await;
    let hook = first(&node, "web", Rpc::ExecSync);
    let stop = first(&node, "web", Rpc::StopContainer);
    let sandbox = first(&node, "web", Rpc::StopPodSandbox);
    assert!(ended(&hook) <= stop.at && ended(&stop) <= sandbox.at);
    node.wait_removed("web").await;
}

#[tokio::test]
async fn no_sandbox_is_stopped_before_a_list_says_that_no_container_of_it_runs() {
    let mut node = Node::started().await;
    node.put(&simple("web"));
    let main = node.wait_runs("web").await;
    restarted(&mut node, "web", Fault::hang(Rpc::ContainerStatus)).await;
    for rpc in [Rpc::ListContainers, Rpc::StreamContainers] {
        node.fake.inject(Fault::fail(rpc, Code::Internal, "no list today"));
    }
    // It says that it has stopped and has not.
    node.fake.behave("main", Behaviour::ignores_term());
    node.fake.inject(Fault::fail(Rpc::StopContainer, Code::Internal, "no"));
    node.remove("web");
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped by its id", WAIT_LIMIT, stopped).await;
    assert_eq!(first(&node, "web", Rpc::StopContainer).subject.id, main.id);
    let harm = |fake: &FakeRuntime| fake.count(Rpc::StopPodSandbox) > 0;
    assert!(node.never(A_WHILE, harm).await);
    node.fake.clear_faults();
    node.wait_removed("web").await;
}

#[tokio::test]
async fn a_successor_does_not_start_beside_a_container_that_was_never_read() {
    let mut node = Node::started().await;
    let two = |v: &str| {
        let args = json!({"args": [v]});
        pod("web", &[with(container("main"), args.clone()), with(container("other"), args)])
    };
    node.put(&two("v1"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.stop().await;
    node.fake.clear_calls();
    let old = node.fake.pod(&full("web")).unwrap();
    let word = format!("{}/other", full("web"));
    node.fake.inject(Fault::hang(Rpc::ContainerStatus).only(&word));
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    node.put(&two("v2"));
    node.start().await;
    let next = |fake: &FakeRuntime| {
        let main = fake.container(&format!("{}/main", full("web")));
        main.is_some_and(|c| c.is_running() && c.config.args == ["v2"])
    };
    node.fake.wait_until("the successor runs", WAIT_LIMIT, next).await;
    overlaps.assert_never();
    let ids: Vec<_> =
        node.calls("web", Rpc::StopContainer).into_iter().map(|call| call.subject.id).collect();
    assert!(old.containers.iter().all(|c| ids.contains(&c.id)), "{ids:?}");
}

#[tokio::test]
async fn a_pod_that_cannot_be_read_says_so_with_the_runtimes_words() {
    let mut node = Node::started().await;
    node.put(&simple("web"));
    let main = node.wait_runs("web").await;
    let broken = Fault::fail(Rpc::ContainerStatus, Code::Internal, "the shim is broken");
    restarted(&mut node, "web", broken).await;
    let text = "error determining status: ";
    wait_for("an event says so", WAIT_LIMIT, async || {
        let events = node.events().await;
        let said = events.contains("FailedSync")
            && events.contains(text)
            && events.contains("desc = the shim is broken");
        holds(said, events)
    })
    .await;
    let reported = node
        .explained("web", "it is in the history", |reported| reported.to_string().contains(text))
        .await
        .to_string();
    assert!(reported.contains("the shim is broken"), "{reported}");
    assert!(reported.contains(&main.id[..13]), "{reported}");
    node.fake.clear_faults();
    node.wait_pod("web", "it is well", WAIT_LIMIT, |pod| runs(pod, "main")).await;
}

#[tokio::test]
async fn a_superseded_instance_that_cannot_be_read_holds_nothing_up() {
    let mut node = Node::started().await;
    node.put(&simple("web"));
    let first = node.wait_runs("web").await;
    node.fake.exit("main", 1);
    let again = |fake: &FakeRuntime| {
        let main = fake.container(&format!("{}/main", full("web")));
        main.is_some_and(|c| c.is_running() && c.id != first.id)
    };
    node.fake.wait_until("it runs again", WAIT_LIMIT, again).await;
    let broken = Fault::fail(Rpc::ContainerStatus, Code::Internal, "the shim is broken");
    restarted(&mut node, "web", broken.only(&first.id)).await;
    node.fake.exit("main", 1);
    node.wait_pod("web", "it restarts", WAIT_LIMIT, |pod| {
        status_of(pod, "main").is_some_and(|s| s.restart_count == 2)
    })
    .await;
    node.remove("web");
    node.wait_removed("web").await;
}

#[tokio::test]
async fn a_pod_whose_end_cannot_be_read_makes_way_for_its_successor() {
    let node = Node::started().await;
    node.put(&version("web", "v1"));
    let main = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    let broken = Fault::fail(Rpc::ContainerStatus, Code::Internal, "the shim is broken");
    node.fake.inject(broken.only(&main.id));
    node.put(&version("web", "v2"));
    let next = |fake: &FakeRuntime| {
        let main = fake.container(&format!("{}/main", full("web")));
        main.is_some_and(|c| c.is_running() && c.config.args == ["v2"]) && fake.pods().len() == 1
    };
    node.fake.wait_until("the successor runs alone", WAIT_LIMIT, next).await;
    assert_eq!(phase(&node.wait_phase("web", "Running").await), "Running");
    assert_eq!(running(&node.fake, "web"), 1);
}

#[tokio::test]
async fn a_runtime_that_reads_slowly_costs_an_orphan_no_hook() {
    let mut node = Node::new().await;
    let hook = r#"{"exec":{"command":["bye"]}}"#;
    let plant = Plant::of_a_kubelet("lost")
        .made_for_a_file()
        .noting("io.kubernetes.container.preStopHandler", hook);
    Planter::new(&node.fake).await.pod(&plant).await;
    node.fake.inject(Fault::delay(Rpc::ContainerStatus, Duration::from_secs(2)));
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pods().is_empty();
    node.fake.wait_until("the orphan is removed", WAIT_LIMIT, gone).await;
    assert_eq!(node.fake.count(Rpc::ExecSync), 1);
}

#[tokio::test]
async fn an_orphan_of_which_something_can_never_be_read_is_stopped_and_removed() {
    let two = pod("lost", &[container("main"), container("other")]);
    let broken = |rpc| Fault::fail(rpc, Code::Internal, "the shim is broken");
    for (fault, is_sandbox) in [
        (broken(Rpc::ContainerStatus), false),
        (broken(Rpc::PodSandboxStatus), true),
        (Fault::hang(Rpc::ContainerStatus), false),
    ] {
        let mut node = Node::started().await;
        node.put(&two);
        let is_up = |fake: &FakeRuntime| running(fake, "lost") == 2;
        node.fake.wait_until("it runs", WAIT_LIMIT, is_up).await;
        node.wait_phase("lost", "Running").await;
        node.stop().await;
        node.remove("lost");
        let lost = node.fake.pod(&full("lost")).unwrap();
        let mut ids: Vec<_> = lost.containers.iter().map(|one| one.id.clone()).collect();
        let unreadable = if is_sandbox { &lost.id } else { &ids[1] };
        node.fake.inject(fault.only(unreadable));
        node.fake.clear_calls();
        node.start().await;
        node.wait_removed("lost").await;
        let stops = node.calls("lost", Rpc::StopContainer).into_iter();
        let mut stopped: Vec<_> = stops.map(|call| call.subject.id).collect();
        ids.sort();
        stopped.sort();
        stopped.dedup();
        assert_eq!(stopped, ids);
        wait_for("its directory is gone", WAIT_LIMIT, async || {
            let left = node.entries("root/pods");
            holds(left.is_empty(), format!("{left:?}"))
        })
        .await;
        let (_, metrics) = node.get("/metrics").await;
        let text = "kubelet_orphaned_runtime_pods_total 1";
        assert!(metrics.contains(text), "{metrics}");
    }
}
