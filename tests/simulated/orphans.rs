//! Pods that run and that no source wants, and what is none of the kubelet's business.

use std::time::Duration;

use tonic::Code;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, OverlapWatch, WAIT_LIMIT, full};
use crate::pods::simple;
use crate::support::fake_runtime::{Behaviour, Distortion, FakeRuntime, Fault, PodView, Rpc};
use crate::web::WebServer;

/// A socket that accepts and never answers.
async fn silent_server() -> (tokio::net::TcpListener, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    (listener, url)
}

fn destructive(fake: &FakeRuntime) -> u64 {
    let kinds =
        [Rpc::StopContainer, Rpc::RemoveContainer, Rpc::StopPodSandbox, Rpc::RemovePodSandbox];
    kinds.into_iter().map(|rpc| fake.count(rpc)).sum()
}

fn lists(fake: &FakeRuntime) -> u64 {
    let kinds = [Rpc::ListPodSandbox, Rpc::StreamPodSandboxes];
    kinds.into_iter().map(|rpc| fake.count(rpc)).sum()
}

#[tokio::test]
async fn an_orphan_is_stopped_quickly_with_the_hook_of_its_annotations() {
    let mut node = Node::new().await;
    let hook = r#"{"exec":{"command":["bye"]}}"#;
    let plant = Plant::of_a_kubelet("lost")
        .made_for_a_file()
        .noting("io.kubernetes.container.preStopHandler", hook)
        .noting("io.kubernetes.pod.terminationGracePeriod", "30");
    Planter::new(&node.fake).await.pod(&plant).await;
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pods().is_empty();
    node.fake.wait_until("the orphan is removed", WAIT_LIMIT, gone).await;
    let hooks = node.fake.calls_of(Rpc::ExecSync);
    assert!(hooks.len() == 1 && hooks[0].detail.contains("bye"), "{hooks:?}");
    let stops = node.fake.calls_of(Rpc::StopContainer);
    assert_eq!(stops.len(), 1);
    assert_eq!(stops[0].detail, "timeout=2");
    assert!(hooks[0].seq < stops[0].seq);
}

#[tokio::test]
async fn what_carries_no_labels_of_a_kubelet_is_never_touched() {
    let mut node = Node::new().await;
    let mut planter = Planter::new(&node.fake).await;
    planter.pod(&Plant::of_a_stranger("stranger")).await;
    planter.pod(&Plant::of_a_kubelet("lost").made_for_a_file()).await;
    node.start().await;
    let one_left = |fake: &FakeRuntime| fake.pods().len() == 1;
    node.fake.wait_until("the orphan is removed", WAIT_LIMIT, one_left).await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.remove("web");
    node.wait_removed("web").await;
    let left = node.fake.pod("stranger").expect("it is still there");
    assert!(left.ready && left.containers[0].is_running());
    let about = |call: &crate::support::fake_runtime::Call| call.subject.pod == "stranger";
    let calls = node.fake.calls();
    let made = calls.iter().filter(|call| about(call) && call.rpc.is_mutating());
    let made: Vec<_> = made.map(|call| call.rpc).collect();
    // Those with which it was made.
    assert_eq!(made, [Rpc::RunPodSandbox, Rpc::CreateContainer, Rpc::StartContainer]);
}

#[tokio::test]
async fn a_pod_is_judged_when_its_own_source_has_delivered_and_no_sooner() {
    let mut node = Node::new().await;
    let (_server, url) = silent_server().await;
    node.configure(&format!("staticPodURL: {url}"));
    let mut planter = Planter::new(&node.fake).await;
    planter.pod(&Plant::of_a_kubelet("from-a-file").made_for_a_file()).await;
    planter.pod(&Plant::of_a_kubelet("from-a-url").made_for("http")).await;
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pod("from-a-file").is_none();
    node.fake.wait_until("the file's orphan is removed", WAIT_LIMIT, gone).await;
    let touched = |fake: &FakeRuntime| {
        let other = fake.pod("from-a-url");
        other.is_none_or(|pod| !pod.ready || !pod.containers[0].is_running())
    };
    assert!(node.never(Duration::from_millis(500), touched).await);
}

#[tokio::test]
async fn a_name_that_another_source_may_still_want_is_not_taken_before_that_has_spoken() {
    let mut node = Node::new().await;
    let server = WebServer::start(500, "later").await;
    node.configure(&format!("staticPodURL: {}", server.url));
    node.configure("httpCheckFrequency: 100ms");
    let held = Plant::of_a_kubelet(&full("web")).made_for("http");
    Planter::new(&node.fake).await.pod(&held).await;
    node.put(&simple("web"));
    node.put(&simple("other"));
    node.start().await;
    node.wait_runs("other").await;
    let touched = |fake: &FakeRuntime| destructive(fake) > 0 || fake.pods().len() > 2;
    assert!(node.never(Duration::from_millis(500), touched).await);
    let waits = node.wait_phase("web", "Pending").await;
    assert!(waits.status.unwrap().conditions.is_some(), "it is reported");
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    server.answer(200, r#"{"apiVersion":"v1","kind":"PodList","items":[]}"#);
    let replaced = |fake: &FakeRuntime| {
        let pods = fake.pods();
        let of_name = |pod: &&PodView| pod.name == full("web");
        let uids: Vec<_> = pods.iter().filter(of_name).map(|pod| &pod.uid).collect();
        uids.len() == 1 && !uids[0].starts_with("uid-of-")
    };
    node.fake.wait_until("the file's pod has taken its place", WAIT_LIMIT, replaced).await;
    node.wait_runs("web").await;
    overlaps.assert_never();
}

#[tokio::test]
async fn while_the_runtime_hangs_one_housekeeping_run_hangs_with_it_and_no_more() {
    let mut node = Node::new().await;
    node.periods().housekeeping = Duration::from_millis(200);
    node.start().await;
    let refused = Fault::fail(Rpc::RemoveContainer, Code::Internal, "not yet");
    node.fake.inject(refused);
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 1));
    node.put(&simple("web"));
    let crashed = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) == 2;
    node.fake.wait_until("it crashes", WAIT_LIMIT, crashed).await;
    let tried = |fake: &FakeRuntime| fake.count(Rpc::RemoveContainer) > 1;
    node.fake.wait_until("its removal is tried", WAIT_LIMIT, tried).await;
    node.fake.clear_faults();
    node.fake.inject(Fault::hang(Rpc::RemoveContainer));
    let hanging = |fake: &FakeRuntime| {
        let calls = fake.calls_of(Rpc::RemoveContainer);
        calls.iter().filter(|call| call.code.is_none()).count()
    };
    node.fake.wait_until("a run hangs", WAIT_LIMIT, |fake| hanging(fake) == 1).await;
    let more = |fake: &FakeRuntime| hanging(fake) > 1;
    assert!(node.never(Duration::from_secs(2), more).await);
    node.fake.clear_faults();
    let one_left = |fake: &FakeRuntime| fake.pod(&full("web")).unwrap().containers.len() == 1;
    node.fake.wait_until("the runs go on", WAIT_LIMIT, one_left).await;
}

#[tokio::test]
async fn nothing_is_touched_while_the_runtime_cannot_be_listed() {
    let mut node = Node::new().await;
    Planter::new(&node.fake).await.pod(&Plant::of_a_kubelet("lost").made_for_a_file()).await;
    node.fake.clear_calls();
    for rpc in [Rpc::ListPodSandbox, Rpc::StreamPodSandboxes] {
        node.fake.inject(Fault::fail(rpc, Code::Internal, "no list today"));
    }
    node.put(&simple("web"));
    node.start().await;
    let tried = |fake: &FakeRuntime| lists(fake) >= 3;
    node.fake.wait_until("it is tried again", WAIT_LIMIT, tried).await;
    assert_eq!(node.fake.mutations(), 0);
    node.fake.clear_faults();
    node.wait_runs("web").await;
    let gone = |fake: &FakeRuntime| fake.pod("lost").is_none();
    node.fake.wait_until("the orphan is removed", WAIT_LIMIT, gone).await;
}

#[tokio::test]
async fn an_empty_list_after_a_restart_destroys_nothing() {
    let mut node = Node::started().await;
    node.put(&simple("web"));
    let before = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.stop().await;
    node.fake.clear_calls();
    node.fake.distort(Distortion::EmptyLists);
    node.start().await;
    let requested = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) > 0;
    // It believes the runtime and tries to start the pod, whose name is taken.
    node.fake.wait_until("it acts on the list", WAIT_LIMIT, requested).await;
    node.fake.stop_distorting();
    node.fake.end_event_streams(None);
    node.wait_phase("web", "Running").await;
    assert_eq!(destructive(&node.fake), 0);
    let pods = node.fake.pods();
    assert_eq!(pods.len(), 1);
    assert_eq!(node.fake.container(&format!("{}/main", full("web"))).unwrap().id, before.id);
}
