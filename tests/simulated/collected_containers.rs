//! Containers that ended and of which the runtime has nothing any more.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::json;
use tonic::Code;

use crate::api_source::{bound, joined, path};
use crate::foreign_objects::Planter;
use crate::node::{Node, WAIT_LIMIT, backs_off_for, full, runs, status_of};
use crate::pods::{container, pod, simple, with_spec};
use crate::support::fake_runtime::{Behaviour, FakeRuntime, Fault, Rpc};

/// A node that keeps no dead containers.
async fn tidy() -> Node {
    let mut node = Node::new().await;
    node.argue("--maximum-dead-containers-per-container=0");
    node.start().await;
    node
}

fn starts(node: &Node, container: &str) -> usize {
    let calls = node.fake.calls_of(Rpc::StartContainer);
    let of_it = calls.iter().filter(|call| call.subject.container == container);
    of_it.count()
}

fn ended(pod: &Pod, name: &str) -> Option<ContainerStateTerminated> {
    status_of(pod, name)?.state.clone()?.terminated
}

#[tokio::test]
async fn an_exit_counts_after_its_container_was_collected_and_after_a_restart() {
    let mut node = tidy().await;
    node.fake.behave("once", Behaviour::exits(Duration::ZERO, 0));
    let crashes_once = vec![Behaviour::exits(Duration::from_millis(300), 1), Behaviour::runs()];
    node.fake.behave_in_turn("main", crashes_once);
    let containers = [container("once"), container("main")];
    let on_failure = json!({"restartPolicy": "OnFailure"});
    node.put(&with_spec(pod("web", &containers), on_failure));
    // The start of the other one is the occasion to collect both.
    let collected = |fake: &FakeRuntime| {
        let pod = fake.pod(&full("web"));
        fake.count(Rpc::StartContainer) == 3 && pod.is_some_and(|pod| pod.containers.len() == 1)
    };
    node.fake.wait_until("dead containers are collected", WAIT_LIMIT, collected).await;
    let shown = node.wait_phase("web", "Running").await;
    let before = ended(&shown, "once").unwrap();
    assert_eq!(before.exit_code, 0);
    assert_eq!(before.reason.as_deref(), Some("Completed"));
    node.stop().await;
    node.start().await;
    let runs = |pod: &Pod| runs(pod, "main") && status_of(pod, "main").unwrap().ready;
    let shown = node.wait_pod("web", "runs", WAIT_LIMIT, runs).await;
    assert_eq!(ended(&shown, "once"), Some(before));
    let main = status_of(&shown, "main").unwrap();
    let last = main.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((main.restart_count, last.exit_code), (1, 1));
    node.fake.exit("main", 0);
    node.wait_phase("web", "Succeeded").await;
    assert_eq!((starts(&node, "once"), starts(&node, "main")), (1, 2));
}

#[tokio::test]
async fn a_crash_loop_is_one_although_its_dead_containers_are_collected() {
    let mut node = tidy().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 3));
    node.put(&simple("web"));
    let again = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) == 2;
    node.fake.wait_until("it starts again", WAIT_LIMIT, again).await;
    let backs_off = |pod: &Pod| backs_off_for(pod, "main", "10s");
    node.wait_pod("web", "backs off", WAIT_LIMIT, backs_off).await;
    let none_left = |fake: &FakeRuntime| {
        let pod = fake.pod(&full("web"));
        pod.is_some_and(|pod| pod.containers.is_empty())
    };
    node.periods().housekeeping = Duration::from_millis(100);
    node.stop().await;
    node.start().await;
    node.fake.wait_until("nothing is left of it", WAIT_LIMIT, none_left).await;
    let shown = node.wait_pod("web", "backs off", WAIT_LIMIT, backs_off).await;
    let status = status_of(&shown, "main").unwrap();
    let last = status.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((status.restart_count, last.exit_code), (1, 3));
    let third = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) == 3;
    node.fake.wait_until("it starts again", WAIT_LIMIT, third).await;
    let calls = node.calls("web", Rpc::StartContainer);
    let gap = (calls[2].at - calls[1].at).as_secs_f64();
    assert!(gap >= 10.0, "it waited {gap} s");
    let counts = |pod: &Pod| status_of(pod, "main").is_some_and(|s| s.restart_count == 2);
    node.wait_pod("web", "counts on", WAIT_LIMIT, counts).await;
}

/// Nothing is made for a while, and the pod is shown as it is.
async fn stays_done(node: &Node) {
    let made = |fake: &FakeRuntime| fake.count(Rpc::CreateContainer) > 2;
    assert!(node.never(Duration::from_secs(1), made).await);
    let shown = node.wait_phase("web", "Running").await;
    assert!(ended(&shown, "once").is_some() && runs(&shown, "main"), "{shown:?}");
}

#[tokio::test]
async fn a_container_that_is_done_is_not_run_again_because_somebody_removed_it() {
    let mut node = Node::started().await;
    node.fake.behave("once", Behaviour::exits(Duration::ZERO, 0));
    let containers = [container("once"), container("main")];
    let never = json!({"restartPolicy": "Never"});
    node.put(&with_spec(pod("web", &containers), never));
    let done = |pod: &Pod| ended(pod, "once").is_some() && runs(pod, "main");
    node.wait_pod("web", "one is done", WAIT_LIMIT, done).await;
    let once = node.fake.container("once").unwrap();
    Planter::new(&node.fake).await.remove(&once.id).await;
    node.fake.end_event_streams(None);
    stays_done(&node).await;
    node.stop().await;
    node.start().await;
    stays_done(&node).await;
    node.fake.exit("main", 0);
    node.wait_phase("web", "Succeeded").await;
}

#[tokio::test]
async fn a_removal_that_failed_in_a_sync_is_repeated_for_a_pod_of_the_api_server_as_well() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), bound("web"));
    node.start().await;
    node.fake.inject(Fault::fail(Rpc::RemoveContainer, Code::Unknown, "no").times(1));
    for instance in 0..3 {
        let runs = |fake: &FakeRuntime| {
            let newest = fake.container("web/main");
            newest.is_some_and(|newest| newest.attempt == instance && newest.is_running())
        };
        node.fake.wait_until("the next instance runs", WAIT_LIMIT, runs).await;
        if instance < 2 {
            assert!(node.fake.exit("web/main", 1));
        }
    }
    let repeated = |fake: &FakeRuntime| {
        let left = fake.pod("web").expect("the pod").containers.len();
        fake.count(Rpc::RemoveContainer) >= 2 && left == 2
    };
    node.fake.wait_until("it is removed", Duration::from_secs(70), repeated).await;
}
