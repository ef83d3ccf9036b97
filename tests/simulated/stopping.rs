//! How pods are stopped, removed and replaced.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use serde_json::json;
use tonic::Code;

use crate::node::{Node, OverlapWatch, WAIT_LIMIT, full, phase};
use crate::pods::{container, exec_probe, pod, simple, version, with, with_metadata, with_spec};
use crate::support::fake_runtime::{
    Behaviour, Call, ExecOutcome, FakeRuntime, Fault, Options, Rpc,
};
use crate::web::WebServer;

fn only(calls: &[Call], rpc: Rpc) -> &Call {
    let mut found = calls.iter().filter(|call| call.rpc == rpc);
    let first = found.next().unwrap_or_else(|| panic!("no {rpc}"));
    assert!(found.next().is_none(), "more than one {rpc}");
    first
}

fn args_of(fake: &FakeRuntime, name: &str) -> Vec<String> {
    let found = fake.container(&format!("{}/main", full(name)));
    found.filter(|c| c.is_running()).map(|c| c.config.args).unwrap_or_default()
}

#[tokio::test]
async fn a_removed_pod_ends_in_order_and_leaves_nothing() {
    let options = Options { write_logs: true, ..Options::default() };
    let mut node = Node::with(options).await;
    node.start().await;
    let fake = &node.fake;
    let life = Behaviour::ends_slowly(Duration::from_millis(300), 0).with_output(&["hello"]);
    fake.behave("main", life);
    fake.on_exec(|_| ExecOutcome { delay: Duration::from_millis(1100), ..ExecOutcome::code(0) });
    let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}});
    let spec = json!({"terminationGracePeriodSeconds": 5});
    node.put(&with_spec(pod("web", &[with(container("main"), hook)]), spec));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    assert_eq!(node.entries("logs").len(), 1);
    fake.clear_calls();
    node.remove("web");
    node.wait_removed("web").await;
    let calls = fake.calls();
    let order = [
        Rpc::ExecSync,
        Rpc::StopContainer,
        Rpc::StopPodSandbox,
        Rpc::RemoveContainer,
        Rpc::RemovePodSandbox,
    ];
    // The sandbox may be stopped once more before it is removed, which changes nothing.
    let firsts = order
        .map(|rpc| calls.iter().find(|call| call.rpc == rpc).unwrap_or_else(|| panic!("no {rpc}")));
    for pair in firsts.windows(2) {
        let ended = pair[0].at + pair[0].took.unwrap();
        assert!(ended <= pair[1].at, "{} before {} ended", pair[1].rpc, pair[0].rpc);
    }
    let stop = only(&calls, Rpc::StopContainer);
    assert_goes_on(only(&calls, Rpc::ExecSync), stop, 5.0);
    assert!(seconds(stop) <= 4.0, "what the hook left of the grace");
    only(&calls, Rpc::RemoveContainer);
    only(&calls, Rpc::RemovePodSandbox);
    node.wait_gone("web").await;
    assert_eq!(node.entries("logs"), [""; 0]);
    assert_eq!(node.entries("containers"), [""; 0]);
    assert_eq!(node.entries("root/pods"), [""; 0]);
    crate::support::wait::wait_for("the journal is empty", WAIT_LIMIT, async || {
        let left = node.entries("root/journal");
        crate::support::wait::holds(left.is_empty(), format!("{left:?}"))
    })
    .await;
}

/// A running pod whose hook takes a second, and that cannot be stopped; it has just been removed.
async fn hooked_and_unstoppable() -> Node {
    let node = Node::started().await;
    node.fake.on_exec(|_| ExecOutcome { delay: Duration::from_secs(1), ..ExecOutcome::code(0) });
    let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}});
    node.put(&pod("web", &[with(container("main"), hook)]));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.inject(Fault::fail(Rpc::StopContainer, Code::Internal, "no"));
    node.remove("web");
    let tried = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is tried", WAIT_LIMIT, tried).await;
    node
}

#[tokio::test]
async fn a_negative_grace_is_a_second() {
    let node = Node::started().await;
    node.put(&with_spec(simple("web"), json!({"terminationGracePeriodSeconds": -1})));
    node.wait_runs("web").await;
    node.remove("web");
    node.wait_removed("web").await;
    let stop = only(&node.calls("web", Rpc::StopContainer), Rpc::StopContainer).clone();
    // The least that a runtime is given.
    assert_eq!(seconds(&stop), 2.0);
}

#[tokio::test]
async fn the_next_try_to_stop_a_pod_runs_no_hook_again_and_goes_on_with_its_grace() {
    let node = hooked_and_unstoppable().await;
    node.fake.clear_faults();
    let gone = |fake: &FakeRuntime| fake.pod(&full("web")).is_none();
    let deadline = Duration::from_secs(25);
    node.fake.wait_until("it is tried again", deadline, gone).await;
    let hook = only(&node.calls("web", Rpc::ExecSync), Rpc::ExecSync).clone();
    let stops = node.calls("web", Rpc::StopContainer);
    assert_goes_on(&hook, &stops[0], 30.0);
    assert!(seconds(&stops[0]) <= 29.0, "what the hook left of it");
    assert_goes_on(&stops[0], &stops[1], seconds(&stops[0]));
}

/// What a stop gives the container, in seconds.
fn seconds(stop: &Call) -> f64 {
    stop.detail["timeout=".len()..].parse().unwrap()
}

/// The stop has what the earlier call, at which so much was left, left of it.
fn assert_goes_on(first: &Call, stop: &Call, seconds: f64) {
    let left = seconds - (stop.at - first.at).as_secs_f64();
    let given = self::seconds(stop);
    // Whole seconds are given, and a busy machine hears of it a little later.
    assert!((left - 2.0..=left + 2.0).contains(&given), "{given} of {left}");
}

#[tokio::test]
async fn a_hook_that_ran_is_not_run_again_by_the_next_kubelet() {
    let mut node = hooked_and_unstoppable().await;
    node.stop().await;
    node.fake.clear_faults();
    node.start().await;
    node.wait_removed("web").await;
    assert_eq!(node.calls("web", Rpc::ExecSync).len(), 1);
}

#[tokio::test]
async fn a_container_of_a_pod_that_stays_has_one_hook_and_one_grace_per_stop() {
    let node = Node::started().await;
    let exit_code = AtomicI32::new(0);
    // Readiness flips, so the pod is synced every second.
    node.fake.on_exec(move |call| match call.command[0].as_str() {
        "is-alive" => ExecOutcome::code(1),
        "flips" => ExecOutcome::code(exit_code.fetch_xor(1, Ordering::SeqCst)),
        _ => ExecOutcome::code(0),
    });
    node.fake.inject(Fault::fail(Rpc::StopContainer, Code::Internal, "no").times(3));
    let probed = json!({
        "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}},
        "livenessProbe": exec_probe("is-alive"),
        "readinessProbe": exec_probe("flips"),
    });
    node.put(&pod("web", &[with(container("main"), probed)]));
    let first = node.wait_runs("web").await;
    let stopped = |fake: &FakeRuntime| !fake.container(&first.id).is_some_and(|c| c.is_running());
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped).await;
    let mut hooks = node.calls("web", Rpc::ExecSync);
    hooks.retain(|call| call.detail.contains("bye") && call.subject.id == first.id);
    assert_eq!(hooks.len(), 1, "{hooks:?}");
    let stops = node.calls("web", Rpc::StopContainer);
    assert_goes_on(&stops[0], &stops[3], 30.0);
}

#[tokio::test]
async fn a_pod_that_does_not_listen_is_killed_when_its_grace_is_over() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ignores_term());
    node.put(&with_spec(simple("web"), json!({"terminationGracePeriodSeconds": 5})));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.remove("web");
    let requested = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped", WAIT_LIMIT, requested).await;
    assert!(node.pod("web").await.is_some(), "it is shown as long as it runs");
    node.wait_gone("web").await;
    let stops = node.calls("web", Rpc::StopContainer);
    let (stop, took) = (only(&stops, Rpc::StopContainer), stops[0].took.unwrap());
    let given = seconds(stop);
    assert!((2.0..=5.0).contains(&given), "{given}");
    assert!(took.as_secs_f64() >= given - 0.1, "{took:?}");
    node.wait_removed("web").await;
}

#[tokio::test]
async fn web_hooks_of_a_pod_on_the_nodes_network_go_to_the_node() {
    let node = Node::started().await;
    let (hello, bye) = (WebServer::start(200, "").await, WebServer::start(200, "").await);
    // No host is named.
    let hook = |server: &WebServer| json!({"httpGet": {"path": "/", "port": server.port()}});
    let hooks = json!({"lifecycle": {"postStart": hook(&hello), "preStop": hook(&bye)}});
    let on_node = json!({"hostNetwork": true});
    node.put(&with_spec(pod("web", &[with(container("main"), hooks)]), on_node));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    assert_eq!((hello.requested(), bye.requested()), (1, 0));
    node.remove("web");
    node.wait_removed("web").await;
    assert_eq!((hello.requested(), bye.requested()), (1, 1));
}

#[tokio::test]
async fn sidecars_are_stopped_after_everything_else() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ends_slowly(Duration::from_millis(400), 0));
    let always = |name| with(container(name), json!({"restartPolicy": "Always"}));
    let inits = json!({"initContainers": [always("outer"), always("inner")]});
    node.put(&with_spec(simple("web"), inits));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.remove("web");
    node.wait_removed("web").await;
    let stops = node.calls("web", Rpc::StopContainer);
    let names: Vec<_> = stops.iter().map(|call| call.subject.container.as_str()).collect();
    assert_eq!(names, ["main", "inner", "outer"]);
    assert!(stops[1].at - stops[0].at >= Duration::from_millis(400));
}

#[tokio::test]
async fn an_edited_pod_is_gone_before_the_new_one_starts() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ends_slowly(Duration::from_millis(300), 0));
    node.put(&version("web", "v1"));
    node.wait_runs("web").await;
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    node.put(&version("web", "v2"));
    let edited = |fake: &FakeRuntime| args_of(fake, "web") == ["v2"];
    node.fake.wait_until("the new one runs", WAIT_LIMIT, edited).await;
    overlaps.assert_never();
    let stopped = &node.calls("web", Rpc::StopPodSandbox)[0];
    let started = &node.calls("web", Rpc::RunPodSandbox)[1];
    assert!(stopped.at + stopped.took.unwrap() <= started.at);
    let alone = |fake: &FakeRuntime| fake.pods().len() == 1;
    node.fake.wait_until("the old one is removed", WAIT_LIMIT, alone).await;
    node.wait_phase("web", "Running").await;
    node.wait_shown(1).await;
}

#[tokio::test]
async fn of_many_quick_edits_the_last_one_runs_in_the_end() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ends_slowly(Duration::from_millis(200), 0));
    node.put(&version("web", "v0"));
    node.wait_runs("web").await;
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    for edit in 1..=8 {
        node.put(&version("web", &format!("v{edit}")));
        // Not to wait for anything, but to come at different moments of the pod's life.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let last = |fake: &FakeRuntime| args_of(fake, "web") == ["v8"] && fake.pods().len() == 1;
    node.fake.wait_until("only the last one runs", WAIT_LIMIT, last).await;
    overlaps.assert_never();
    node.wait_phase("web", "Running").await;
    node.wait_shown(1).await;
}

#[tokio::test]
async fn the_same_pod_put_back_while_it_ends_starts_afresh_afterwards() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ends_slowly(Duration::from_millis(700), 0));
    node.put(&simple("web"));
    let first = node.wait_runs("web").await;
    let uid = node.fake.pod(&full("web")).unwrap().uid;
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    node.remove("web");
    let requested = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped", WAIT_LIMIT, requested).await;
    node.put(&simple("web"));
    let again = |fake: &FakeRuntime| {
        let newest = fake.container(&format!("{}/main", full("web")));
        newest.is_some_and(|c| c.is_running() && c.id != first.id)
    };
    node.fake.wait_until("it runs again", WAIT_LIMIT, again).await;
    overlaps.assert_never();
    assert_eq!(node.fake.pod(&full("web")).unwrap().uid, uid);
    let alone = |fake: &FakeRuntime| fake.pods().len() == 1;
    node.fake.wait_until("the old one is removed", WAIT_LIMIT, alone).await;
    let shown = node.wait_phase("web", "Running").await;
    assert_eq!(phase(&shown), "Running");
}

#[tokio::test]
async fn an_edit_of_a_pod_with_a_uid_of_its_own_is_a_new_pod() {
    let node = Node::started().await;
    let fixed = |v: &str| with_metadata(version("web", v), json!({"uid": "my-own-uid"}));
    node.put(&fixed("v1"));
    node.wait_runs("web").await;
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    node.put(&fixed("v2"));
    let edited = |fake: &FakeRuntime| args_of(fake, "web") == ["v2"];
    node.fake.wait_until("the new one runs", WAIT_LIMIT, edited).await;
    overlaps.assert_never();
    assert_eq!(node.fake.pod(&full("web")).unwrap().uid, "my-own-uid");
}
