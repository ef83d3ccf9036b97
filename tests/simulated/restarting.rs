//! What happens when containers end, and when probes say that they should.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use crate::node::{
    Node, WAIT_LIMIT, backs_off_for, full, is_ready, phase, runs, status_of, waits_for,
};
use crate::pods::{container, exec_probe, pod, simple, version, with, with_metadata, with_spec};
use crate::support::fake_runtime::{
    Behaviour, ExecOutcome, FakeRuntime, Fault, Features, Options, Rpc,
};

fn once(node: &Node, name: &str, code: i32) {
    let lives = vec![Behaviour::exits(Duration::from_millis(50), code), Behaviour::runs()];
    node.fake.behave_in_turn(&full(name), lives);
}

#[tokio::test]
async fn the_restart_policy_decides_what_becomes_of_a_container_that_ended() {
    let node = Node::started().await;
    let cases = [
        ("always-ok", "Always", 0),
        ("always-bad", "Always", 1),
        ("onfailure-ok", "OnFailure", 0),
        ("onfailure-bad", "OnFailure", 1),
        ("never-ok", "Never", 0),
        ("never-bad", "Never", 1),
    ];
    for (name, policy, code) in cases {
        once(&node, name, code);
        node.put(&with_spec(simple(name), json!({"restartPolicy": policy})));
    }
    for name in ["always-ok", "always-bad", "onfailure-bad"] {
        let again = |pod: &_| {
            let status = status_of(pod, "main");
            runs(pod, "main") && status.is_some_and(|status| status.restart_count == 1)
        };
        node.wait_pod(name, "runs again", WAIT_LIMIT, again).await;
    }
    for (name, end) in
        [("onfailure-ok", "Succeeded"), ("never-ok", "Succeeded"), ("never-bad", "Failed")]
    {
        node.wait_phase(name, end).await;
        assert_eq!(node.calls(name, Rpc::StartContainer).len(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_container_whose_start_was_cancelled_is_started_under_every_policy() {
    let node = Node::started().await;
    let cancelled = || Behaviour {
        start_error: Some("failed to start containerd task \"x\": context canceled".into()),
        ..Behaviour::default()
    };
    for kind in ["main", "init"] {
        node.fake.behave_in_turn(kind, vec![cancelled(), Behaviour::runs()]);
    }
    let policy = json!({"restartPolicy": "Never"});
    node.put(&with_spec(simple("plain"), policy.clone()));
    let init = json!({"restartPolicy": "Never", "initContainers": [container("init")]});
    node.put(&with_spec(pod("staged", &[container("other")]), init));
    for (name, started) in [("plain", "main"), ("staged", "init")] {
        let running = |pod: &_| runs(pod, started);
        let shown = node.wait_pod(name, "runs", WAIT_LIMIT, running).await;
        let status = status_of(&shown, started).unwrap();
        let last = status.last_state.clone().unwrap_or_default();
        assert_eq!((status.restart_count, last.terminated), (0, None));
        let left = node.fake.pod(&full(name)).unwrap().containers.len();
        assert_eq!(left, 1, "the first instance is removed");
    }
}

#[tokio::test]
async fn a_crashing_container_is_restarted_at_once_and_then_after_ten_seconds() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 3));
    node.put(&simple("web"));
    // The shortest back-off, and that only after a restart: the restart itself had none.
    let back_off = |pod: &_| backs_off_for(pod, "main", "10s");
    let shown = node.wait_pod("web", "backs off", WAIT_LIMIT, back_off).await;
    let status = status_of(&shown, "main").unwrap();
    let last = status.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((status.restart_count, last.exit_code), (1, 3));
    assert_eq!(phase(&shown), "Running");
    let third = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) >= 3;
    node.fake.wait_until("the third start", WAIT_LIMIT, third).await;
    let starts = node.calls("web", Rpc::StartContainer);
    let gap = (starts[2].at - starts[1].at).as_secs_f64();
    assert!(gap >= 10.0, "the second came after {gap} s");
}

#[tokio::test]
async fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let node = Node::started().await;
    let sick = Arc::new(AtomicBool::new(true));
    let seen = sick.clone();
    let code = move || i32::from(seen.load(Ordering::SeqCst));
    node.fake.on_exec(move |_| ExecOutcome::code(code()));
    let probe = json!({"livenessProbe": exec_probe("is-alive")});
    node.put(&pod("web", &[with(container("main"), probe)]));
    let first = node.wait_runs("web").await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped).await;
    sick.store(false, Ordering::SeqCst);
    let again =
        |pod: &_| runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count >= 1);
    node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
    assert_ne!(node.wait_runs("web").await.id, first.id);
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1, "only the container is restarted");
}

#[tokio::test]
async fn the_readiness_probe_result_is_the_pods_readiness() {
    let node = Node::started().await;
    let ready = Arc::new(AtomicBool::new(false));
    let seen = ready.clone();
    let code = move || i32::from(!seen.load(Ordering::SeqCst));
    node.fake.on_exec(move |_| ExecOutcome::code(code()));
    let probe = json!({"readinessProbe": exec_probe("is-ready")});
    node.put(&pod("web", &[with(container("main"), probe)]));
    let shown = node.wait_phase("web", "Running").await;
    assert!(!is_ready(&shown));
    for probe_result in [true, false, true] {
        ready.store(probe_result, Ordering::SeqCst);
        let what = if probe_result { "is ready" } else { "is not ready" };
        node.wait_pod("web", what, WAIT_LIMIT, |pod| is_ready(pod) == probe_result).await;
    }
    assert_eq!(node.fake.count(Rpc::StopContainer), 0);
    assert_eq!(node.fake.count(Rpc::StartContainer), 1);
}

#[tokio::test]
async fn a_sandbox_that_died_is_replaced_with_all_its_containers() {
    let node = Node::started().await;
    node.put(&simple("web"));
    let first = node.wait_runs("web").await;
    node.fake.kill_sandbox(&full("web"));
    let again = |fake: &FakeRuntime| {
        let newest = fake.container(&format!("{}/main", full("web")));
        newest.is_some_and(|c| c.is_running() && c.id != first.id)
    };
    node.fake.wait_until("it runs again", WAIT_LIMIT, again).await;
    assert_eq!(node.fake.pod(&full("web")).unwrap().attempt, 1);
}

/// A pod that fails its liveness probe `after` its start, each time.
fn failing(node: &Node, after: u64) -> Value {
    node.fake.on_exec(|_| ExecOutcome::code(1));
    let mut probe = exec_probe("alive");
    probe["initialDelaySeconds"] = after.into();
    let containers = [with(container("main"), json!({"livenessProbe": probe}))];
    let spec = json!({"terminationGracePeriodSeconds": 1});
    with_spec(pod("web", &containers), spec)
}

#[tokio::test]
async fn a_container_that_keeps_failing_its_probe_backs_off_like_one_that_crashes() {
    let node = Node::started().await;
    node.put(&failing(&node, 0));
    let back_off = |pod: &_| waits_for(pod, "main") == "CrashLoopBackOff";
    let shown = node.wait_pod("web", "backs off", WAIT_LIMIT, back_off).await;
    // Nothing had ended when it was killed first, so the delays begin with the second restart.
    let status = status_of(&shown, "main").unwrap();
    assert_eq!(status.restart_count, 2, "the first restarts come at once");
    let starts = || node.calls("web", Rpc::StartContainer).len();
    assert_eq!(starts(), 3);
    assert!(node.never(Duration::from_secs(5), |fake| fake.count(Rpc::StartContainer) > 3).await);
    let events = node.events().await;
    assert!(events.contains("Back-off restarting failed container main"), "{events}");
}

#[tokio::test]
async fn a_container_that_fails_its_probe_seldom_is_restarted_at_once_each_time() {
    let node = Node::started().await;
    // Seldom is measured by the longest delay.
    let longest = json!({"annotations": {"kubelet.rs/max-container-restart-period": "1s"}});
    node.put(&with_metadata(failing(&node, 3), longest));
    let often = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) >= 5;
    node.fake.wait_until("it is restarted", WAIT_LIMIT, often).await;
    let events = node.events().await;
    assert!(!events.contains("Back-off restarting"), "{events}");
}

#[tokio::test]
async fn a_container_that_stays_created_when_its_start_fails_backs_off_like_one_that_crashes() {
    let node = Node::started().await;
    node.fake.inject(Fault::fail(Rpc::StartContainer, Code::Internal, "no"));
    node.put(&simple("web"));
    let back_off = |pod: &_| backs_off_for(pod, "main", "10s");
    let shown = node.wait_pod("web", "backs off", WAIT_LIMIT, back_off).await;
    assert_eq!(status_of(&shown, "main").unwrap().restart_count, 0);
    assert_eq!(node.calls("web", Rpc::StartContainer).len(), 2);
    let third = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) >= 3;
    node.fake.wait_until("the third start", WAIT_LIMIT, third).await;
    let starts = node.calls("web", Rpc::StartContainer);
    let gap = (starts[2].at - starts[1].at).as_secs_f64();
    assert!(gap >= 10.0, "the third came after {gap} s");
    node.fake.clear_faults();
    let again = |pod: &_| runs(pod, "main");
    let shown = node.wait_pod("web", "runs", WAIT_LIMIT, again).await;
    assert_eq!(status_of(&shown, "main").unwrap().restart_count, 0);
    let containers = node.fake.pod(&full("web")).unwrap().containers;
    assert_eq!(containers.len(), 1, "{containers:?}");
}

#[tokio::test]
async fn the_previous_instance_and_its_log_survive_a_slow_start_of_its_successor() {
    for features in [Features::default(), Features::old()] {
        let options = Options { write_logs: true, features, ..Options::default() };
        let mut node = Node::with(options).await;
        node.start().await;
        once(&node, "web", 1);
        // Long enough for a list that shows it as created.
        let slow = Fault::delay(Rpc::StartContainer, Duration::from_millis(2500));
        node.fake.inject(slow);
        node.put(&simple("web"));
        let again = |pod: &_| {
            runs(pod, "main") && status_of(pod, "main").is_some_and(|s| s.restart_count == 1)
        };
        node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
        let dead = |fake: &FakeRuntime| fake.pod(&full("web")).unwrap().containers.len();
        let lost = |fake: &FakeRuntime| dead(fake) < 2;
        assert!(node.never(Duration::from_millis(500), lost).await);
        let logs = node.entries("logs");
        let names = node.entries(&format!("logs/{}/main", logs[0]));
        assert!(names.contains(&"0.log".to_owned()), "{names:?}");
    }
}

#[tokio::test]
async fn a_mended_manifest_does_not_wait_for_the_back_off_of_the_broken_one() {
    let node = Node::started().await;
    let lives = vec![
        Behaviour::exits(Duration::ZERO, 1),
        Behaviour::exits(Duration::ZERO, 1),
        Behaviour::exits(Duration::ZERO, 1),
        Behaviour::runs(),
    ];
    node.fake.behave_in_turn(&full("web"), lives);
    let named = |text: &str| with_metadata(version("web", text), json!({"uid": "chosen"}));
    node.put(&named("broken"));
    let back_off = |pod: &_| backs_off_for(pod, "main", "20s");
    node.wait_pod("web", "backs off", WAIT_LIMIT, back_off).await;
    node.put(&named("mended"));
    let mended = |fake: &FakeRuntime| {
        let newest = fake.container(&format!("{}/main", full("web")));
        newest.is_some_and(|c| c.is_running() && c.config.args == ["mended"])
    };
    node.fake.wait_until("it runs", WAIT_LIMIT, mended).await;
    let starts = node.calls("web", Rpc::StartContainer);
    let gap = (starts[3].at - starts[2].at).as_secs_f64();
    assert!(gap < 20.0, "it waited {gap} s");
}
