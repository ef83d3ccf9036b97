//! The kubelet dies, ends or is away; pods do not care.

use std::time::Duration;

use serde_json::json;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{
    Node, OverlapWatch, WAIT_LIMIT, backs_off_for, calls, full, is_ready, phase, put, status_of,
    wait_runs, waits_for,
};
use crate::pods::{container, exec_probe, pod, simple, version, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, Call, FakeRuntime, Fault, Options, Rpc};
use crate::support::http;
use crate::support::kubelet_process::KubeletProcess;
use crate::support::wait::{holds, wait_for};

async fn process(fake: &FakeRuntime) -> (tempfile::TempDir, KubeletProcess) {
    let dir = tempfile::tempdir().unwrap();
    let kubelet = Node::process(fake, dir.path()).await;
    (dir, kubelet)
}

async fn shown(kubelet: &KubeletProcess, name: &str) -> Option<k8s_openapi::api::core::v1::Pod> {
    kubelet.pod("default", &full(name)).await
}

async fn wait_shown(
    kubelet: &KubeletProcess,
    name: &str,
    fact: impl Fn(&k8s_openapi::api::core::v1::Pod) -> bool,
) {
    wait_for(name, WAIT_LIMIT, async || match shown(kubelet, name).await {
        Some(pod) if fact(&pod) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

fn mutating(fake: &FakeRuntime) -> Vec<Call> {
    let mut calls = fake.calls();
    calls.retain(|call| call.rpc.is_mutating());
    calls
}

#[tokio::test]
async fn a_kubelet_killed_and_started_again_changes_nothing() {
    let fake = FakeRuntime::start(Options::default()).await;
    let (dir, mut kubelet) = process(&fake).await;
    fake.behave(&full("crashy"), Behaviour::exits(Duration::ZERO, 1));
    fake.behave(&full("done"), Behaviour::exits(Duration::ZERO, 0));
    let probe = json!({"readinessProbe": exec_probe("is-ready")});
    put(&kubelet.manifests, &pod("web", &[with(container("main"), probe)]));
    put(&kubelet.manifests, &with_spec(simple("done"), json!({"restartPolicy": "Never"})));
    put(&kubelet.manifests, &simple("crashy"));
    wait_shown(&kubelet, "web", is_ready).await;
    wait_shown(&kubelet, "done", |pod| phase(pod) == "Succeeded").await;
    // It is shown as ended before its sandbox is stopped, which a restarted kubelet would have to make good.
    let stopped = |fake: &FakeRuntime| fake.pod(&full("done")).is_some_and(|pod| !pod.ready);
    fake.wait_until("the ended pod is stopped", WAIT_LIMIT, stopped).await;
    let backs_off = |pod: &_| backs_off_for(pod, "main", "10s");
    wait_shown(&kubelet, "crashy", backs_off).await;
    let before = fake.pods();
    let uid = fake.pod(&full("web")).unwrap().uid;
    let state_store = dir.path().join(format!("root/journal/{uid}.json"));
    // What is settled is written at once, which takes a moment all the same.
    wait_for("readiness is on disk", WAIT_LIMIT, async || {
        let text = std::fs::read_to_string(&state_store).unwrap_or_default();
        holds(text.contains("\"readiness\":true"), text)
    })
    .await;
    let crashes = calls(&fake, "crashy", Rpc::StartContainer);
    kubelet.kill();
    let written_at = || std::fs::metadata(&state_store).unwrap().modified().unwrap();
    let written = written_at();
    // Times of a status have a resolution of a second; the new process must not have those of the old one by accident.
    tokio::time::sleep(Duration::from_secs(1)).await;
    fake.clear_calls();
    kubelet.respawn();
    let port = kubelet.read_only_port;
    let mut flips = 0;
    let third = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) > 0;
    while !fake.comes_true(Duration::from_millis(5), third).await {
        for pod in http::pods(port).await.unwrap_or_default() {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let status = pod.status.clone().unwrap_or_default();
            assert!(status.conditions.is_some(), "{pod:?}");
            if name == full("web") && !is_ready(&pod) {
                println!("not ready: {pod:?}");
                flips += 1;
            }
            let ended = name != full("done") || phase(&pod) == "Succeeded";
            assert!(ended, "{pod:?}");
            let backs_off = waits_for(&pod, "main") == "CrashLoopBackOff";
            assert!(!backs_off || backs_off_for(&pod, "main", "10s"), "{pod:?}");
        }
        assert!(
            crashes[1].at.elapsed() < WAIT_LIMIT,
            "the crashing container is not started again"
        );
    }
    assert_eq!(flips, 0, "the pod was shown as not ready");
    let gap = calls(&fake, "crashy", Rpc::StartContainer)[0].at - crashes[1].at;
    assert!(gap.as_secs_f64() >= 10.0, "the back-off became {gap:?}");
    let count = |pod: &_| status_of(pod, "main").is_some_and(|s| s.restart_count == 2);
    wait_shown(&kubelet, "crashy", count).await;
    let ids = |pods: &[crate::support::fake_runtime::PodView]| {
        let of = |name: &str| pods.iter().find(|pod| pod.name == full(name)).cloned().unwrap();
        ["web", "done"].map(|name| (of(name).id, of(name).containers[0].id.clone()))
    };
    assert_eq!(ids(&fake.pods()), ids(&before));
    assert_eq!(written_at(), written, "an unchanged record is written again");
    for call in mutating(&fake) {
        let expected: &[Rpc] = if call.subject.pod == full("crashy") {
            &[Rpc::CreateContainer, Rpc::StartContainer, Rpc::RemoveContainer]
        } else {
            &[]
        };
        assert!(expected.contains(&call.rpc), "{call:?}");
    }
}

#[tokio::test]
async fn a_kubelet_asked_to_end_leaves_the_pods_as_they_are() {
    let fake = FakeRuntime::start(Options::default()).await;
    let (_dir, mut kubelet) = process(&fake).await;
    put(&kubelet.manifests, &simple("web"));
    wait_runs(&fake, "web").await;
    wait_shown(&kubelet, "web", |pod| phase(pod) == "Running").await;
    fake.clear_calls();
    assert!(kubelet.terminate(WAIT_LIMIT).await.success());
    assert_eq!(fake.mutations(), 0);
    assert!(fake.container("main").unwrap().is_running());
    kubelet.respawn();
    kubelet.wait_healthy(WAIT_LIMIT).await;
    wait_shown(&kubelet, "web", |pod| phase(pod) == "Running").await;
    assert_eq!(fake.mutations(), 0);
}

#[tokio::test]
async fn from_its_first_moment_on_a_restarted_kubelet_shows_pods_as_they_are() {
    let mut node = Node::new().await;
    let probe = json!({"readinessProbe": exec_probe("is-ready")});
    node.put(&pod("web", &[with(container("main"), probe)]));
    node.start().await;
    node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
    node.stop().await;
    // So that it is long wrong if it is.
    let late = Fault::delay(Rpc::ContainerStatus, Duration::from_millis(200));
    node.fake.inject(late);
    node.start().await;
    let first = wait_for("it is shown", WAIT_LIMIT, async || {
        node.pod("web").await.ok_or_else(|| "it is not".to_owned())
    })
    .await;
    assert_eq!(phase(&first), "Running", "{first:?}");
    assert!(is_ready(&first), "{first:?}");
}

#[tokio::test]
async fn a_pod_that_cannot_be_read_yet_is_shown_as_the_kubelet_before_showed_it() {
    let mut node = Node::new().await;
    let probe = json!({"readinessProbe": exec_probe("is-ready")});
    node.put(&pod("web", &[with(container("main"), probe)]));
    node.put(&simple("crashy"));
    node.fake.behave(&full("crashy"), Behaviour::exits(Duration::ZERO, 1));
    node.start().await;
    let before = node.wait_pod("web", "is ready", WAIT_LIMIT, is_ready).await;
    let backs_off = |pod: &_| crate::node::waits_for(pod, "main") == "CrashLoopBackOff";
    node.wait_pod("crashy", "backs off", WAIT_LIMIT, backs_off).await;
    let shown = node.pods().await;
    node.stop().await;
    node.fake.inject(Fault::hang(Rpc::ContainerStatus));
    node.start().await;
    // There is no moment at which there are no pods.
    let first = node.pods().await;
    assert_eq!(first.len(), 2, "{first:?}");
    for pod in &first {
        assert_eq!(phase(pod), "Running", "{pod:?}");
        let web = pod.metadata.name == before.metadata.name;
        assert_eq!(is_ready(pod), web, "{pod:?}");
        let before = shown.iter().find(|before| before.metadata.uid == pod.metadata.uid);
        assert_eq!(pod.status, before.unwrap().status);
    }
    node.fake.clear_faults();
    let read = |pod: &_| crate::node::runs(pod, "main") && is_ready(pod);
    let after = node.wait_pod("web", "was read", WAIT_LIMIT, read).await;
    let conditions =
        |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone().unwrap_or_default().conditions;
    assert_eq!(conditions(&after), conditions(&before));
}

#[tokio::test]
async fn a_manifest_edited_meanwhile_replaces_the_old_pod_in_order() {
    let mut node = Node::started().await;
    node.put(&version("web", "v1"));
    node.wait_runs("web").await;
    node.stop().await;
    node.fake.behave("main", Behaviour::ends_slowly(Duration::from_millis(300), 0));
    let overlaps = OverlapWatch::watch(&node.fake, "web");
    node.put(&version("web", "v2"));
    node.start().await;
    let edited = |fake: &FakeRuntime| {
        let pods = fake.pods();
        let newest = pods.last().and_then(|pod| pod.containers.last());
        pods.len() == 1 && newest.is_some_and(|c| c.is_running() && c.config.args == ["v2"])
    };
    node.fake.wait_until("only the new one runs", WAIT_LIMIT, edited).await;
    overlaps.assert_never();
}

#[tokio::test]
async fn a_manifest_removed_meanwhile_ends_its_pod() {
    let mut node = Node::started().await;
    node.put(&simple("web"));
    node.put(&simple("stays"));
    node.wait_runs("web").await;
    node.wait_runs("stays").await;
    node.stop().await;
    node.fake.clear_calls();
    node.remove("web");
    node.start().await;
    node.wait_removed("web").await;
    node.wait_phase("stays", "Running").await;
    assert!(node.calls("stays", Rpc::StopContainer).is_empty());
    wait_for("its directories are gone", WAIT_LIMIT, async || {
        let left = node.entries("root/pods");
        holds(left.len() == 1, format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_ended_is_not_run_again_even_if_the_runtime_forgot_it() {
    let mut node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 0));
    node.put(&with_spec(simple("done"), json!({"restartPolicy": "Never"})));
    node.wait_phase("done", "Succeeded").await;
    node.stop().await;
    node.fake.forget_everything();
    node.fake.clear_calls();
    node.put(&simple("other"));
    node.fake.behave(&full("other"), Behaviour::runs());
    node.start().await;
    node.wait_runs("other").await;
    node.wait_phase("done", "Succeeded").await;
    assert!(node.calls("done", Rpc::RunPodSandbox).is_empty());
}

#[tokio::test]
async fn a_pod_that_ended_runs_again_if_its_manifest_was_edited_meanwhile_and_keeps_its_uid() {
    let mut node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 0));
    let made = |number: &str| {
        let never = with_spec(version("done", number), json!({"restartPolicy": "Never"}));
        with_metadata(never, json!({"uid": "uid-of-done"}))
    };
    node.put(&made("1"));
    node.wait_phase("done", "Succeeded").await;
    node.stop().await;
    node.fake.behave("main", Behaviour::runs());
    node.put(&made("2"));
    node.start().await;
    let shown = node.wait_runs("done").await;
    assert_eq!(shown.config.args, ["2"]);
    node.wait_phase("done", "Running").await;
    // Not edited, it stays as it is.
    assert!(node.fake.exit(&full("done"), 0));
    node.wait_phase("done", "Succeeded").await;
    node.stop().await;
    node.fake.clear_calls();
    node.start().await;
    node.wait_phase("done", "Succeeded").await;
    assert!(node.calls("done", Rpc::RunPodSandbox).is_empty());
}

#[tokio::test]
async fn the_sandbox_of_a_pod_that_ended_is_stopped_once_and_one_that_died_as_well() {
    let mut node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 0));
    let never = json!({"restartPolicy": "Never"});
    node.put(&with_spec(simple("done"), never.clone()));
    node.wait_phase("done", "Succeeded").await;
    let stopped = |fake: &FakeRuntime| fake.count(Rpc::StopPodSandbox) == 1;
    node.fake.wait_until("it is stopped", WAIT_LIMIT, stopped).await;
    node.fake.behave("main", Behaviour::runs());
    node.put(&with_spec(simple("dies"), never));
    node.wait_runs("dies").await;
    node.wait_phase("dies", "Running").await;
    node.stop().await;
    node.fake.kill_sandbox(&full("dies"));
    node.fake.clear_calls();
    node.start().await;
    node.wait_phase("dies", "Failed").await;
    node.fake.wait_until("what died is stopped", WAIT_LIMIT, stopped).await;
    node.wait_phase("done", "Succeeded").await;
    let more = |fake: &FakeRuntime| fake.mutations() > 1;
    assert!(node.never(Duration::from_millis(500), more).await);
    assert_eq!(node.calls("dies", Rpc::StopPodSandbox).len(), 1);
}

#[tokio::test]
async fn a_container_that_ended_meanwhile_is_restarted() {
    let mut node = Node::started().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    node.stop().await;
    node.fake.exit("main", 1);
    node.start().await;
    node.wait_runs("web").await;
    let counted = |pod: &_| status_of(pod, "main").is_some_and(|s| s.restart_count == 1);
    node.wait_pod("web", "counts the restart", WAIT_LIMIT, counted).await;
    assert_eq!(node.fake.pod(&full("web")).unwrap().attempt, 0);
}

#[tokio::test]
async fn a_kubelet_that_asks_what_became_of_pulls_before_it_starts_stops_when_it_is_told_to() {
    let mut node = Node::new().await;
    let pulling = node.path("root/image_manager/pulling");
    std::fs::create_dir_all(&pulling).unwrap();
    std::fs::write(pulling.join("sha256-0"), "{}").unwrap();
    node.fake.inject(Fault::hang(Rpc::ListImages));
    node.start().await;
    let asks = |fake: &FakeRuntime| fake.count(Rpc::ListImages) > 0;
    node.fake.wait_until("it asks", WAIT_LIMIT, asks).await;
    let stopped = tokio::time::timeout(WAIT_LIMIT, node.stop()).await;
    assert!(stopped.is_ok(), "it waits for the answer");
}

/// The UID of a pod that another kubelet started, and that this one took over, stays also when the pod gets a new sandbox.
#[tokio::test]
async fn an_adopted_pod_with_a_new_sandbox_is_not_restarted() {
    const UID: &str = "0123456789abcdef0123456789abcdef";
    let mut node = Node::new().await;
    node.put(&simple("web"));
    node.start().await;
    let own = node.wait_runs("web").await;
    let sandbox = node.fake.pod("web-node1").unwrap();
    node.stop().await;
    // As the Go kubelet has it: with a UID that it generated, and without the digest of the manifest.
    let mut planter = Planter::new(&node.fake).await;
    planter.remove_sandbox(&sandbox.id).await;
    let mut other = Plant::of_a_kubelet("web-node1").uid(UID).made_for_a_file();
    other.container_annotations = own.config.annotations.clone();
    planter.pod(&other).await;
    node.fake.clear_calls();
    node.start().await;
    wait_for("it is shown", WAIT_LIMIT, async || {
        let pod = node.pod("web").await;
        holds(pod.is_some_and(|pod| phase(&pod) == "Running"), "")
    })
    .await;
    assert_eq!(node.fake.mutations(), 0);

    node.fake.kill_sandbox("web-node1");
    let again = |fake: &FakeRuntime| {
        let pod = fake.pod("web-node1");
        pod.is_some_and(|pod| pod.attempt == 1 && pod.containers.iter().any(|one| one.is_running()))
    };
    node.fake.wait_until("it runs again", WAIT_LIMIT, again).await;
    assert_eq!(node.fake.pod("web-node1").unwrap().uid, UID);
    node.wait_pod("web", "is running", WAIT_LIMIT, |pod| phase(pod) == "Running").await;
    node.stop().await;
    node.fake.clear_calls();
    node.start().await;
    let touched =
        |fake: &FakeRuntime| fake.count(Rpc::RunPodSandbox) + fake.count(Rpc::StopPodSandbox) > 0;
    assert!(node.never(Duration::from_secs(1), touched).await, "{:?}", node.fake.calls());
    assert_eq!(node.fake.pod("web-node1").unwrap().uid, UID);
}

/// A pod keeps its UID when its file gets another name while no kubelet runs, and then over every further restart,
/// whatever of it the runtime returns first.
#[tokio::test]
async fn an_adopted_pod_is_not_restarted_if_its_sandbox_is_read_before_its_container() {
    let mut node = Node::started().await;
    let manifest = version("web", "v1").to_string();
    node.manifests.put("f1.yaml", &manifest);
    let first = node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    let uid = node.fake.pod(&full("web")).unwrap().uid;
    node.stop().await;
    node.manifests.put("f0.yaml", &manifest);
    node.manifests.remove("f1.yaml");
    for _ in 0..2 {
        node.fake.clear_calls();
        node.fake.inject(Fault::hang(Rpc::ContainerStatus));
        node.start().await;
        let shown = node.wait_pod("web", "it is shown", WAIT_LIMIT, |_| true).await;
        assert_eq!(shown.metadata.uid.as_ref(), Some(&uid));
        node.fake.clear_faults();
        node.wait_pod("web", "it was read", WAIT_LIMIT, |pod| {
            status_of(pod, "main").is_some_and(|s| s.started == Some(true))
        })
        .await;
        node.stop().await;
        assert_eq!(node.fake.mutations(), 0, "{:?}", node.fake.counts());
    }
    let main = node.fake.container(&format!("{}/main", full("web")));
    assert_eq!(main.unwrap().id, first.id);
}
