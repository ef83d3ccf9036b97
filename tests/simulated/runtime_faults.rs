//! A runtime that is slow, hangs, fails and lies. One pod's trouble is never another's.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use serde_json::json;
use tonic::Code;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, OverlapWatch, WAIT_LIMIT, full, phase, runs, status_of};
use crate::pods::{container, exec_probe, pod, simple, version, with, with_spec};
use crate::support::fake_runtime::{
    Behaviour, Distortion, ExecOutcome, FakeRuntime, Fault, Features, Options, Rpc,
};

/// How long something that must not happen is waited for.
const A_WHILE: Duration = Duration::from_millis(1500);

fn running(fake: &FakeRuntime, name: &str) -> usize {
    let name = full(name);
    let pods = fake.pods();
    let containers = pods.iter().filter(|pod| pod.name == name).flat_map(|pod| &pod.containers);
    containers.filter(|container| container.is_running()).count()
}

#[tokio::test]
async fn a_sandbox_that_never_comes_up_delays_no_other_pod() {
    let node = Node::started().await;
    node.fake.inject(Fault::hang(Rpc::RunPodSandbox).only(&full("hung")));
    node.put(&simple("hung"));
    let requested = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) == 1;
    node.fake.wait_until("it hangs", WAIT_LIMIT, requested).await;
    let names: Vec<_> = (0..20).map(|n| format!("web{n}")).collect();
    names.iter().for_each(|name| node.put(&simple(name)));
    for name in &names {
        node.wait_runs(name).await;
    }
    let shown = node.pod("hung").await.unwrap();
    assert_eq!(phase(&shown), "Pending");
    // A pod that hangs can be taken away all the same, and the runtime's late answer does no harm.
    node.remove("hung");
    node.fake.release(Rpc::RunPodSandbox);
    node.wait_removed("hung").await;
    node.wait_gone("hung").await;
}

#[tokio::test]
async fn a_container_whose_status_cannot_be_read_delays_no_other_pod() {
    let node = Node::started().await;
    node.fake.inject(Fault::hang(Rpc::ContainerStatus).only(&full("hung")));
    node.put(&simple("hung"));
    node.wait_runs("hung").await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.exit(&format!("{}/main", full("web")), 1);
    let again =
        |pod: &_| runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count == 1);
    node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
    node.fake.release(Rpc::ContainerStatus);
    node.wait_phase("hung", "Running").await;
}

#[tokio::test]
async fn slow_answers_only_make_it_slow() {
    let node = Node::started().await;
    for rpc in [
        Rpc::RunPodSandbox,
        Rpc::CreateContainer,
        Rpc::StartContainer,
        Rpc::ContainerStatus,
        Rpc::StopContainer,
    ] {
        node.fake.inject(Fault::delay(rpc, Duration::from_millis(300)));
    }
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    node.remove("web");
    node.wait_removed("web").await;
    for rpc in [Rpc::RunPodSandbox, Rpc::CreateContainer, Rpc::StartContainer, Rpc::StopContainer] {
        assert_eq!(node.fake.count(rpc), 1, "{rpc}");
    }
}

#[tokio::test]
async fn a_container_created_without_an_answer_is_not_made_twice() {
    let node = Node::started().await;
    let lost = Fault::lose_answer(Rpc::CreateContainer, Code::DeadlineExceeded, "too late");
    node.fake.inject(lost.times(1));
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    assert_eq!(running(&node.fake, "web"), 1);
    let attempts = node.fake.pod(&full("web")).unwrap().containers;
    assert!(attempts.len() <= 2, "{attempts:?}");
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1);
}

#[tokio::test]
async fn a_container_started_without_an_answer_gets_its_hook_all_the_same() {
    let node = Node::started().await;
    node.fake.on_exec(|_| ExecOutcome::code(0));
    let lost = Fault::lose_answer(Rpc::StartContainer, Code::DeadlineExceeded, "too late");
    node.fake.inject(lost.times(1));
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}});
    node.put(&pod("web", &[with(container("main"), hook)]));
    node.wait_runs("web").await;
    let hooked = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) == 1;
    node.fake.wait_until("its hook runs", WAIT_LIMIT, hooked).await;
    node.wait_phase("web", "Running").await;
    assert_eq!(node.fake.count(Rpc::CreateContainer), 1);
    assert_eq!(node.entries("containers").len(), 1, "links to its log");
}

#[tokio::test]
async fn a_container_that_may_still_be_starting_is_not_made_a_second_time() {
    let node = Node::started().await;
    let unknown = Fault::fail(Rpc::StartContainer, Code::DeadlineExceeded, "too late");
    node.fake.inject(unknown.times(1));
    let why = "container is in starting state, can't be removed";
    node.fake.inject(Fault::fail(Rpc::RemoveContainer, Code::Unknown, why));
    node.put(&simple("web"));
    let tried = |fake: &FakeRuntime| fake.count(Rpc::RemoveContainer) > 0;
    node.fake.wait_until("it is to be removed", WAIT_LIMIT, tried).await;
    let second = |fake: &FakeRuntime| fake.count(Rpc::CreateContainer) > 1;
    assert!(node.never(A_WHILE, second).await);
    node.fake.clear_faults();
    node.wait_runs("web").await;
    let containers = node.fake.pod(&full("web")).unwrap().containers;
    assert_eq!(containers.len(), 1, "{containers:?}");
}

#[tokio::test]
async fn a_sandbox_made_without_an_answer_is_used() {
    let node = Node::started().await;
    for (name, code) in [("slow", Code::DeadlineExceeded), ("cut", Code::Unavailable)] {
        let lost = Fault::lose_answer(Rpc::RunPodSandbox, code, "no answer");
        node.fake.inject(lost.times(1));
        node.put(&simple(name));
        node.wait_runs(name).await;
    }
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 2);
    assert_eq!(node.fake.pods().len(), 2);
}

#[tokio::test]
async fn a_pod_that_cannot_be_stopped_is_shown_until_it_can() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.inject(Fault::fail(Rpc::StopContainer, Code::Internal, "no"));
    node.remove("web");
    let tried = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is tried", WAIT_LIMIT, tried).await;
    let gave_up = |fake: &FakeRuntime| {
        fake.count(Rpc::RemoveContainer) + fake.count(Rpc::RemovePodSandbox) > 0
            || fake.count(Rpc::StopPodSandbox) > 0
    };
    assert!(node.never(A_WHILE, gave_up).await);
    assert!(node.pod("web").await.is_some());
    node.put(&simple("other"));
    node.wait_runs("other").await;
    // It is tried again after ten to fifteen seconds.
    node.fake.clear_faults();
    let stopped = |fake: &FakeRuntime| fake.pod(&full("web")).is_none();
    node.fake.wait_until("it is stopped in the end", WAIT_LIMIT, stopped).await;
    node.wait_gone("web").await;
}

#[tokio::test]
async fn a_sandbox_without_an_address_is_not_replaced_again_and_again() {
    let node = Node::started().await;
    node.fake.distort(Distortion::NoIp);
    node.put(&simple("web"));
    node.wait_runs("web").await;
    // The first replacement comes at once, the second a second later, the third two seconds after that.
    let replaced = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) == 3;
    node.fake.wait_until("it is replaced", WAIT_LIMIT, replaced).await;
    let storm = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) > 3;
    assert!(node.never(A_WHILE, storm).await);
    node.fake.stop_distorting();
}

#[tokio::test]
async fn a_stop_that_fails_does_not_make_the_next_try_wait_longer() {
    let node = Node::started().await;
    node.fake.distort(Distortion::NoIp);
    node.fake.inject(Fault::fail(Rpc::StopContainer, Code::Internal, "no"));
    // Each result is a reason to sync the pod again, once a second.
    let exit_code = AtomicI32::new(0);
    node.fake.on_exec(move |_| ExecOutcome::code(exit_code.fetch_xor(1, Ordering::SeqCst)));
    let probe = json!({"readinessProbe": exec_probe("flips")});
    node.put(&pod("web", &[with(container("main"), probe)]));
    // Waits that double would take longer than anyone waits here.
    let tried = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) >= 8;
    node.fake.wait_until("it is tried again and again", WAIT_LIMIT, tried).await;
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1);
}

#[tokio::test]
async fn twins_in_a_list_that_do_not_exist_do_no_harm() {
    let node = Node::started().await;
    node.put(&simple("web"));
    let before = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.clear_calls();
    node.fake.distort(Distortion::DuplicateNames);
    node.fake.end_event_streams(None);
    let listed = |fake: &FakeRuntime| fake.count(Rpc::GetContainerEvents) > 0;
    node.fake.wait_until("it lists again", WAIT_LIMIT, listed).await;
    let harmed = |fake: &FakeRuntime| !fake.container(&before.id).is_some_and(|c| c.is_running());
    assert!(node.never(A_WHILE, harmed).await);
    node.fake.stop_distorting();
    node.fake.end_event_streams(None);
    node.wait_phase("web", "Running").await;
    assert_eq!(running(&node.fake, "web"), 1);
}

#[tokio::test]
async fn a_container_in_a_state_that_nobody_knows_is_replaced_and_not_in_a_storm() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.distort(Distortion::State(3));
    node.fake.end_event_streams(None);
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped to be sure", WAIT_LIMIT, stopped).await;
    let storm = |fake: &FakeRuntime| fake.count(Rpc::CreateContainer) > 5;
    assert!(node.never(A_WHILE, storm).await, "{:?}", node.fake.counts());
    node.fake.stop_distorting();
    node.fake.end_event_streams(None);
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    assert_eq!(running(&node.fake, "web"), 1);
}

#[tokio::test]
async fn lists_larger_than_a_message_may_be_are_read_in_parts() {
    let mut node = Node::new().await;
    let mut planter = Planter::new(&node.fake).await;
    let mut large = Plant::of_a_stranger("");
    let text = "x".repeat(100 * 1024);
    large.sandbox_annotations.insert("large".to_owned(), text);
    for n in 0..200 {
        large.name = format!("large{n}");
        planter.sandbox(&large).await;
    }
    planter.pod(&Plant::of_a_kubelet("lost").made_for_a_file()).await;
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pod("lost").is_none();
    node.fake.wait_until("the orphan is found", WAIT_LIMIT, gone).await;
    assert!(node.fake.count(Rpc::StreamPodSandboxes) > 0, "it was not too large");
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
}

#[tokio::test]
async fn a_pod_on_the_hosts_network_needs_no_address_from_the_runtime() {
    let node = Node::started().await;
    node.put(&with_spec(simple("host"), json!({"hostNetwork": true})));
    node.wait_runs("host").await;
    node.wait_phase("host", "Running").await;
    node.fake.behave("main", Behaviour::runs());
    node.fake.exit("main", 1);
    let again =
        |pod: &_| runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count == 1);
    node.wait_pod("host", "runs again", WAIT_LIMIT, again).await;
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1);
}

#[tokio::test]
async fn a_sandbox_whose_creation_got_no_answer_is_stopped_before_the_edited_pod_starts() {
    let mut node = Node::with(Options { features: Features::old(), ..Options::default() }).await;
    node.start().await;
    node.put(&simple("other"));
    node.wait_runs("other").await;
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    let lost = Fault::lose_answer(Rpc::RunPodSandbox, Code::Unavailable, "the answer is lost");
    node.fake.inject(lost.times(1));
    for list in [Rpc::ListPodSandbox, Rpc::ListContainers] {
        node.fake.inject(Fault::fail(list, Code::Unavailable, "not now"));
    }
    node.put(&version("web", "v1"));
    let created = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) > 1;
    node.fake.wait_until("a sandbox is created", WAIT_LIMIT, created).await;
    node.put(&version("web", "v2"));
    let beside = |fake: &FakeRuntime| fake.pods().len() > 2;
    assert!(node.never(Duration::from_secs(3), beside).await);
    node.fake.clear_faults();
    let replaced = |fake: &FakeRuntime| {
        let pods = fake.pods();
        let pods: Vec<_> = pods.iter().filter(|pod| pod.name == full("web")).collect();
        let newest = pods.last().and_then(|pod| pod.containers.last());
        pods.len() == 1 && newest.is_some_and(|c| c.is_running() && c.config.args == ["v2"])
    };
    node.fake.wait_until("only the edited pod runs", WAIT_LIMIT, replaced).await;
    overlaps.assert_never();
}
