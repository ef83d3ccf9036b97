//! What has to be shown and done while a pod is in the middle of something that takes long.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kubelet::base::clock;
use serde_json::{Value, json};

use crate::node::{Node, WAIT_LIMIT, full, phase, status_of, waits_for};
use crate::pods::{IMAGE, container, pod, simple, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, ExecOutcome, FakeRuntime, Fault, Pull, Rpc};
use crate::support::wait::{holds, wait_for};

const HOUR: Duration = Duration::from_secs(3600);
/// Enough for a deadline to pass and for what follows, on a busy machine.
const LATER: Duration = Duration::from_secs(60);

/// A container whose image takes an hour to come.
fn pulling(node: &Node, name: &str) -> Value {
    let image = "localhost/huge:1";
    let delay = HOUR;
    node.fake.on_pull(image, Pull { delay, ..Pull::default() });
    with(container(name), json!({"image": image}))
}

fn ready_to_start(pod: &Pod) -> &str {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    let found = conditions.find(|c| c.type_ == "PodReadyToStartContainers");
    found.map_or("", |condition| &condition.status)
}

fn exceeded(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|s| s.reason.as_deref());
    phase(pod) == "Failed" && reason == Some("DeadlineExceeded")
}

#[tokio::test]
async fn a_pod_is_ready_to_start_containers_once_its_sandbox_is_there_and_not_only_when_they_run() {
    let node = Node::started().await;
    node.fake.inject(Fault::hang(Rpc::RunPodSandbox));
    node.put(&pod("web", &[pulling(&node, "main")]));
    let requested = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) > 0;
    node.fake.wait_until("a sandbox is requested", WAIT_LIMIT, requested).await;
    let not_yet = |pod: &_| ready_to_start(pod) == "False";
    node.wait_pod("web", "it has no sandbox", WAIT_LIMIT, not_yet).await;
    node.fake.release(Rpc::RunPodSandbox);
    let ready = |pod: &_| ready_to_start(pod) == "True";
    let shown = node.wait_pod("web", "it has a sandbox", WAIT_LIMIT, ready).await;
    assert_eq!(waits_for(&shown, "main"), "ContainerCreating");
    assert!(shown.status.unwrap().pod_ip.is_some(), "with its address");
    assert_eq!(node.fake.count(Rpc::CreateContainer), 0);
}

#[tokio::test]
async fn a_pull_that_hangs_does_not_hold_up_the_deadline() {
    let node = Node::started().await;
    let late = json!({"activeDeadlineSeconds": 8});
    node.put(&with_spec(pod("web", &[pulling(&node, "main")]), late));
    let pulls = |fake: &FakeRuntime| fake.count(Rpc::PullImage) > 0;
    node.fake.wait_until("the pull begins", WAIT_LIMIT, pulls).await;
    node.wait_pod("web", "its time is over", LATER, exceeded).await;
    let stopped = |fake: &FakeRuntime| fake.pod(&full("web")).is_some_and(|pod| !pod.ready);
    node.fake.wait_until("its sandbox is stopped", WAIT_LIMIT, stopped).await;
    assert_eq!(node.fake.count(Rpc::CreateContainer), 0);
    let events = node.events().await;
    assert_eq!(events.matches("longer than the specified deadline").count(), 1);
}

#[tokio::test]
async fn a_hook_that_hangs_does_not_hold_up_the_deadline() {
    let node = Node::started().await;
    node.fake.on_exec(|_| ExecOutcome { delay: HOUR, ..ExecOutcome::default() });
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}});
    let hooked = pod("web", &[with(container("main"), hook), container("next")]);
    node.put(&with_spec(hooked, json!({"activeDeadlineSeconds": 8})));
    node.wait_runs("web").await;
    node.wait_pod("web", "its time is over", LATER, exceeded).await;
    let ended = |fake: &FakeRuntime| !fake.container("main").is_some_and(|c| c.is_running());
    node.fake.wait_until("its container is stopped", WAIT_LIMIT, ended).await;
    assert_eq!(node.fake.count(Rpc::StartContainer), 1, "the next one is not started");
}

#[tokio::test]
async fn a_pod_that_cannot_be_read_ends_at_its_deadline_too() {
    let node = Node::started().await;
    let late = json!({"activeDeadlineSeconds": 8});
    node.put(&with_spec(simple("web"), late));
    node.wait_runs("web").await;
    node.fake.inject(Fault::hang(Rpc::ContainerStatus));
    node.fake.exit("main", 1);
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopPodSandbox) > 0;
    node.fake.wait_until("it is stopped", LATER, stopped).await;
}

#[tokio::test]
async fn a_pods_start_and_so_its_deadline_outlive_the_kubelet_and_the_sandbox() {
    let mut node = Node::started().await;
    let late = json!({"activeDeadlineSeconds": 3600});
    node.put(&with_spec(simple("web"), late));
    node.wait_runs("web").await;
    let shown = node.wait_phase("web", "Running").await;
    let started = shown.status.unwrap().start_time.unwrap();
    wait_for("the second of its start is past", WAIT_LIMIT, async || {
        holds((clock::timestamp() - started.0).get_seconds() > 1, "not yet")
    })
    .await;
    node.stop().await;
    node.fake.forget_everything();
    node.start().await;
    let shown = node.wait_phase("web", "Running").await;
    assert_eq!(shown.status.unwrap().start_time.unwrap(), started);
}

#[tokio::test]
async fn a_pod_whose_deadline_passed_while_no_kubelet_ran_fails_at_once() {
    let mut node = Node::started().await;
    let late = json!({"activeDeadlineSeconds": 15});
    node.put(&with_spec(simple("web"), late));
    node.wait_runs("web").await;
    let shown = node.wait_phase("web", "Running").await;
    let started = shown.status.unwrap().start_time.unwrap();
    node.stop().await;
    wait_for("its time is over", LATER, async || {
        holds((clock::timestamp() - started.0).get_seconds() > 15, "not yet")
    })
    .await;
    node.start().await;
    let shown = node.wait_pod("web", "its time is over", LATER, exceeded).await;
    assert_eq!(shown.status.unwrap().start_time.unwrap(), started);
    assert_eq!(node.fake.count(Rpc::StartContainer), 1);
}

#[tokio::test]
async fn a_back_off_is_shown_no_longer_than_it_holds() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 1));
    let own = json!({"annotations": {"kubelet.rs/max-container-restart-period": "5s"}});
    let other = with(container("other"), json!({"imagePullPolicy": "Always"}));
    node.put(&with_metadata(pod("web", &[container("main"), other]), own));
    let waits = |pod: &_| waits_for(pod, "main") == "CrashLoopBackOff";
    node.wait_pod("web", "main backs off", WAIT_LIMIT, waits).await;
    let delay = HOUR;
    node.fake.on_pull(IMAGE, Pull { delay, ..Pull::default() });
    let pulls = node.fake.count(Rpc::PullImage);
    assert!(node.fake.exit("other", 1));
    let pulling = |fake: &FakeRuntime| fake.count(Rpc::PullImage) > pulls;
    node.fake.wait_until("the other one pulls", WAIT_LIMIT, pulling).await;
    let over = |pod: &Pod| {
        let state = status_of(pod, "main").and_then(|status| status.state.clone());
        state.is_some_and(|state| state.terminated.is_some())
    };
    let shown = node.wait_pod("web", "the back-off is over", WAIT_LIMIT, over).await;
    assert_eq!(phase(&shown), "Running");
    let other = status_of(&shown, "other").unwrap().state.clone().unwrap();
    assert!(other.running.is_none(), "it is still pulling");
}
