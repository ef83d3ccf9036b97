//! How pods are stopped, removed and replaced.

use std::time::Duration;

use serde_json::json;

use crate::node::{Node, SOON, Twins, full, phase};
use crate::pods::{container, pod, simple, version, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, Call, ExecOutcome, FakeRuntime, Options, Rpc};

fn only(calls: &[Call], rpc: Rpc) -> &Call {
    let mut found = calls.iter().filter(|call| call.rpc == rpc);
    let first = found.next().unwrap_or_else(|| panic!("no {rpc}"));
    assert!(found.next().is_none(), "more than one {rpc}");
    first
}

fn args_of(fake: &FakeRuntime, name: &str) -> Vec<String> {
    let found = fake.container(&format!("{}/main", full(name)));
    found
        .filter(|c| c.is_running())
        .map(|c| c.config.args)
        .unwrap_or_default()
}

#[tokio::test]
async fn a_removed_pod_ends_in_order_and_leaves_nothing() {
    let options = Options {
        write_logs: true,
        ..Options::default()
    };
    let mut node = Node::with(options).await;
    node.start().await;
    let fake = &node.fake;
    let life = Behaviour::ends_slowly(Duration::from_millis(300), 0).with_output(&["hello"]);
    fake.behave("main", life);
    fake.on_exec(|_| ExecOutcome {
        delay: Duration::from_millis(1100),
        ..ExecOutcome::code(0)
    });
    let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}});
    let spec = json!({"terminationGracePeriodSeconds": 5});
    node.put(&with_spec(
        pod("web", &[with(container("main"), hook)]),
        spec,
    ));
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
    let firsts = order.map(|rpc| {
        calls
            .iter()
            .find(|call| call.rpc == rpc)
            .unwrap_or_else(|| panic!("no {rpc}"))
    });
    for pair in firsts.windows(2) {
        let ended = pair[0].at + pair[0].took.unwrap();
        assert!(
            ended <= pair[1].at,
            "{} before {} ended",
            pair[1].rpc,
            pair[0].rpc
        );
    }
    let stop = only(&calls, Rpc::StopContainer);
    assert_eq!(stop.detail, "timeout=4", "what the hook left of the grace");
    only(&calls, Rpc::RemoveContainer);
    only(&calls, Rpc::RemovePodSandbox);
    node.wait_gone("web").await;
    assert_eq!(node.entries("logs"), [""; 0]);
    assert_eq!(node.entries("containers"), [""; 0]);
    assert_eq!(node.entries("root/pods"), [""; 0]);
    crate::support::wait::wait_for("the journal is empty", SOON, async || {
        let left = node.entries("root/journal");
        crate::support::wait::holds(left.is_empty(), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_does_not_listen_is_killed_when_its_grace_is_over() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ignores_term());
    node.put(&with_spec(
        simple("web"),
        json!({"terminationGracePeriodSeconds": 2}),
    ));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.remove("web");
    let asked = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake
        .wait_until("it is asked to end", SOON, asked)
        .await;
    assert!(
        node.pod("web").await.is_some(),
        "it is shown as long as it runs"
    );
    node.wait_gone("web").await;
    let took = node.calls("web", Rpc::StopContainer)[0].took.unwrap();
    assert!((1.9..3.0).contains(&took.as_secs_f64()), "{took:?}");
    node.wait_removed("web").await;
}

#[tokio::test]
async fn sidecars_are_stopped_after_everything_else() {
    let node = Node::started().await;
    node.fake.behave(
        "main",
        Behaviour::ends_slowly(Duration::from_millis(400), 0),
    );
    let always = |name| with(container(name), json!({"restartPolicy": "Always"}));
    let inits = json!({"initContainers": [always("outer"), always("inner")]});
    node.put(&with_spec(simple("web"), inits));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.remove("web");
    node.wait_removed("web").await;
    let stops = node.calls("web", Rpc::StopContainer);
    let names: Vec<_> = stops
        .iter()
        .map(|call| call.subject.container.as_str())
        .collect();
    assert_eq!(names, ["main", "inner", "outer"]);
    assert!(stops[1].at - stops[0].at >= Duration::from_millis(400));
}

#[tokio::test]
async fn an_edited_pod_is_gone_before_the_new_one_starts() {
    let node = Node::started().await;
    node.fake.behave(
        "main",
        Behaviour::ends_slowly(Duration::from_millis(300), 0),
    );
    node.put(&version("web", "v1"));
    node.wait_runs("web").await;
    let twins = Twins::watch(&node.fake, "web");
    node.put(&version("web", "v2"));
    let edited = |fake: &FakeRuntime| args_of(fake, "web") == ["v2"];
    node.fake.wait_until("the new one runs", SOON, edited).await;
    twins.assert_never();
    let stopped = &node.calls("web", Rpc::StopPodSandbox)[0];
    let started = &node.calls("web", Rpc::RunPodSandbox)[1];
    assert!(stopped.at + stopped.took.unwrap() <= started.at);
    let alone = |fake: &FakeRuntime| fake.pods().len() == 1;
    node.fake
        .wait_until("the old one is removed", SOON, alone)
        .await;
    node.wait_phase("web", "Running").await;
    node.wait_shown(1).await;
}

#[tokio::test]
async fn of_many_quick_edits_the_last_one_runs_in_the_end() {
    let node = Node::started().await;
    node.fake.behave(
        "main",
        Behaviour::ends_slowly(Duration::from_millis(200), 0),
    );
    node.put(&version("web", "v0"));
    node.wait_runs("web").await;
    let twins = Twins::watch(&node.fake, "web");
    for edit in 1..=8 {
        node.put(&version("web", &format!("v{edit}")));
        // Not to wait for anything, but to come at different moments of the pod's life.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let last = |fake: &FakeRuntime| args_of(fake, "web") == ["v8"] && fake.pods().len() == 1;
    node.fake
        .wait_until("only the last one runs", SOON, last)
        .await;
    twins.assert_never();
    node.wait_phase("web", "Running").await;
    node.wait_shown(1).await;
}

#[tokio::test]
async fn the_same_pod_put_back_while_it_ends_starts_afresh_afterwards() {
    let node = Node::started().await;
    node.fake.behave(
        "main",
        Behaviour::ends_slowly(Duration::from_millis(700), 0),
    );
    node.put(&simple("web"));
    let first = node.wait_runs("web").await;
    let uid = node.fake.pod(&full("web")).unwrap().uid;
    let twins = Twins::watch(&node.fake, "web");
    node.remove("web");
    let asked = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake
        .wait_until("it is asked to end", SOON, asked)
        .await;
    node.put(&simple("web"));
    let again = |fake: &FakeRuntime| {
        let newest = fake.container(&format!("{}/main", full("web")));
        newest.is_some_and(|c| c.is_running() && c.id != first.id)
    };
    node.fake.wait_until("it runs again", SOON, again).await;
    twins.assert_never();
    assert_eq!(node.fake.pod(&full("web")).unwrap().uid, uid);
    let alone = |fake: &FakeRuntime| fake.pods().len() == 1;
    node.fake
        .wait_until("the old one is removed", SOON, alone)
        .await;
    let shown = node.wait_phase("web", "Running").await;
    assert_eq!(phase(&shown), "Running");
}

#[tokio::test]
async fn an_edit_of_a_pod_with_a_uid_of_its_own_is_a_new_incarnation() {
    let node = Node::started().await;
    let fixed = |v: &str| with_metadata(version("web", v), json!({"uid": "my-own-uid"}));
    node.put(&fixed("v1"));
    node.wait_runs("web").await;
    let twins = Twins::watch(&node.fake, "web");
    node.put(&fixed("v2"));
    let edited = |fake: &FakeRuntime| args_of(fake, "web") == ["v2"];
    node.fake.wait_until("the new one runs", SOON, edited).await;
    twins.assert_never();
    assert_eq!(node.fake.pod(&full("web")).unwrap().uid, "my-own-uid");
}
