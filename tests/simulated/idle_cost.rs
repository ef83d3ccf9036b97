//! What it costs when nothing happens, and what is left when everything is over.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, WAIT_LIMIT, calls, full, is_ready, put, wait_runs, waits_for};
use crate::pods::{container, exec_probe, pod, simple, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, FakeRuntime, Fault, Options, Pull, Rpc};
use crate::support::http;
use crate::support::kubelet_process::KubeletProcess;
use crate::support::wait::{holds, wait_for};

#[tokio::test]
async fn pods_that_have_settled_cost_no_calls_but_their_probes() {
    let node = Node::started().await;
    let names: Vec<_> = (0..10).map(|n| format!("web{n}")).collect();
    names.iter().for_each(|name| node.put(&simple(name)));
    let probed = with(container("main"), json!({"readinessProbe": exec_probe("is-ready")}));
    node.put(&pod("probed", &[probed]));
    for name in names.iter().map(String::as_str).chain(["probed"]) {
        node.wait_pod(name, "is ready", WAIT_LIMIT, is_ready).await;
    }
    // Reads that were under way when the last pod became ready are over.
    loop {
        let before = node.fake.count(Rpc::ContainerStatus);
        let reads = |fake: &FakeRuntime| fake.count(Rpc::ContainerStatus) > before;
        if node.never(Duration::from_secs(1), reads).await {
            break;
        }
        assert!(before < 1000, "it is read for ever");
    }
    node.fake.clear_calls();
    let costs = |fake: &FakeRuntime| {
        let cheap = [Rpc::ExecSync, Rpc::Status];
        fake.counts().keys().any(|rpc| !cheap.contains(rpc))
    };
    let begin = Instant::now();
    let quiet = node.never(Duration::from_secs(3), costs).await;
    assert!(quiet, "{:?}", node.fake.counts());
    let (probes, seconds) = (node.fake.count(Rpc::ExecSync), begin.elapsed().as_secs());
    assert!((1..=seconds + 1).contains(&probes), "{probes} probes in {seconds} s");
}

#[tokio::test]
async fn with_events_neither_a_death_nor_a_removal_costs_a_list() {
    let node = Node::started().await;
    node.fake.wait_until("it listens", WAIT_LIMIT, |fake| fake.subscribers() > 0).await;
    for name in ["stays", "goes"] {
        node.put(&simple(name));
        node.wait_pod(name, "is ready", WAIT_LIMIT, is_ready).await;
    }
    // The list that follows when the stream stands is over, too.
    let lists = |fake: &FakeRuntime| fake.count(Rpc::ListContainers);
    let listed = |fake: &FakeRuntime| lists(fake) >= 2;
    node.fake.wait_until("both lists", WAIT_LIMIT, listed).await;
    let before = lists(&node.fake);
    let first = node.wait_runs("stays").await;
    node.fake.exit(&first.id, 1);
    let again = |fake: &FakeRuntime| fake.count(Rpc::CreateContainer) == 3;
    node.fake.wait_until("a new container", WAIT_LIMIT, again).await;
    node.remove("goes");
    let gone = |fake: &FakeRuntime| fake.pod(&full("goes")).is_none();
    node.fake.wait_until("the pod is removed", WAIT_LIMIT, gone).await;
    // An unknown id is listed after a second.
    let quiet = node.never(Duration::from_secs(3), |fake| lists(fake) > before).await;
    assert!(quiet, "{:?}", node.fake.counts());
}

#[tokio::test]
async fn a_start_that_takes_the_runtime_long_costs_no_list() {
    let node = Node::started().await;
    let (lists, listens) = (
        |fake: &FakeRuntime| fake.count(Rpc::ListContainers),
        |fake: &FakeRuntime| fake.subscribers() > 0,
    );
    node.fake.wait_until("it listens", WAIT_LIMIT, listens).await;
    let listed = |fake: &FakeRuntime| lists(fake) >= 2;
    node.fake.wait_until("both lists", WAIT_LIMIT, listed).await;
    let before = lists(&node.fake);
    // The runtime reports what was created long before it answers that it is started or read.
    for rpc in [Rpc::PodSandboxStatus, Rpc::StartContainer] {
        node.fake.inject(Fault::hang(rpc));
        let requested = move |fake: &FakeRuntime| fake.count(rpc) == 1;
        if rpc == Rpc::PodSandboxStatus {
            node.put(&simple("web"));
        } else {
            node.fake.release(Rpc::PodSandboxStatus);
        }
        node.fake.wait_until("it hangs", WAIT_LIMIT, requested).await;
        let listed = |fake: &FakeRuntime| lists(fake) > before;
        let quiet = node.never(Duration::from_millis(2500), listed).await;
        assert!(quiet, "{rpc}: {:?}", node.fake.counts());
    }
    node.fake.release(Rpc::StartContainer);
    node.wait_phase("web", "Running").await;
    // What another client creates is listed.
    let lost = Plant::of_a_kubelet("lost").made_for_a_file();
    Planter::new(&node.fake).await.pod(&lost).await;
    let listed = |fake: &FakeRuntime| lists(fake) > before;
    node.fake.wait_until("it is looked for", WAIT_LIMIT, listed).await;
}

/// More than what a kubelet waits after a burst before it gives memory back.
const GIVES_BACK: Duration = Duration::from_secs(60);

/// Memory of its own. The pages of the program come and go with what the machine has free.
fn resident_kib(kubelet: &KubeletProcess) -> u64 {
    status_kib(kubelet, "RssAnon:")
}

/// A size in `/proc/<pid>/status`.
pub(crate) fn status_kib(kubelet: &KubeletProcess, key: &str) -> u64 {
    let path = format!("/proc/{}/status", kubelet.pid());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Adds twenty pods, waits until they run, and takes them away again.
async fn round(fake: &FakeRuntime, kubelet: &KubeletProcess, number: usize) {
    let names: Vec<_> = (0..20).map(|n| format!("web-{number}-{n}")).collect();
    names.iter().for_each(|name| put(&kubelet.manifests, &simple(name)));
    for name in &names {
        wait_runs(fake, name).await;
    }
    names.iter().for_each(|name| kubelet.manifests.remove(&format!("{name}.yaml")));
    let gone = |fake: &FakeRuntime| fake.pods().is_empty();
    fake.wait_until("all are removed", WAIT_LIMIT, gone).await;
    wait_for("none is shown", WAIT_LIMIT, async || {
        let shown = kubelet.pods().await.map_err(|error| error.to_string())?;
        holds(shown.is_empty(), format!("{} are", shown.len()))
    })
    .await;
}

async fn metric_lines(kubelet: &KubeletProcess) -> usize {
    let (code, text) = http::get(kubelet.read_only_port, "/metrics").await.unwrap();
    assert_eq!(code, 200);
    // Calls have a series per kind, whenever the first of its kind is.
    let calls = |line: &&str| line.contains("operation_type=");
    text.lines().filter(|line| !calls(line)).count()
}

#[tokio::test]
async fn two_hundred_pods_come_and_go_and_leave_nothing() {
    let fake = FakeRuntime::start(Options::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let kubelet = Node::process(&fake, dir.path()).await;
    round(&fake, &kubelet, 0).await;
    let before = (resident_kib(&kubelet), metric_lines(&kubelet).await);
    for number in 1..10 {
        round(&fake, &kubelet, number).await;
    }
    let lines = metric_lines(&kubelet).await;
    assert_eq!(lines, before.1, "metrics of pods that are gone");
    // Bounded stores (events, shared strings) and the allocator's own fill up in the beginning. What
    // a burst needed is given back some seconds after it, which may have been so before and not yet
    // after.
    wait_for("its memory is as it was", GIVES_BACK, async || {
        let (before, after) = (before.0, resident_kib(&kubelet));
        let reported = format!("from {before} KiB to {after} KiB");
        holds(after < before + 24 * 1024, reported)
    })
    .await;
    for below in ["root/pods", "root/journal", "logs", "containers"] {
        wait_for(below, WAIT_LIMIT, async || {
            let left = crate::node::entries(&dir.path().join(below));
            holds(left.is_empty(), format!("{left:?}"))
        })
        .await;
    }
    assert_eq!(calls(&fake, "web-0-0", Rpc::RunPodSandbox).len(), 1);
    assert!(fake.pod(&full("web-0-0")).is_none());
}

/// What the kubelet keeps of pods, where it keeps anything.
async fn kept(node: &Node) -> Vec<String> {
    let (code, text) = node.get("/metrics").await;
    assert_eq!(code, 200);
    let lines = text.lines().filter(|line| line.starts_with("kubelet_store_entries{"));
    let kept = lines.filter(|line| !line.ends_with(" 0.0"));
    kept.map(str::to_owned).collect()
}

#[tokio::test]
async fn of_pods_that_are_gone_nothing_is_kept() {
    let mut node = Node::new().await;
    // What is removed is remembered until the next list.
    node.periods().pleg.relist_period_with_events = Duration::from_secs(1);
    node.start().await;
    let crashes = Behaviour::exits(Duration::ZERO, 1);
    let own_uid = json!({"uid": "chosen"});
    let probed = with(
        container("main"),
        json!({
            "readinessProbe": exec_probe("is-ready"),
            "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }),
    );
    let absent = with(
        container("main"),
        json!({"image": "localhost/absent:dev", "imagePullPolicy": "Always"}),
    );
    let volumes = json!({"volumes": [{"name": "scratch", "emptyDir": {}}]});
    node.fake.on_pull(
        "localhost/absent:dev",
        Pull {
            error: Some((tonic::Code::NotFound, "no such image".to_owned())),
            ..Pull::default()
        },
    );
    for round in 0..3 {
        let name = |kind: &str| format!("{kind}-{round}");
        let [crashy, broken, probing, absently, chosen] =
            ["crashy", "broken", "probed", "absent", "chosen"].map(name);
        node.fake.behave(&full(&crashy), crashes.clone());
        node.put(&simple(&crashy));
        node.put(&simple(&broken));
        let probing_pod = with_spec(pod(&probing, std::slice::from_ref(&probed)), volumes.clone());
        node.put(&probing_pod);
        node.put(&pod(&absently, std::slice::from_ref(&absent)));
        node.put(&with_metadata(simple(&chosen), own_uid.clone()));
        node.wait_runs(&broken).await;
        node.fake.kill_sandbox(&full(&broken));
        let held = |reason: &'static str| move |pod: &_| waits_for(pod, "main") == reason;
        node.wait_pod(&crashy, "backs off", WAIT_LIMIT, held("CrashLoopBackOff")).await;
        node.wait_pod(&absently, "backs off", WAIT_LIMIT, held("ImagePullBackOff")).await;
        node.wait_pod(&probing, "is ready", WAIT_LIMIT, is_ready).await;
        node.wait_phase(&chosen, "Running").await;
        let replaced = |fake: &FakeRuntime| {
            let pod = fake.pod(&full(&broken));
            pod.is_some_and(|pod| pod.attempt == 1 && pod.containers.iter().any(|c| c.is_running()))
        };
        node.fake.wait_until("the sandbox is replaced", WAIT_LIMIT, replaced).await;
        assert!(kept(&node).await.len() > 10, "{:?}", kept(&node).await);
        for name in [crashy, broken, probing, absently, chosen] {
            node.remove(&name);
        }
        wait_for("nothing is kept", WAIT_LIMIT, async || {
            let kept = kept(&node).await;
            holds(kept.is_empty(), format!("{kept:#?}"))
        })
        .await;
    }
}
