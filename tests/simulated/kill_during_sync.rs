//! A pod is removed while its sync is in the middle of something that takes long.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::{container, exec_probe, pod, simple, version, with, with_spec};
use crate::support::dead_fs::DeadFs;
use crate::support::fake_runtime::{Behaviour, ExecOutcome, FakeRuntime, Fault, Rpc};
use crate::virtual_time::real_time;

/// Enough for another stop to begin, and far less than what it must not wait for.
const PROMPTLY: Duration = Duration::from_secs(20);

fn stopped(name: &str) -> impl Fn(&FakeRuntime) -> bool {
    let name = name.to_owned();
    move |fake| {
        let calls = fake.calls_of(Rpc::StopContainer);
        calls.iter().any(|call| call.subject.container == name)
    }
}

#[tokio::test]
async fn a_removal_shortens_the_stop_that_a_failed_probe_began() {
    let node = Node::started().await;
    node.fake.on_exec(|_| ExecOutcome::code(1));
    node.fake.behave("main", Behaviour::ignores_term());
    let probe = with(exec_probe("is-alive"), json!({"terminationGracePeriodSeconds": 3600}));
    let main = with(container("main"), json!({"livenessProbe": probe}));
    let web = pod("web", &[main, container("other")]);
    node.put(&with_spec(web, json!({"terminationGracePeriodSeconds": 3})));
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped("main")).await;
    node.remove("web");
    node.fake.wait_until("the others are stopped", PROMPTLY, stopped("other")).await;
    node.wait_removed("web").await;
}

#[tokio::test]
async fn a_removal_goes_on_with_the_hook_of_a_stop_that_a_failed_probe_began() {
    let node = Node::started().await;
    node.fake.on_exec(|call| match call.command[0].as_str() {
        "is-alive" => ExecOutcome::code(1),
        _ => ExecOutcome { delay: Duration::from_secs(5), ..ExecOutcome::code(0) },
    });
    let probed = json!({
        "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}},
        "livenessProbe": exec_probe("is-alive"),
    });
    node.put(&pod("web", &[with(container("main"), probed), container("other")]));
    let hooks = |fake: &FakeRuntime| {
        let mut calls = fake.calls_of(Rpc::ExecSync);
        calls.retain(|call| call.detail.contains("bye"));
        calls
    };
    let hooked = |fake: &FakeRuntime| !hooks(fake).is_empty();
    node.fake.wait_until("its hook runs", WAIT_LIMIT, hooked).await;
    node.remove("web");
    node.fake.wait_until("the others are stopped", PROMPTLY, stopped("other")).await;
    assert!(!stopped("main")(&node.fake), "the others do not wait for its hook");
    node.wait_removed("web").await;
    let hooks = hooks(&node.fake);
    assert_eq!(hooks.len(), 1, "{hooks:?}");
    assert!(hooks[0].succeeded(), "{hooks:?}");
}

#[tokio::test]
async fn a_removal_does_not_wait_for_a_dead_instance_that_is_being_removed() {
    let node = Node::started().await;
    node.fake.inject(Fault::hang(Rpc::RemoveContainer));
    node.put(&pod("web", &[container("main"), container("other")]));
    node.wait_runs("web").await;
    let removing = |fake: &FakeRuntime| fake.count(Rpc::RemoveContainer) > 0;
    for _ in 0..2 {
        let exited = |fake: &FakeRuntime| fake.exit("main", 1);
        node.fake.wait_until("it exits", WAIT_LIMIT, exited).await;
    }
    node.fake.wait_until("the oldest is being removed", WAIT_LIMIT, removing).await;
    node.remove("web");
    node.fake.wait_until("it is stopped", PROMPTLY, stopped("other")).await;
    node.fake.clear_faults();
    node.wait_removed("web").await;
}

#[tokio::test]
async fn a_stop_that_failed_is_tried_again_after_two_seconds_and_then_less_often() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.fake.inject(Fault::fail(Rpc::StopContainer, Code::Internal, "no").times(3));
    node.remove("web");
    node.wait_removed("web").await;
    let stops = node.calls("web", Rpc::StopContainer);
    let pauses: Vec<f64> =
        stops.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
    assert_eq!(pauses.len(), 3);
    for (pause, (least, most)) in pauses.iter().zip([(1.9, 5.0), (3.9, 8.0), (7.9, 14.0)]) {
        assert!((least..most).contains(pause), "{pauses:?}");
    }
}

/// Waits until the pod has got as far as its container `first`, and removes it then.
async fn removed_behind(node: &Node) {
    let first = format!("{}/first", full("web"));
    let runs = |fake: &FakeRuntime| fake.container(&first).is_some_and(|c| c.is_running());
    node.fake.wait_until("the first one runs", WAIT_LIMIT, runs).await;
    // Nothing shows that the files of the second one hang.
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.remove("web");
    node.fake.wait_until("it is stopped", PROMPTLY, stopped("first")).await;
    node.wait_removed("web").await;
    node.wait_gone("web").await;
    assert_eq!(node.entries("root/pods"), [""; 0]);
}

#[tokio::test]
async fn a_sub_path_of_a_file_system_that_hangs_does_not_keep_a_pod_running() {
    real_time("a thread is held by the file system that hangs");
    let node = Node::started().await;
    let Some(dead) = DeadFs::mount(&node.path("dead")) else {
        return;
    };
    let mount = json!({"volumeMounts": [{"name": "dead", "mountPath": "/in", "subPath": "part"}]});
    let volume = json!({"volumes": [{"name": "dead", "hostPath": {"path": dead.path()}}]});
    let containers = [container("first"), with(container("main"), mount)];
    node.put(&with_spec(pod("web", &containers), volume));
    removed_behind(&node).await;
}

#[tokio::test]
async fn objects_on_a_file_system_that_hangs_do_not_keep_a_pod_running() {
    real_time("a thread is held by the file system that hangs");
    let mut node = Node::new().await;
    let objects = node.path("objects");
    std::fs::create_dir(&objects).unwrap();
    node.argue(&format!("--local-objects-dir={}", objects.display()));
    node.start().await;
    let Some(_dead) = DeadFs::mount(&objects) else {
        return;
    };
    let env = json!({"envFrom": [{"configMapRef": {"name": "settings"}}]});
    let containers = [container("first"), with(container("main"), env)];
    node.put(&pod("web", &containers));
    removed_behind(&node).await;
}

#[tokio::test]
async fn a_pod_starts_once_its_manifest_no_longer_names_a_host_path_that_hangs() {
    real_time("a thread is held by the file system that hangs");
    let node = Node::started().await;
    let Some(dead) = DeadFs::mount(&node.path("dead")) else {
        return;
    };
    let mount = json!({"volumeMounts": [{"name": "dead", "mountPath": "/in"}]});
    let volume = json!({"path": dead.path(), "type": "Directory"});
    let volume = json!({"volumes": [{"name": "dead", "hostPath": volume}]});
    node.put(&with_spec(pod("web", &[with(container("main"), mount)]), volume));
    node.explained("web", "its volume hangs", |reported| {
        reported["doing"]["step"] == "setting up volumes"
    })
    .await;
    node.put(&version("web", "mended"));
    let mended = node.wait_runs("web").await;
    assert_eq!(mended.config.args, ["mended"]);
}
