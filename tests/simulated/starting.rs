//! How pods start: order, gates, company.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::node::{Node, WAIT_LIMIT, full, runs, status_of};
use crate::pods::{container, exec_probe, pod, simple, with, with_spec};
use crate::support::fake_runtime::{Behaviour, ExecOutcome, FakeRuntime, Rpc};

fn started(fake: &FakeRuntime) -> Vec<String> {
    let calls = fake.calls_of(Rpc::StartContainer);
    calls.into_iter().map(|call| call.subject.container).collect()
}

#[tokio::test]
async fn init_containers_and_sidecars_start_one_after_the_other_before_the_rest() {
    let node = Node::started().await;
    let fake = &node.fake;
    fake.behave("first", Behaviour::exits(Duration::from_millis(100), 0));
    fake.behave("second", Behaviour::exits(Duration::from_millis(100), 0));
    let inits = json!({"initContainers": [
        container("first"),
        with(container("side"), json!({"restartPolicy": "Always"})),
        container("second"),
    ]});
    node.put(&with_spec(pod("web", &[container("main"), container("other")]), inits));
    let all_run = |pod: &_| runs(pod, "main") && runs(pod, "other") && runs(pod, "side");
    let shown = node.wait_pod("web", "all run", WAIT_LIMIT, all_run).await;
    assert_eq!(started(fake), ["first", "side", "second", "main", "other"]);
    assert_eq!(fake.count(Rpc::RunPodSandbox), 1);
    let second = status_of(&shown, "second").unwrap().state.clone().unwrap();
    assert_eq!(second.terminated.unwrap().exit_code, 0);
    let starts = fake.calls_of(Rpc::StartContainer);
    let waited = |a: usize, b: usize| starts[b].at - starts[a].at >= Duration::from_millis(100);
    assert!(waited(0, 1) && waited(2, 3), "an init container was not waited for");
}

#[tokio::test]
async fn a_failed_init_container_is_run_again_and_nothing_else_starts_before_it_succeeds() {
    let node = Node::started().await;
    let lives = vec![Behaviour::exits(Duration::ZERO, 1), Behaviour::exits(Duration::ZERO, 0)];
    node.fake.behave_in_turn("setup", lives);
    let inits = json!({"initContainers": [container("setup")]});
    node.put(&with_spec(simple("web"), inits));
    node.wait_runs("web").await;
    assert_eq!(started(&node.fake), ["setup", "setup", "main"]);
}

#[tokio::test]
async fn a_failed_init_container_of_a_pod_that_never_restarts_ends_the_pod() {
    let node = Node::started().await;
    node.fake.behave("setup", Behaviour::exits(Duration::ZERO, 1));
    let spec = json!({"initContainers": [container("setup")], "restartPolicy": "Never"});
    node.put(&with_spec(simple("web"), spec));
    node.wait_phase("web", "Failed").await;
    assert_eq!(started(&node.fake), ["setup"]);
}

#[tokio::test]
async fn a_sidecar_that_has_not_started_up_keeps_the_next_container_waiting() {
    let node = Node::started().await;
    let up = Arc::new(AtomicBool::new(false));
    let seen = up.clone();
    node.fake.on_exec(move |_| {
        if seen.load(Ordering::SeqCst) { ExecOutcome::code(0) } else { ExecOutcome::code(1) }
    });
    let probe = with(exec_probe("is-up"), json!({"failureThreshold": 100}));
    let side = json!({"restartPolicy": "Always", "startupProbe": probe});
    let inits = json!({"initContainers": [with(container("side"), side)]});
    node.put(&with_spec(simple("web"), inits));
    node.fake
        .wait_until("the sidecar is probed twice", WAIT_LIMIT, |fake| {
            fake.count(Rpc::ExecSync) >= 2
        })
        .await;
    assert_eq!(started(&node.fake), ["side"]);
    up.store(true, Ordering::SeqCst);
    node.wait_runs("web").await;
}

#[tokio::test]
async fn no_other_probe_runs_before_the_container_has_started_up() {
    let node = Node::started().await;
    let up = Arc::new(AtomicBool::new(false));
    let seen = up.clone();
    node.fake.on_exec(move |call| {
        let fails = call.command == ["is-up"] && !seen.load(Ordering::SeqCst);
        ExecOutcome::code(i32::from(fails))
    });
    let probes = json!({
        "startupProbe": with(exec_probe("is-up"), json!({"failureThreshold": 100})),
        "livenessProbe": exec_probe("is-alive"),
        "readinessProbe": exec_probe("is-ready"),
    });
    node.put(&pod("web", &[with(container("main"), probes)]));
    node.fake
        .wait_until("startup is probed twice", WAIT_LIMIT, |fake| fake.count(Rpc::ExecSync) >= 2)
        .await;
    let asked_early = |calls: &[crate::support::fake_runtime::Call]| {
        calls
            .iter()
            .any(|call| call.detail.contains("is-alive") || call.detail.contains("is-ready"))
    };
    assert!(!asked_early(&node.fake.calls_of(Rpc::ExecSync)));
    let shown = node.pod("web").await.unwrap();
    assert_eq!(status_of(&shown, "main").unwrap().started, Some(false));
    up.store(true, Ordering::SeqCst);
    let ready = |pod: &_| status_of(pod, "main").is_some_and(|status| status.ready);
    let shown = node.wait_pod("web", "main is ready", WAIT_LIMIT, ready).await;
    assert_eq!(status_of(&shown, "main").unwrap().started, Some(true));
}

#[tokio::test]
async fn two_pods_of_one_name_in_two_namespaces_both_run() {
    let node = Node::started().await;
    let mut other = simple("web");
    other["metadata"]["namespace"] = json!("other");
    node.put(&simple("web"));
    node.manifests.put("other.yaml", &other.to_string());
    let both = |fake: &FakeRuntime| {
        let name = full("web");
        let pods = fake.pods();
        let live = pods.iter().filter(|pod| pod.name == name && pod.ready);
        live.filter(|pod| pod.containers.iter().any(|c| c.is_running())).count() == 2
    };
    node.fake.wait_until("both run", WAIT_LIMIT, both).await;
    node.remove("web");
    let one = |fake: &FakeRuntime| {
        let left = fake.pods();
        left.len() == 1 && left[0].namespace == "other" && left[0].ready
    };
    node.fake.wait_until("only the other is left", WAIT_LIMIT, one).await;
}

#[tokio::test]
async fn without_a_pod_network_only_pods_of_the_hosts_network_start() {
    let mut node = Node::new().await;
    node.fake.set_network_ready(Err("no CNI configuration"));
    node.start().await;
    node.put(&with_spec(simple("host"), json!({"hostNetwork": true})));
    node.put(&simple("web"));
    node.wait_runs("host").await;
    let refused = |events: String| events.contains("NetworkNotReady") && events.contains("no CNI");
    crate::support::wait::wait_for("an event says why", WAIT_LIMIT, async || {
        crate::support::wait::holds(refused(node.events().await), "no such event")
    })
    .await;
    assert!(node.fake.pod(&full("web")).is_none());
    node.fake.set_network_ready(Ok(()));
    node.wait_runs("web").await;
}

#[tokio::test]
async fn a_missing_cluster_dns_is_an_event_of_the_node_and_one_of_the_pod() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    let events: serde_json::Value = serde_json::from_str(&node.events().await).unwrap();
    let events = events["items"].as_array().unwrap().iter();
    let mut kinds: Vec<_> = events
        .filter(|event| event["reason"] == "MissingClusterDNS")
        .map(|event| event["involvedObject"]["kind"].clone())
        .collect();
    kinds.sort_by_key(serde_json::Value::to_string);
    assert_eq!(kinds, ["Node", "Pod"]);
}
