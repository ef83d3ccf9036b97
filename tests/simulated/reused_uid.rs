//! Pods that come back while what was there before is still being ended or removed.

use std::time::Duration;

use kubelet::cri::v1;
use serde_json::json;
use tonic::Code;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, WAIT_LIMIT, full, status_of};
use crate::pods::{container, pod, simple, version, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, Distortion, ExecOutcome, FakeRuntime, Fault, Rpc};

/// The manifest of a pod with the UID of a planted one.
fn successor(of: &str) -> serde_json::Value {
    with_metadata(simple("web"), json!({"uid": format!("uid-of-{of}")}))
}

async fn with_orphan(fault: Fault) -> Node {
    let mut node = Node::new().await;
    node.fake.inject(fault);
    let orphan = Plant::of_a_kubelet("lost").made_for_a_file();
    Planter::new(&node.fake).await.pod(&orphan).await;
    node.start().await;
    node
}

/// A pod that takes the UID of an orphan starts only when this call for the orphan has returned.
async fn successor_starts_after(rpc: Rpc) -> Node {
    let node = with_orphan(Fault::hang(rpc)).await;
    let is_called = |fake: &FakeRuntime| fake.count(rpc) > 0;
    node.fake.wait_until(&format!("{rpc} is called"), WAIT_LIMIT, is_called).await;
    node.put(&successor("lost"));
    let started = |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) > 1;
    assert!(node.never(Duration::from_millis(500), started).await);
    node.fake.clear_faults();
    node.fake.release(rpc);
    node.wait_runs("web").await;
    node
}

#[tokio::test]
async fn a_pod_that_comes_back_while_its_orphan_is_stopped_runs_after_that() {
    successor_starts_after(Rpc::StopContainer).await;
}

#[tokio::test]
async fn a_pod_that_comes_back_while_remains_of_its_uid_are_removed_starts_after_that() {
    let node = successor_starts_after(Rpc::RemovePodSandbox).await;
    node.wait_phase("web", "Running").await;
}

#[tokio::test]
async fn a_manifest_that_was_removed_and_is_back_at_once_restarts_its_pod() {
    let node = Node::started().await;
    let sidecar = json!({"restartPolicy": "Always"});
    let mut web = simple("web");
    web["spec"]["initContainers"] = json!([with(container("proxy"), sidecar)]);
    node.put(&web);
    let first = node.wait_runs("web").await;
    node.remove("web");
    node.put(&web);
    let has_restarted = |pod: &_, name| {
        let status = status_of(pod, name);
        status.is_some_and(|status| {
            status.restart_count == 1 && status.state.as_ref().is_some_and(|s| s.running.is_some())
        })
    };
    let restarted = |pod: &_| has_restarted(pod, "main") && has_restarted(pod, "proxy");
    let pod = node.wait_pod("web", "it has restarted", WAIT_LIMIT, restarted).await;
    let last = status_of(&pod, "main").and_then(|status| status.last_state.clone());
    let ended = last.and_then(|last| last.terminated).and_then(|ended| ended.container_id);
    assert!(ended.is_some_and(|id| id.ends_with(&first.id)));
    let all = node.fake.pods();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].containers.len(), 2);
}

#[tokio::test]
async fn remains_that_cannot_be_removed_are_no_flood() {
    let refused = Fault::fail(Rpc::RemovePodSandbox, Code::Internal, "not today");
    let node = with_orphan(refused).await;
    let tried = |fake: &FakeRuntime| fake.count(Rpc::RemovePodSandbox) > 0;
    node.fake.wait_until("its removal is tried", WAIT_LIMIT, tried).await;
    let often = |fake: &FakeRuntime| fake.count(Rpc::RemovePodSandbox) > 3;
    assert!(node.never(Duration::from_secs(2), often).await);
}

#[tokio::test]
async fn a_hook_that_was_interrupted_is_run_again_beside_a_container_that_crashes() {
    let mut node = Node::new().await;
    let crashes = Behaviour::exits(Duration::ZERO, 1);
    node.fake.behave(&format!("{}/crashy", full("web")), crashes);
    node.fake.on_exec(|_| ExecOutcome::code(0));
    node.fake.inject(Fault::hang(Rpc::ExecSync));
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}});
    let containers = [container("crashy"), with(container("main"), hook)];
    node.put(&pod("web", &containers));
    node.start().await;
    let hooked = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) > 0;
    node.fake.wait_until("the hook runs", WAIT_LIMIT, hooked).await;
    node.stop().await;
    node.fake.clear_faults();
    node.fake.clear_calls();
    node.start().await;
    node.fake.wait_until("it runs again", WAIT_LIMIT, hooked).await;
    let runs = |pod: &_| crate::node::runs(pod, "main");
    node.wait_pod("web", "runs", WAIT_LIMIT, runs).await;
}

#[tokio::test]
async fn a_container_that_ended_while_its_hook_was_interrupted_is_shown_as_ended() {
    let mut node = Node::new().await;
    node.fake.inject(Fault::hang(Rpc::ExecSync));
    let hook = json!({"lifecycle": {"postStart": {"exec": {"command": ["hello"]}}}});
    let once =
        with_spec(pod("web", &[with(container("main"), hook)]), json!({"restartPolicy": "Never"}));
    node.put(&once);
    node.start().await;
    let hooked = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) > 0;
    node.fake.wait_until("the hook runs", WAIT_LIMIT, hooked).await;
    node.stop().await;
    assert!(node.fake.exit(&full("web"), 3));
    node.fake.clear_faults();
    node.start().await;
    let shown = node.wait_phase("web", "Failed").await;
    let state = status_of(&shown, "main").and_then(|status| status.state.clone());
    let ended = state.and_then(|state| state.terminated);
    assert_eq!(ended.map(|ended| ended.exit_code), Some(3));
}

#[tokio::test]
async fn an_edit_that_keeps_the_uid_runs_the_new_version_under_every_policy() {
    let node = Node::started().await;
    for policy in ["Always", "OnFailure", "Never"] {
        let name = policy.to_lowercase();
        let made = |number: &str| {
            let spec = json!({"restartPolicy": policy});
            let uid = json!({"uid": format!("uid-of-{name}")});
            with_metadata(with_spec(version(&name, number), spec), uid)
        };
        node.put(&made("1"));
        node.wait_phase(&name, "Running").await;
        node.put(&made("2"));
        let is_new = |fake: &FakeRuntime| {
            let pods = fake.pods();
            let mut all = pods.iter().filter(|pod| pod.name == full(&name));
            all.any(|pod| {
                let mut containers = pod.containers.iter();
                containers.any(|c| c.is_running() && c.config.args == ["2"])
            })
        };
        node.fake.wait_until("the new version runs", WAIT_LIMIT, is_new).await;
        node.wait_phase(&name, "Running").await;
    }
}

#[tokio::test]
async fn a_pod_that_waits_for_a_runtime_status_starts_also_if_the_late_read_shows_no_change() {
    let mut node = Node::new().await;
    node.periods().pleg.relist_period_with_events = Duration::from_secs(1);
    // Until it can be read, the pod of the runtime may be wanted.
    node.manifests.put("bad.yaml", "not: [a manifest");
    let lost = Plant::of_a_kubelet("lost").made_for_a_file();
    Planter::new(&node.fake).await.pod(&lost).await;
    node.start().await;
    let reads = |fake: &FakeRuntime| fake.count(Rpc::ContainerStatus);
    node.fake.wait_until("it is read", WAIT_LIMIT, |fake| reads(fake) > 0).await;
    // A list that contradicts what was read makes the kubelet read the container again.
    let before = reads(&node.fake);
    node.fake.inject(Fault::hang(Rpc::ContainerStatus));
    let exited = v1::ContainerState::ContainerExited;
    node.fake.distort(Distortion::State(exited.into()));
    let again = |fake: &FakeRuntime| reads(fake) > before;
    node.fake.wait_until("it is read again", WAIT_LIMIT, again).await;
    node.fake.stop_distorting();
    node.put(&successor("lost"));
    let ended = |fake: &FakeRuntime| fake.count(Rpc::StopContainer) > 0;
    assert!(node.never(Duration::from_secs(1), ended).await);
    node.fake.clear_faults();
    node.wait_runs("web").await;
}
