//! What /pods says about pods in trouble.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use crate::node::{Node, WAIT_LIMIT, full, phase, status_of, waits_for};
use crate::pods::{container, pod, simple, with, with_spec};
use crate::support::fake_runtime::{
    Behaviour, ExecOutcome, FakeRuntime, Fault, Options, Pull, Rpc,
};
use crate::support::wait::{holds, wait_for};

async fn wait_reason(node: &Node, name: &str, reason: &str) {
    let deadline = WAIT_LIMIT;
    let fact = |pod: &_| waits_for(pod, "main") == reason;
    node.wait_pod(name, reason, deadline, fact).await;
}

#[tokio::test]
async fn a_container_that_does_not_run_says_why_it_waits() {
    let node = Node::started().await;
    let fake = &node.fake;
    fake.inject(Fault::hang(Rpc::RunPodSandbox).only(&full("creating")));
    node.put(&simple("creating"));
    let refused = Fault::fail(Rpc::CreateContainer, Code::Internal, "no room");
    fake.inject(refused.only(&full("refused")));
    node.put(&simple("refused"));
    let as_root = json!({"securityContext": {"runAsNonRoot": true}});
    node.put(&with_spec(simple("root"), as_root));
    fake.behave(&full("broken"), Behaviour::fails_to_start("exec format error"));
    node.put(&with_spec(simple("broken"), json!({"restartPolicy": "Never"})));
    fake.behave(&full("crashing"), Behaviour::exits(Duration::ZERO, 1));
    node.put(&simple("crashing"));
    for (name, reason) in [
        ("creating", "ContainerCreating"),
        ("refused", "CreateContainerError"),
        ("root", "CreateContainerConfigError"),
        ("crashing", "CrashLoopBackOff"),
    ] {
        wait_reason(&node, name, reason).await;
        let expected = if name == "crashing" { "Running" } else { "Pending" };
        assert_eq!(phase(&node.pod(name).await.unwrap()), expected, "{name}");
    }
    let failed = node.wait_phase("broken", "Failed").await;
    let state = status_of(&failed, "main").unwrap().state.clone().unwrap();
    let ended = state.terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (128, Some("StartError")));
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_told_and_not_pulled_again_at_once() {
    let node = Node::started().await;
    let image = "localhost/missing:1";
    let error = Some((Code::NotFound, "not found".to_owned()));
    let pull = Pull { error, ..Pull::default() };
    node.fake.on_pull(image, pull);
    let missing = with(container("main"), json!({"image": image}));
    node.put(&pod("web", std::slice::from_ref(&missing)));
    wait_reason(&node, "web", "ImagePullBackOff").await;
    let events = node.events().await;
    assert!(events.contains("ErrImagePull"), "{events}");
    let again = |fake: &FakeRuntime| fake.count(Rpc::PullImage) > 1;
    assert!(node.never(Duration::from_secs(1), again).await);
}

#[tokio::test]
async fn an_image_that_may_not_be_pulled_is_told() {
    let node = Node::started().await;
    let never = json!({"image": "localhost/missing:1", "imagePullPolicy": "Never"});
    node.put(&pod("web", &[with(container("main"), never)]));
    wait_reason(&node, "web", "ErrImageNeverPull").await;
    assert_eq!(node.fake.count(Rpc::PullImage), 0);
}

#[tokio::test]
async fn a_container_whose_post_start_hook_fails_is_killed() {
    let node = Node::started().await;
    node.fake.on_exec(|_| ExecOutcome {
        stderr: "the password is hunter2".to_owned(),
        ..ExecOutcome::code(1)
    });
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}});
    node.put(&pod("web", &[with(container("main"), hook)]));
    let killed = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is killed", WAIT_LIMIT, killed).await;
    let events = node.events().await;
    let reported = "\"message\":\"PostStartHook failed: command exited with 1\"";
    assert!(events.contains("FailedPostStartHook"), "{events}");
    assert!(events.contains(reported), "{events}");
    assert!(!events.contains("hunter2"), "{events}");
    let waits =
        |pod: &_| ["PostStartHookError", "CrashLoopBackOff"].contains(&waits_for(pod, "main"));
    node.wait_pod("web", "waits", WAIT_LIMIT, waits).await;
}

#[tokio::test]
async fn a_post_start_request_that_is_refused_is_reported_with_its_cause() {
    let node = Node::started().await;
    // Nothing listens there.
    let get = json!({"host": "127.0.0.1", "port": 1, "path": "/start?token=hunter2"});
    let hook = json!({"lifecycle": {"postStart": {"httpGet": get}}});
    node.put(&pod("web", &[with(container("main"), hook)]));
    wait_for("the event has the cause", WAIT_LIMIT, || async {
        let events = node.events().await;
        let reported = "\"message\":\"PostStartHook failed: dial tcp 127.0.0.1:1: connect: connection refused\"";
        holds(events.contains(reported) && !events.contains("hunter2"), events)
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_runs_longer_than_its_deadline_fails() {
    let node = Node::started().await;
    node.put(&with_spec(simple("web"), json!({"activeDeadlineSeconds": 2})));
    node.wait_runs("web").await;
    let failed = node.wait_phase("web", "Failed").await;
    let status = failed.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    let ended = |fake: &FakeRuntime| !fake.container("main").is_some_and(|c| c.is_running());
    node.fake.wait_until("its container is stopped", WAIT_LIMIT, ended).await;
    assert_eq!(node.fake.count(Rpc::StartContainer), 1);
}

#[tokio::test]
async fn last_words_come_from_the_file_or_else_from_the_log() {
    let options = Options { write_logs: true, ..Options::default() };
    let mut node = Node::with(options).await;
    node.start().await;
    let fails = || Behaviour::exits(Duration::from_millis(20), 1).with_output(&["the log's words"]);
    node.fake.behave(&full("file"), fails().with_termination_message("the file's words"));
    node.fake.behave(&full("log"), fails());
    node.fake.behave(&full("silent"), fails());
    let fallback = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let never = json!({"restartPolicy": "Never"});
    for (name, more) in [("file", &fallback), ("log", &fallback), ("silent", &json!({}))] {
        let containers = [with(container("main"), more.clone())];
        node.put(&with_spec(pod(name, &containers), never.clone()));
    }
    for (name, expected) in
        [("file", Some("the file's words")), ("log", Some("the log's words\n")), ("silent", None)]
    {
        let failed = node.wait_phase(name, "Failed").await;
        let state = status_of(&failed, "main").unwrap().state.clone().unwrap();
        let message = state.terminated.unwrap().message;
        assert_eq!(message.as_deref().map(str::trim_end), expected.map(str::trim_end), "{name}");
    }
}

#[tokio::test]
async fn a_running_pod_shows_its_address_and_its_containers_ids() {
    let node = Node::started().await;
    node.put(&simple("web"));
    let main = node.wait_runs("web").await;
    let shown = node.wait_phase("web", "Running").await;
    let status = status_of(&shown, "main").unwrap();
    assert_eq!(status.container_id, Some(format!("fake://{}", main.id)));
    assert_eq!((status.restart_count, status.ready), (0, true));
    let sandbox = node.fake.pod(&full("web")).unwrap();
    let status = shown.status.clone().unwrap();
    assert_eq!(status.pod_ip, Some(sandbox.ip));
    assert_eq!(shown.metadata.uid, Some(sandbox.uid));
    assert!(status.start_time.is_some());
}
