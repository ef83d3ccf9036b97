//! Edits of static pods that keep the UID they were given: a new pod takes the place of the old one.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, WAIT_LIMIT, full, is_ready, status_of};
use crate::pods::{container, exec_probe, pod, simple, version, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, Call, ExecOutcome, FakeRuntime, Fault, Rpc};
use crate::support::wait::{holds, wait_for};

const UID: &str = "my-own-uid";

/// The pod `web` with a UID of its own and one container with these fields.
fn web(more: Value) -> Value {
    own(pod("web", &[with(container("main"), more)]))
}

fn own(pod: Value) -> Value {
    with_metadata(pod, json!({"uid": UID}))
}

fn args(fake: &FakeRuntime) -> Vec<String> {
    let main = fake.container(&format!("{}/main", full("web")));
    main.filter(|main| main.is_running()).map(|main| main.config.args).unwrap_or_default()
}

async fn wait_version(node: &Node, version: &str) {
    let runs = |fake: &FakeRuntime| args(fake) == [version];
    node.fake.wait_until(&format!("{version} runs"), WAIT_LIMIT, runs).await;
}

fn execs(fake: &FakeRuntime, word: &str) -> usize {
    let calls = fake.calls_of(Rpc::ExecSync);
    calls.iter().filter(|c| c.detail.contains(word)).count()
}

fn restarts(pod: &Pod) -> i32 {
    status_of(pod, "main").map_or(-1, |status| status.restart_count)
}

#[tokio::test]
async fn an_edited_liveness_probe_takes_the_place_of_the_old_one() {
    let node = Node::started().await;
    node.fake.on_exec(|call| match call.command[0].as_str() {
        "old" => ExecOutcome::code(1),
        _ => ExecOutcome::code(0),
    });
    let probe = |command: &str| {
        let probe = with(exec_probe(command), json!({"failureThreshold": 1000}));
        web(json!({"args": [command], "livenessProbe": probe}))
    };
    node.put(&probe("old"));
    node.fake.wait_until("it is probed", WAIT_LIMIT, |fake| execs(fake, "old") > 1).await;
    node.put(&probe("new"));
    wait_version(&node, "new").await;
    node.fake.wait_until("it is probed", WAIT_LIMIT, |fake| execs(fake, "new") > 1).await;
    node.fake.clear_calls();
    let by_the_old = |fake: &FakeRuntime| execs(fake, "old") > 0;
    assert!(node.never(Duration::from_millis(2500), by_the_old).await);
    // Without a probe nothing is run any more.
    node.put(&web(json!({"args": ["none"]})));
    wait_version(&node, "none").await;
    node.fake.clear_calls();
    let probed = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) > 0;
    assert!(node.never(Duration::from_millis(2500), probed).await);
}

#[tokio::test]
async fn a_failing_liveness_probe_that_was_removed_restarts_nothing() {
    let node = Node::started().await;
    node.fake.on_exec(|_| ExecOutcome::code(1));
    let probe = with(exec_probe("old"), json!({"failureThreshold": 1000}));
    node.put(&web(json!({"args": ["1"], "livenessProbe": probe})));
    node.fake.wait_until("it is probed", WAIT_LIMIT, |fake| execs(fake, "old") > 1).await;
    node.put(&web(json!({"args": ["2"]})));
    wait_version(&node, "2").await;
    let shown = node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
    assert_eq!(restarts(&shown), 0);
}

#[tokio::test]
async fn a_readiness_probe_that_was_added_is_run() {
    let node = Node::started().await;
    let liveness = exec_probe("is-alive");
    node.put(&web(json!({"args": ["1"], "livenessProbe": liveness})));
    node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
    let readiness = exec_probe("is-ready");
    node.put(&web(json!({"args": ["2"], "livenessProbe": liveness, "readinessProbe": readiness})));
    wait_version(&node, "2").await;
    node.fake.wait_until("it is probed", WAIT_LIMIT, |fake| execs(fake, "is-ready") > 0).await;
    node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
}

#[tokio::test]
async fn a_startup_probe_that_was_added_to_a_sidecar_lets_the_others_start() {
    let node = Node::started().await;
    let made = |number: &str, more: Value| {
        let side = with(container("side"), json!({"restartPolicy": "Always"}));
        let side = with(side, json!({"livenessProbe": exec_probe("is-alive")}));
        let main = with(container("main"), json!({"args": [number]}));
        let init = json!({"initContainers": [with(side, more)]});
        own(with_spec(pod("web", &[main]), init))
    };
    node.put(&made("1", json!({})));
    wait_version(&node, "1").await;
    node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
    node.put(&made("2", json!({"startupProbe": exec_probe("has-started")})));
    wait_version(&node, "2").await;
    assert!(execs(&node.fake, "has-started") > 0);
    node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
}

fn with_hook(number: &str, grace: i64) -> Value {
    let hook = json!({"exec": {"command": [format!("bye-{number}")]}});
    let made = web(json!({"args": [number], "lifecycle": {"preStop": hook}}));
    with_spec(made, json!({"terminationGracePeriodSeconds": grace}))
}

/// The hook of version 1 has run, once, before the one stop, which had its grace.
fn assert_ended_by_its_own_manifest(fake: &FakeRuntime) {
    let hooks = fake.calls_of(Rpc::ExecSync);
    assert_eq!((hooks.len(), execs(fake, "bye-1")), (1, 1), "{hooks:?}");
    let stops = fake.calls_of(Rpc::StopContainer);
    assert_eq!(stops.len(), 1, "{stops:?}");
    let timeout = stops[0].detail.strip_prefix("timeout=").unwrap();
    let timeout: i64 = timeout.parse().unwrap();
    assert!((15..=20).contains(&timeout), "{stops:?}");
    assert!(hooks[0].seq < stops[0].seq);
}

#[tokio::test]
async fn the_old_containers_stop_with_their_own_hooks_and_grace() {
    let node = Node::started().await;
    node.put(&with_hook("1", 20));
    wait_version(&node, "1").await;
    node.put(&with_hook("2", 60));
    wait_version(&node, "2").await;
    assert_ended_by_its_own_manifest(&node.fake);
}

#[tokio::test]
async fn so_do_they_when_the_edit_was_made_while_no_kubelet_ran() {
    for uid_stays in [true, false] {
        let mut node = Node::started().await;
        let made = |number: &str, grace| {
            let mut pod = with_hook(number, grace);
            if !uid_stays {
                pod["metadata"].as_object_mut().unwrap().remove("uid");
            }
            pod
        };
        node.put(&made("1", 20));
        wait_version(&node, "1").await;
        node.stop().await;
        node.fake.clear_calls();
        node.fake.behave("main", Behaviour::ends_slowly(Duration::from_millis(300), 0));
        node.put(&made("2", 60));
        node.start().await;
        wait_version(&node, "2").await;
        assert_ended_by_its_own_manifest(&node.fake);
    }
}

#[tokio::test]
async fn an_orphan_that_nothing_takes_the_place_of_has_the_least_grace() {
    let mut node = Node::new().await;
    let plant = Plant::of_a_kubelet("lost")
        .made_for_a_file()
        .noting("io.kubernetes.pod.terminationGracePeriod", "30");
    Planter::new(&node.fake).await.pod(&plant).await;
    node.start().await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped).await;
    let stops = node.fake.calls_of(Rpc::StopContainer);
    assert_eq!(stops[0].detail, "timeout=2");
}

#[tokio::test]
async fn the_deadline_and_the_start_are_those_of_the_new_pod() {
    let node = Node::started().await;
    let made = |number: &str| {
        let web = web(json!({"args": [number]}));
        with_spec(web, json!({"activeDeadlineSeconds": 4}))
    };
    let start = |pod: &Pod| pod.status.clone().unwrap().start_time.unwrap().0;
    node.put(&made("1"));
    let first = start(&node.wait_phase("web", "Running").await);
    // Most of its time is over.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    node.put(&made("2"));
    wait_version(&node, "2").await;
    let second = start(&node.wait_phase("web", "Running").await);
    assert!(second > first, "{second} is not after {first}");
    let started_at = Instant::now();
    node.wait_phase("web", "Failed").await;
    let lasted = started_at.elapsed();
    assert!(lasted > Duration::from_millis(2500), "it lasted {lasted:?}");
}

#[tokio::test]
async fn an_empty_dir_does_not_outlive_its_pod() {
    for kubelet_runs in [true, false] {
        let mut node = Node::started().await;
        let made = |number: &str| {
            let mounts = json!([{"name": "v", "mountPath": "/v"}]);
            let web = web(json!({"args": [number], "volumeMounts": mounts}));
            with_spec(web, json!({"volumes": [{"name": "v", "emptyDir": {}}]}))
        };
        node.put(&made("1"));
        wait_version(&node, "1").await;
        let volume = node.path(&format!("root/pods/{UID}/volumes/kubernetes.io~empty-dir/v"));
        std::fs::write(volume.join("data"), "of the first").unwrap();
        if !kubelet_runs {
            node.stop().await;
            // Then the runtime does not report that there was another one.
            node.fake.forget_everything();
        }
        node.put(&made("2"));
        if !kubelet_runs {
            node.start().await;
        }
        wait_version(&node, "2").await;
        assert!(volume.is_dir());
        assert!(!volume.join("data").exists());
    }
}

#[tokio::test]
async fn an_edit_of_a_pod_that_has_ended_runs_though_the_runtime_forgot_it() {
    let mut node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 0));
    let made = |number: &str| {
        let never = with_spec(version("done", number), json!({"restartPolicy": "Never"}));
        own(never)
    };
    node.put(&made("1"));
    node.wait_phase("done", "Succeeded").await;
    node.stop().await;
    node.fake.forget_everything();
    node.fake.behave("main", Behaviour::runs());
    node.put(&made("2"));
    node.start().await;
    assert_eq!(node.wait_runs("done").await.config.args, ["2"]);
}

#[tokio::test]
async fn a_sandbox_in_the_wrong_network_is_replaced_without_an_event() {
    let mut node = Node::new().await;
    let plant = Plant::of_a_kubelet(&full("web")).made_for_a_file();
    Planter::new(&node.fake).await.pod(&plant).await;
    let uid = json!({"uid": format!("uid-of-{}", full("web"))});
    let host = with_spec(simple("web"), json!({"hostNetwork": true}));
    node.put(&with_metadata(host, uid));
    node.start().await;
    let replaced = |fake: &FakeRuntime| {
        let pod = fake.pod(&full("web"));
        pod.is_some_and(|pod| pod.attempt == 1 && pod.containers.iter().any(|c| c.is_running()))
    };
    node.fake.wait_until("it is replaced", WAIT_LIMIT, replaced).await;
    node.wait_phase("web", "Running").await;
    let events = node.events().await;
    assert!(!events.contains("SandboxChanged"), "{events}");
}

#[tokio::test]
async fn a_rename_whose_remains_cannot_be_removed_is_no_flood() {
    let node = Node::started().await;
    node.put(&own(simple("one")));
    node.wait_runs("one").await;
    node.fake.inject(Fault::fail(Rpc::RemovePodSandbox, tonic::Code::Internal, "not today"));
    node.manifests.put("one.yaml", &own(simple("two")).to_string());
    let tried = |fake: &FakeRuntime| fake.count(Rpc::RemovePodSandbox) > 0;
    node.fake.wait_until("its removal is tried", WAIT_LIMIT, tried).await;
    let often = |fake: &FakeRuntime| fake.count(Rpc::RemovePodSandbox) > 3;
    assert!(node.never(Duration::from_secs(2), often).await);
    node.fake.clear_faults();
    node.wait_runs("two").await;
    node.wait_removed("one").await;
}

#[tokio::test]
async fn a_pod_that_waits_for_another_one_and_cannot_be_read_keeps_its_grace() {
    let mut node = Node::new().await;
    // Of the pod that is wanted, a dead sandbox can be read; what is in the other cannot be yet. Beside
    // it runs an older one of the same name, which takes its time to end.
    let mut planter = Planter::new(&node.fake).await;
    let plant = Plant::of_a_kubelet(&full("web")).made_for_a_file();
    planter.pod(&plant.clone()).await;
    node.fake.kill_sandbox(&full("web"));
    planter.pod(&plant.clone().attempt(1)).await;
    let wanted = format!("uid-of-{}", full("web"));
    let newer = node.fake.pods().into_iter().find(|pod| pod.ready).unwrap();
    planter.pod(&plant.uid("older")).await;
    node.fake.inject(Fault::hang(Rpc::StopContainer).only("older"));
    let unread =
        [(Rpc::PodSandboxStatus, &newer.id), (Rpc::ContainerStatus, &newer.containers[0].id)];
    for (rpc, id) in unread {
        let late = Fault::delay(rpc, Duration::from_secs(4));
        node.fake.inject(late.only(id));
    }
    let pod = with_spec(simple("web"), json!({"terminationGracePeriodSeconds": 50}));
    node.put(&with_metadata(pod, json!({"uid": wanted})));
    node.start().await;
    let stopping = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    node.fake.wait_until("the older one is stopped", WAIT_LIMIT, stopping).await;
    node.wait_shown(1).await;
    node.remove("web");
    let about = |call: &&Call| call.subject.uid == wanted;
    let stopped = |fake: &FakeRuntime| {
        let stops = fake.calls_of(Rpc::StopContainer);
        stops.iter().any(|call| about(&call))
    };
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped).await;
    let stops = node.fake.calls_of(Rpc::StopContainer);
    let timeout = &stops.iter().find(about).unwrap().detail;
    let timeout: i64 = timeout.strip_prefix("timeout=").unwrap().parse().unwrap();
    assert!(timeout > 30, "{timeout}");
}

#[tokio::test]
async fn a_manifest_that_cannot_be_read_holds_back_only_the_pod_that_it_made() {
    let mut node = Node::started().await;
    node.periods().housekeeping = Duration::from_millis(500);
    for name in ["spoilt", "removed", "vanished"] {
        node.put(&simple(name));
        node.wait_runs(name).await;
        node.wait_phase(name, "Running").await;
    }
    let vanished = node.fake.pod(&full("vanished")).unwrap();
    let uid = vanished.uid;
    node.stop().await;
    node.manifests.put("spoilt.yaml", "nonsense: [");
    node.manifests.put("notes.txt", "not a pod");
    node.remove("removed");
    node.remove("vanished");
    let mut planter = Planter::new(&node.fake).await;
    // A kubelet that noted no manifest made this one.
    let unknown = Plant::of_a_kubelet("unknown").made_for_a_file();
    planter.pod(&unknown).await;
    planter.remove_sandbox(&vanished.id).await;
    node.fake.clear_calls();
    node.start().await;
    node.wait_removed("removed").await;
    let left = || node.entries("root/pods").contains(&uid);
    let cleaned = |_: &FakeRuntime| !left();
    node.fake
        .wait_until("the directory of the one that vanished is gone", WAIT_LIMIT, cleaned)
        .await;
    let ended = |fake: &FakeRuntime, name: &str| {
        let pod = fake.pod(name);
        pod.is_none_or(|pod| !pod.containers[0].is_running())
    };
    let any_ended = |fake: &FakeRuntime| ended(fake, &full("spoilt")) || ended(fake, "unknown");
    assert!(node.never(Duration::from_secs(1), any_ended).await);
    // The manifest is gone for good.
    node.remove("spoilt");
    node.wait_removed("spoilt").await;
    assert!(!ended(&node.fake, "unknown"));
    std::fs::remove_file(node.manifests.dir().join("notes.txt")).unwrap();
    let gone = |fake: &FakeRuntime| fake.pod("unknown").is_none();
    node.fake.wait_until("so is the last", WAIT_LIMIT, gone).await;
}

#[tokio::test]
async fn a_manifest_that_was_moved_is_where_its_pod_is_from() {
    let mut node = Node::started().await;
    node.put(&own(simple("web")));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    let dir = node.manifests.dir().to_owned();
    std::fs::rename(dir.join("web.yaml"), dir.join("moved.yaml")).unwrap();
    let state_store = node.path(&format!("root/journal/{UID}.json"));
    let noted = |_: &FakeRuntime| {
        let text = std::fs::read_to_string(&state_store).unwrap_or_default();
        text.contains("moved.yaml")
    };
    node.fake.wait_until("that is noted", WAIT_LIMIT, noted).await;
    node.stop().await;
    node.manifests.put("moved.yaml", "nonsense: [");
    node.fake.clear_calls();
    node.put(&simple("other"));
    node.start().await;
    node.wait_runs("other").await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    assert!(node.never(Duration::from_secs(1), stopped).await);
}

#[tokio::test]
async fn a_pod_waits_until_it_is_known_whose_another_one_of_its_name_is() {
    for source in ["file", "api"] {
        let mut node = Node::new().await;
        let plant = Plant::of_a_kubelet(&full("web")).made_for(source);
        Planter::new(&node.fake).await.pod(&plant).await;
        node.fake.inject(Fault::hang(Rpc::PodSandboxStatus));
        node.fake.inject(Fault::hang(Rpc::ContainerStatus));
        node.fake.clear_calls();
        node.put(&simple("web"));
        node.start().await;
        let touched = |fake: &FakeRuntime| fake.mutations() > 0;
        assert!(node.never(Duration::from_secs(2), touched).await);
        node.fake.clear_faults();
        let of_name = |fake: &FakeRuntime| {
            let pods = fake.pods();
            pods.iter().filter(|pod| pod.ready).count()
        };
        let beside = usize::from(source == "api");
        let runs = |fake: &FakeRuntime| {
            let started = fake.count(Rpc::StartContainer) == 1;
            started && of_name(fake) == 1 + beside
        };
        node.fake.wait_until("it runs", WAIT_LIMIT, runs).await;
        let stops = node.fake.count(Rpc::StopContainer);
        assert_eq!(stops == 0, source == "api");
    }
}

#[tokio::test]
async fn a_record_that_a_killed_kubelet_had_not_removed_does_not_end_the_pod_that_was_edited() {
    let mut node = Node::new().await;
    node.start().await;
    let once = |number: &str| {
        let pod = pod("web", &[with(container("main"), json!({"args": [number]}))]);
        own(with_spec(pod, json!({"restartPolicy": "Never"})))
    };
    node.put(&once("1"));
    wait_version(&node, "1").await;
    node.fake.exit(&format!("{}/main", full("web")), 0);
    node.wait_phase("web", "Succeeded").await;
    let record = node.path(&format!("root/journal/{UID}.json"));
    wait_for("its end is on disk", WAIT_LIMIT, async || {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        holds(text.contains("terminal"), text)
    })
    .await;
    let of_the_first = std::fs::read(&record).unwrap();
    node.put(&once("2"));
    wait_version(&node, "2").await;
    node.stop().await;
    // As if the kubelet had been killed before the removal was on disk.
    std::fs::write(&record, of_the_first).unwrap();
    node.start().await;
    node.wait_phase("web", "Running").await;
    let ended = |fake: &FakeRuntime| args(fake) != ["2"];
    assert!(node.never(Duration::from_millis(500), ended).await);
}
