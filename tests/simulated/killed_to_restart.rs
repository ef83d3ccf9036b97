//! Containers that the kubelet kills in order to start them again: whatever their exit code, they have not ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use crate::api_source::{self, bound, ids, joined, path};
use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, WAIT_LIMIT, full, phase, runs, status_of, waits_for};
use crate::pods::{container, exec_probe, pod, with, with_spec};
use crate::support::fake_runtime::{Behaviour, ExecOutcome, FakeRuntime, Fault, Rpc};
use crate::support::log::Log;
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

/// A pod whose container ends with 0 when it is stopped, which its policy takes for success.
fn ends_well_when_stopped(name: &str, more: Value) -> Value {
    let policy = json!({"restartPolicy": "OnFailure"});
    with_spec(pod(name, &[with(container("main"), more)]), policy)
}

/// The pod `web` of [`ends_well_when_stopped`] with a liveness probe, which fails while the switch is on.
fn probed(node: &Node) -> (Value, Arc<AtomicBool>) {
    let sick = Arc::new(AtomicBool::new(false));
    let seen = sick.clone();
    let code = move || i32::from(seen.load(Ordering::SeqCst));
    node.fake.on_exec(move |_| ExecOutcome::code(code()));
    let probed = json!({"livenessProbe": exec_probe("is-alive")});
    (ends_well_when_stopped("web", probed), sick)
}

/// Has the container killed by its liveness probe, once.
async fn fail_once(node: &Node, sick: &AtomicBool) {
    sick.store(true, Ordering::SeqCst);
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped).await;
    sick.store(false, Ordering::SeqCst);
}

/// Waits until another instance of the container runs; the pod never shows an end of it.
async fn runs_on_in_another(node: &Node, first: &str) {
    wait_for("another instance runs", WAIT_LIMIT, async || {
        let pod = node.pod("web").await.expect("the pod is shown");
        assert_eq!(phase(&pod), "Running", "{pod:?}");
        let id = status_of(&pod, "main").and_then(|status| status.container_id.clone());
        let other = id.is_some_and(|id| !id.ends_with(first));
        holds(other && runs(&pod, "main"), format!("{pod:?}"))
    })
    .await;
}

/// Adds a second sandbox that is ready: both make way for a third.
async fn lose_sandbox(node: &Node, uid: &str) {
    let mut planter = Planter::new(&node.fake).await;
    let twin = Plant::of_a_kubelet(&full("web")).uid(uid).attempt(1);
    planter.sandbox(&twin.made_for_a_file()).await;
}

#[tokio::test]
async fn a_container_that_is_replaced_has_not_ended_whatever_its_exit_code() {
    let node = Node::started().await;
    let (web, sick) = probed(&node);
    node.put(&web);
    node.wait_phase("web", "Running").await;
    let first = node.wait_runs("web").await;
    let slowly = Fault::delay(Rpc::CreateContainer, Duration::from_millis(300));
    node.fake.inject(slowly);
    fail_once(&node, &sick).await;
    runs_on_in_another(&node, &first.id).await;
}

#[tokio::test]
async fn containers_of_a_sandbox_that_is_replaced_have_not_ended_either() {
    let node = Node::started().await;
    node.put(&ends_well_when_stopped("web", json!({})));
    let shown = node.wait_phase("web", "Running").await;
    let first = node.wait_runs("web").await;
    let slowly = Fault::delay(Rpc::RunPodSandbox, Duration::from_millis(300));
    node.fake.inject(slowly);
    lose_sandbox(&node, &shown.metadata.uid.expect("a UID")).await;
    runs_on_in_another(&node, &first.id).await;
}

#[tokio::test]
async fn a_replaced_container_is_shown_as_waiting_until_its_successor_can_be_created() {
    let node = Node::started().await;
    let (web, sick) = probed(&node);
    node.put(&web);
    node.wait_phase("web", "Running").await;
    let first = node.wait_runs("web").await;
    let refused = Fault::fail(Rpc::CreateContainer, Code::Internal, "no");
    node.fake.inject(refused.times(2));
    fail_once(&node, &sick).await;
    let waits = |pod: &_| {
        assert_eq!(phase(pod), "Running");
        waits_for(pod, "main") == "CreateContainerError"
    };
    let shown = node.wait_pod("web", "waits", WAIT_LIMIT, waits).await;
    let last = status_of(&shown, "main").and_then(|status| status.last_state.clone());
    let ended = last.and_then(|last| last.terminated).expect("its exit");
    assert_eq!(ended.exit_code, 0);
    runs_on_in_another(&node, &first.id).await;
}

#[tokio::test]
async fn a_container_that_runs_for_less_than_its_back_off_before_it_is_killed_goes_on() {
    let node = Node::started().await;
    let (web, sick) = probed(&node);
    sick.store(true, Ordering::SeqCst);
    node.put(&web);
    let backs_off = |pod: &_| {
        assert!(!["Succeeded", "Failed"].contains(&phase(pod)), "{pod:?}");
        waits_for(pod, "main") == "CrashLoopBackOff"
    };
    node.wait_pod("web", "backs off", WAIT_LIMIT, backs_off).await;
    sick.store(false, Ordering::SeqCst);
    let last = node.fake.container(&format!("{}/main", full("web")));
    runs_on_in_another(&node, &last.expect("a container").id).await;
}

/// The successors of containers under `OnFailure` run only after the init container has run again.
#[tokio::test]
async fn containers_of_a_sandbox_whose_successor_cannot_be_created_have_not_ended() {
    let node = Node::started().await;
    node.fake.behave("init", Behaviour::exits(Duration::ZERO, 0));
    let init = json!({"initContainers": [container("init")]});
    node.put(&with_spec(ends_well_when_stopped("web", json!({})), init));
    let shown = node.wait_phase("web", "Running").await;
    let first = node.wait_runs("web").await;
    // The fault must not hit the sandbox that the test adds.
    node.fake.inject(Fault::hang(Rpc::StopContainer));
    lose_sandbox(&node, &shown.metadata.uid.expect("a UID")).await;
    let refused = Fault::fail(Rpc::RunPodSandbox, Code::Unavailable, "no network yet");
    node.fake.inject(refused.times(1));
    node.fake.release(Rpc::StopContainer);
    wait_for("another instance runs", WAIT_LIMIT, async || {
        let pod = node.pod("web").await.expect("the pod is shown");
        assert!(!["Succeeded", "Failed"].contains(&phase(&pod)), "{pod:?}");
        let main = node.fake.container(&format!("{}/main", full("web")));
        let other = main.filter(|main| main.is_running() && main.id != first.id);
        holds(other.is_some(), format!("{pod:?}"))
    })
    .await;
}

#[tokio::test]
async fn an_edited_image_under_never_replaces_a_container_whose_successor_fails_at_first() {
    let (mut node, api) = joined().await;
    let mut web = bound("web");
    web["spec"]["restartPolicy"] = json!("Never");
    api.put(&path("web"), web.clone());
    node.start().await;
    api_source::wait_runs(&node, "web").await;
    let first = ids(&node.fake, "web");
    let shown = || api.object(&path("web")).unwrap_or_default()["status"].clone();
    wait_for("it is shown to run", WAIT_LIMIT, async || {
        holds(shown()["phase"] == "Running", shown().to_string())
    })
    .await;
    let refused = Fault::fail(Rpc::CreateContainer, Code::Internal, "no");
    node.fake.inject(refused.times(2));
    let mut edited = api.object(&path("web")).expect("the pod");
    edited["spec"]["containers"][0]["image"] = json!("another:1");
    api.put(&path("web"), edited);
    wait_for("another instance is shown to run", WAIT_LIMIT, async || {
        let status = shown();
        assert_eq!(status["phase"], "Running", "{status}");
        let container = &status["containerStatuses"][0];
        let id = container["containerID"].as_str().unwrap_or_default();
        let other = !first.iter().any(|first| id.ends_with(first));
        let runs = !container["state"]["running"].is_null();
        holds(other && runs, status.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_kubelet_killed_before_it_creates_the_successor_creates_it_at_its_next_start() {
    real_time("the kubelet is killed on threads of its own");
    let mut node = Node::new().await;
    let log = Log::new();
    let (web, sick) = probed(&node);
    node.start_on_threads(&log).await;
    node.put(&web);
    node.wait_phase("web", "Running").await;
    let first = node.wait_runs("web").await;
    node.fake.inject(Fault::hang(Rpc::CreateContainer).times(1));
    let created = node.fake.count(Rpc::CreateContainer);
    fail_once(&node, &sick).await;
    let creates = |fake: &FakeRuntime| fake.count(Rpc::CreateContainer) > created;
    node.fake.wait_until("the successor is being created", WAIT_LIMIT, creates).await;
    node.kill().await;
    node.start_on_threads(&log).await;
    node.wait_pod("web", "is shown", WAIT_LIMIT, |_| true).await;
    runs_on_in_another(&node, &first.id).await;
}

#[tokio::test]
async fn a_container_that_exits_while_no_kubelet_runs_has_not_ended_if_the_last_one_stopped_it() {
    real_time("the kubelet is killed on threads of its own");
    for is_killed in [true, false] {
        let mut node = Node::new().await;
        let log = Log::new();
        let _shown = log.shown_on_panic();
        let (web, sick) = probed(&node);
        node.fake.behave("main", Behaviour::ignores_term());
        node.start_on_threads(&log).await;
        node.put(&with_spec(web, json!({"terminationGracePeriodSeconds": 3600})));
        node.wait_phase("web", "Running").await;
        let first = node.wait_runs("web").await;
        fail_once(&node, &sick).await;
        if is_killed {
            node.kill().await;
        } else {
            node.stop().await;
        }
        assert!(node.fake.exit("main", 0), "it runs until now");
        node.start_on_threads(&log).await;
        node.wait_pod("web", "is shown", WAIT_LIMIT, |_| true).await;
        runs_on_in_another(&node, &first.id).await;
    }
}
