//! How the kubelet sees what happens in the runtime, and what that costs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use kubelet::base::metrics::Metrics;
use kubelet::cri::v1::{StreamContainersRequest, StreamPodSandboxesRequest};
use kubelet::cri::{CriConnection, CriMetrics, RuntimeClient, RuntimeEndpoint};

use crate::flavour::Flavour;
use crate::node::{Node, WAIT_LIMIT, manifest, restarts};
use crate::runtime::Container;
use crate::support::wait::{holds, wait_for};

const SLEEPER: &str =
    "containers:\n- { name: c, image: \"localhost/busybox:dev\", command: [sleep, \"1000\"] }";

/// Everything is listed this often without a reason.
const RELIST: Duration = Duration::from_secs(60);

/// The calls that change nothing.
const READS: [&str; 11] = [
    "version",
    "status",
    "runtime_config",
    "list_podsandbox",
    "list_containers",
    "podsandbox_status",
    "container_status",
    "image_status",
    "list_images",
    "image_fs_info",
    "get_container_events",
];

async fn sleepers(node: &Node, names: &[&str]) {
    for name in names {
        node.put(name, &manifest(name, SLEEPER));
    }
    for name in names {
        node.ready(name).await;
    }
}

/// The one container of a pod.
fn only(node: &Node, pod: &str) -> Container {
    let found = node.runtime.containers_of(&format!("{pod}-node1"));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

async fn runs_again(node: &Node, pod: &str) {
    node.pod_when(pod, "was started again", |pod| restarts(pod, "c") == 1).await;
    let running = |found: &[Container]| found.iter().any(|c| c.attempt == 1 && c.running);
    node.containers_when(pod, "the second one runs", WAIT_LIMIT, running).await;
}

/// Lists of everything, counted from a moment when the kubelet had stopped listing every second.
struct Lists {
    since: Instant,
    before: u64,
}

impl Lists {
    /// Waits until nothing was listed for longer than the period without events.
    async fn rare(node: &Node) -> Lists {
        let mut lists =
            Lists { since: Instant::now(), before: node.count("list_containers").await };
        loop {
            let now = node.count("list_containers").await;
            if now != lists.before {
                (lists.since, lists.before) = (Instant::now(), now);
            } else if lists.since.elapsed() > Duration::from_millis(2500) {
                return lists;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Nothing but the periodic relist has listed since. It lists a second time when something was learnt since
    /// the last one.
    async fn none_since(&self, node: &Node) {
        let now = node.count("list_containers").await;
        let relists = self.since.elapsed().as_secs() / (RELIST.as_secs() - 5);
        let listed = now - self.before;
        assert!(listed <= 2 * relists, "{listed} lists, {relists} relists");
    }
}

/// Where the CRI has events of its own they have come over so many streams in all.
async fn assert_cri_events(node: &Node, streams: RangeInclusive<u64>) {
    if !Flavour::current().has_cri_events() {
        return;
    }
    let metrics = node.metrics().await;
    let value = |name: &str| metrics[&format!("kubelet_evented_pleg_connection_{name}")];
    let found = value("success_count") as u64;
    assert!(streams.contains(&found), "{found} of {streams:?}");
    assert!(value("latency_seconds_count") >= 1.0);
}

pub async fn deaths_and_removals_are_seen_without_a_list() {
    let node = Node::start().await;
    sleepers(&node, &["one", "two", "goes"]).await;
    let lists = Lists::rare(&node).await;
    for pod in ["one", "two"] {
        let first = only(&node, pod);
        node.runtime.kill(node.runtime.main_process(&first.id));
        runs_again(&node, pod).await;
        let ended = node.runtime.times(&first.id).finished;
        let again = node.runtime.containers_of(&format!("{pod}-node1"));
        let started = node.runtime.times(&again[1].id).started;
        println!("{pod}: from death to replacement {:?}", started - ended);
    }
    node.remove("goes");
    node.gone("goes", WAIT_LIMIT).await;
    let collected = |found: &[Container]| found.is_empty();
    node.containers_when("goes", "they are collected", WAIT_LIMIT, collected).await;
    // An unknown id is listed after a second.
    let requested = node.count("status").await;
    status_requested(&node, requested + 1).await;
    lists.none_since(&node).await;
    assert_cri_events(&node, 1..=1).await;
}

/// The runtime's status is requested every five seconds.
async fn status_requested(node: &Node, times: u64) {
    wait_for("the runtime's status is requested", WAIT_LIMIT, || async {
        let requested = node.count("status").await;
        holds(requested >= times, format!("{requested} of {times}"))
    })
    .await;
}

pub async fn what_died_while_containerd_was_away_is_replaced_and_events_are_taken_up_again() {
    let node = Node::start().await;
    sleepers(&node, &["meanwhile", "later", "never"]).await;
    let kept = only(&node, "never");
    let process = |pod: &str| node.runtime.main_process(&only(&node, pod).id);
    let (meanwhile, later) = (process("meanwhile"), process("later"));
    node.runtime.halt();
    node.runtime.kill(meanwhile);
    node.runtime.resume();
    runs_again(&node, "meanwhile").await;
    let lists = Lists::rare(&node).await;
    node.runtime.kill(later);
    runs_again(&node, "later").await;
    lists.none_since(&node).await;
    // A containerd that is still starting may end one that seemed to stand.
    assert_cri_events(&node, 2..=u64::MAX).await;
    assert_eq!(only(&node, "never"), kept);
}

pub async fn a_stream_that_ends_at_once_is_given_up_and_lists_show_what_happens() {
    let node = Node::start().await;
    sleepers(&node, &["one"]).await;
    let opened = || node.count("get_container_events");
    wait_for("the stream was tried", WAIT_LIMIT, || async {
        let opened = opened().await;
        holds(opened >= 3, format!("{opened} streams"))
    })
    .await;
    node.runtime.kill(node.runtime.main_process(&only(&node, "one").id));
    runs_again(&node, "one").await;
    let requested = node.count("status").await;
    status_requested(&node, requested + 2).await;
    assert_eq!(opened().await, 3);
    let log = node.kubelet.log();
    let lines = log.lines().filter(|line| line.contains("event stream"));
    let lines = lines.collect::<Vec<_>>();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

pub async fn settled_pods_cost_no_calls() {
    let node = Node::start().await;
    sleepers(&node, &["one", "two", "three"]).await;
    let lists = Lists::rare(&node).await;
    let before = node.calls().await;
    status_requested(&node, before["status"] + 2).await;
    let mut after = node.calls().await;
    lists.none_since(&node).await;
    for (call, times) in &mut after {
        *times -= before.get(call).copied().unwrap_or(0);
    }
    let changing = after
        .iter()
        .filter(|(call, times)| **times > 0 && !READS.contains(&call.as_str()))
        .collect::<BTreeMap<_, _>>();
    assert!(changing.is_empty(), "{changing:?}");
    let read = after["container_status"] + after["podsandbox_status"];
    assert_eq!(read, 0, "{after:?}");
}

pub async fn a_list_too_large_for_one_message_is_read_all_the_same() {
    let mut node = Node::start_limited(64 * 1024).await;
    // The runtime keeps each hook with its container and shows it in lists.
    let names = ["one", "two", "three", "four"];
    let ballast = "x".repeat(30 * 1024);
    for name in names {
        let hook = format!(
            "\n  lifecycle: {{ preStop: {{ exec: {{ command: [\"true\", {ballast}] }} }} }}"
        );
        let spec =
            "containers:\n- name: c\n  image: localhost/busybox:dev\n  command: [sleep, \"1000\"]";
        node.put(name, &manifest(name, &format!("{spec}{hook}")));
    }
    for name in names {
        node.ready(name).await;
    }
    assert!(node.runtime.try_crictl(&["ps", "-a"]).is_err(), "the list fits into a message");
    let before = names.map(|name| only(&node, name));
    node.kubelet.respawn();
    node.kubelet.wait_healthy(WAIT_LIMIT).await;
    // It is in charge of them, so it has found them.
    node.runtime.crictl(&["stop", "--timeout", "0", &before[0].id]);
    runs_again(&node, "one").await;
    for (name, container) in names.iter().zip(before).skip(1) {
        assert_eq!(only(&node, name), container);
    }
}

pub async fn streamed_lists_show_what_plain_ones_show() {
    let node = Node::start().await;
    sleepers(&node, &["one", "two"]).await;
    let endpoint = RuntimeEndpoint::parse(node.runtime.endpoint()).unwrap();
    let metrics = CriMetrics::register(&Metrics::new());
    let client = RuntimeClient::new(CriConnection::new(endpoint, WAIT_LIMIT, &metrics));
    let mut raw = client.raw();

    let plain = client.list_containers(None).await.unwrap();
    let request = StreamContainersRequest { filter: None };
    let mut stream = raw.stream_containers(request).await.unwrap().into_inner();
    let mut streamed = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        streamed.extend(part.containers);
    }
    let by_id = |list: Vec<_>| {
        let pairs = list.into_iter().map(|c: kubelet::cri::v1::Container| (c.id.clone(), c));
        pairs.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(streamed.len(), 2);
    assert_eq!(by_id(streamed), by_id(plain));

    let plain = client.list_pod_sandboxes(None).await.unwrap();
    let request = StreamPodSandboxesRequest { filter: None };
    let mut stream = raw.stream_pod_sandboxes(request).await.unwrap().into_inner();
    let mut streamed = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        streamed.extend(part.pod_sandboxes);
    }
    let by_id = |list: Vec<_>| {
        let pairs = list.into_iter().map(|s: kubelet::cri::v1::PodSandbox| (s.id.clone(), s));
        pairs.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(streamed.len(), 2);
    assert_eq!(by_id(streamed), by_id(plain));
}
