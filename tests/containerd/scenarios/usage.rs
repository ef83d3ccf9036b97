//! What pods use, in all the forms in which it is reported.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::flavour::Flavour;
use crate::node::{Node, WAIT_LIMIT, manifest};
use crate::support::bridge::Bridge;
use crate::support::http;
use crate::support::wait::wait_for;

/// Works a little, writes three mebibytes into its volume and one over its image, and is probed.
const BUSY: &str = r#"
containers:
- name: c
  image: "localhost/busybox:dev"
  command:
  - sh
  - -c
  - |
    dd if=/dev/zero of=/v/data bs=1M count=3 2>/dev/null
    dd if=/dev/zero of=/own bs=1M count=1 2>/dev/null
    echo said
    while :; do i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done; sleep 0.2; done
  resources: { limits: { memory: 64Mi, cpu: 500m } }
  readinessProbe: { exec: { command: [test, -e, /own] }, periodSeconds: 1 }
  volumeMounts:
  - { name: v, mountPath: /v }
  - { name: m, mountPath: /m }
volumes:
- { name: v, emptyDir: {} }
- { name: m, emptyDir: { medium: Memory, sizeLimit: 8Mi } }
"#;

/// What Prometheus' own linter says of names and types that are upstream's, and so stay as they are.
const UPSTREAMS_OWN: &[&str] = &[
    "cadvisor_version_info",
    "container_fs_inodes_total",
    "container_memory_failcnt",
    "kubelet_container_aligned_compute_resources_count",
    "kubelet_container_aligned_compute_resources_failure_count",
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "kubelet_evented_pleg_connection_error_count",
    "kubelet_evented_pleg_connection_success_count",
    "kubelet_topology_manager_admission_duration_ms",
];

async fn page(node: &Node, path: &str) -> String {
    let (code, text) = http::get(node.kubelet.read_only_port, path).await.unwrap();
    assert_eq!(code, 200, "{path}: {text}");
    text
}

async fn summary(node: &Node, query: &str) -> Value {
    let text = page(node, &format!("/stats/summary{query}")).await;
    serde_json::from_str(&text).unwrap()
}

/// The pod of that name, as the summary has it.
fn of_pod(summary: &Value, name: &str) -> Value {
    let pods = summary["pods"].as_array().unwrap();
    let named = |pod: &&Value| pod["podRef"]["name"] == format!("{name}-node1");
    pods.iter().find(named).cloned().unwrap_or_default()
}

/// The value of the first sample of a family with all of these pieces in its labels.
fn sample(text: &str, family: &str, pieces: &[&str]) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
    let line = lines.find(|line| pieces.iter().all(|piece| line.contains(piece)))?;
    line.rsplit_once("} ")?.1.split(' ').next()?.parse().ok()
}

pub async fn usage_is_told_in_every_form_and_promtool_finds_nothing_wrong() {
    let node = Node::start_with("volumeStatsAggPeriod: 1s").await;
    node.put("busy", &manifest("busy", BUSY));
    node.ready("busy").await;
    the_summary_is_whole(&node).await;
    the_series_are_those_of_cadvisor(&node).await;
    the_first_kubelets_form_says_the_same(&node).await;
    let resource = page(&node, "/metrics/resource").await;
    let whose = ["container=\"c\"", "namespace=\"default\"", "pod=\"busy-node1\""];
    for family in [
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
    ] {
        let found = sample(&resource, family, &whose);
        assert!(found > Some(0.0), "{family}: {found:?}\n{resource}");
    }
    let pod = sample(&resource, "pod_memory_working_set_bytes", &whose[1..]);
    let container = sample(&resource, "container_memory_working_set_bytes", &whose);
    assert!(pod >= container, "{pod:?} {container:?}");
    assert!(resource.ends_with("\nresource_scrape_error 0\n"), "{resource}");
    let probes = page(&node, "/metrics/probes").await;
    let probed = sample(&probes, "prober_probe_total", &["result=\"successful\"", whose[2]]);
    assert!(probed > Some(0.0), "{probes}");
    let mut found = BTreeSet::new();
    for path in
        ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"]
    {
        let text = page(&node, path).await;
        found.extend(lint(path, &text));
        found.extend(undocumented(path, &text));
    }
    assert!(found.is_empty(), "{found:#?}");
    node.remove("busy");
    node.gone("busy", WAIT_LIMIT).await;
    let after = summary(&node, "").await;
    assert_eq!(of_pod(&after, "busy"), Value::Null);
}

/// cAdvisor's container information, by pod and by cgroup.
async fn the_first_kubelets_form_says_the_same(node: &Node) {
    let bridge = Bridge::to(node.root().join("kubelet.sock")).await;
    let port = bridge.port;
    let reported = |path: String| async move {
        let (code, text) = http::get(port, &path).await.unwrap();
        assert_eq!(code, 200, "{path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let info = reported("/stats/busy-node1/c".into()).await;
    let sample = &info["stats"][0];
    let spec = &info["spec"];
    let namespace = if Flavour::current().is_crio() { "cri-o" } else { "containerd" };
    assert_eq!(info["namespace"], namespace, "{info:#}");
    assert_eq!(spec["memory"]["limit"], 64 << 20, "{info:#}");
    assert!(sample["cpu"]["usage"]["total"].as_u64() > Some(0), "{info:#}");
    assert!(sample["memory"]["working_set"].as_u64() > Some(0), "{info:#}");
    assert!(sample["network"]["name"].is_string(), "{info:#}");
    let uid = spec["labels"]["io.kubernetes.pod.uid"].as_str().unwrap();
    let by_uid = reported(format!("/stats/default/busy-node1/{uid}/c")).await;
    assert_eq!(by_uid["aliases"], info["aliases"]);
    let cgroup = info["name"].as_str().unwrap();
    let by_path = reported(format!("/stats/container?containerName={cgroup}")).await;
    assert_eq!(by_path[cgroup]["aliases"], info["aliases"], "{by_path:#}");
    let all = reported("/stats/container?subcontainers=true".into()).await;
    assert!(all[cgroup].is_object() && all["/"].is_object());
    let later = reported("/stats/busy-node1/c?start=2100-01-01T00:00:00Z".into()).await;
    assert_eq!(later.get("stats"), None);
}

async fn the_summary_is_whole(node: &Node) {
    let reported = wait_for("the summary is whole", WAIT_LIMIT, || async {
        let reported = summary(node, "").await;
        let pod = of_pod(&reported, "busy");
        let container = &pod["containers"][0];
        let volume = pod["volume"].as_array().into_iter().flatten();
        let volume = volume.clone().find(|volume| volume["name"] == "v").cloned();
        let whole = volume.unwrap_or_default()["usedBytes"].as_u64() >= Some(3 << 20)
            && container["cpu"]["usageNanoCores"].as_u64() > Some(0)
            && container["rootfs"]["usedBytes"].as_u64() >= Some(1 << 20)
            && container["logs"]["usedBytes"].as_u64() > Some(0)
            // The runtime looks at its images every ten seconds, and is as late as the machine is busy.
            && reported["node"]["runtime"]["imageFs"]["usedBytes"].as_u64() > Some(0);
        if whole { Ok(reported) } else { Err(format!("{pod:#}")) }
    })
    .await;
    let pod = of_pod(&reported, "busy");
    let container = &pod["containers"][0];
    assert_eq!(container["name"], "c");
    let working_set = container["memory"]["workingSetBytes"].as_u64().unwrap();
    let available = container["memory"]["availableBytes"].as_u64().unwrap();
    assert_eq!(working_set + available, 64 << 20);
    assert!(pod["ephemeral-storage"]["usedBytes"].as_u64() >= Some(4 << 20), "{pod:#}");
    assert!(pod["network"]["interfaces"][0]["rxBytes"].is_u64(), "{pod:#}");
    assert_eq!(pod["network"]["name"], "eth0");
    assert!(pod["process_stats"]["process_count"].as_u64() >= Some(1), "{pod:#}");
    let memory = pod["volume"].as_array().unwrap();
    let memory = memory.iter().find(|volume| volume["name"] == "m").unwrap();
    assert_eq!(memory["capacityBytes"], 8 << 20);
    let node_stats = &reported["node"];
    for (group, field) in [
        ("cpu", "usageCoreNanoSeconds"),
        ("memory", "workingSetBytes"),
        ("fs", "capacityBytes"),
        ("rlimit", "maxpid"),
    ] {
        assert!(node_stats[group][field].as_u64() > Some(0), "{group}: {node_stats:#}");
    }
    assert!(node_stats["runtime"]["imageFs"]["usedBytes"].as_u64() > Some(0), "{node_stats:#}");
    let less = summary(node, "?only_cpu_and_memory=true").await;
    let pod = of_pod(&less, "busy");
    assert!(pod["memory"]["workingSetBytes"].as_u64() > Some(0), "{pod:#}");
    for absent in ["network", "volume", "ephemeral-storage"] {
        assert!(pod.get(absent).is_none(), "{pod:#}");
    }
}

async fn the_series_are_those_of_cadvisor(node: &Node) {
    let pod = ["namespace=\"default\"", "pod=\"busy-node1\""];
    let sandbox = [&pod[..], &["container=\"\"", "interface=\"eth0\""]].concat();
    // On a busy machine the first sample may have no interface yet.
    let text = wait_for("the interface is counted", WAIT_LIMIT, || async {
        let text = page(node, "/metrics/cadvisor").await;
        let received = sample(&text, "container_network_receive_bytes_total", &sandbox);
        if received.is_some() { Ok(text) } else { Err(text) }
    })
    .await;
    let container = [&pod[..], &["container=\"c\"", "busybox", "name=\"", "id=\"/"]].concat();
    let expect = |family: &str, pieces: &[&str], holds: &dyn Fn(f64) -> bool| {
        let found = sample(&text, family, pieces);
        assert!(found.is_some_and(holds), "{family} {pieces:?}: {found:?}");
    };
    let some = |value: f64| value > 0.0;
    expect("container_cpu_usage_seconds_total", &container, &some);
    expect("container_cpu_cfs_periods_total", &container, &some);
    expect("container_memory_working_set_bytes", &container, &some);
    expect("container_memory_rss", &container, &some);
    expect("container_processes", &container, &some);
    expect("container_spec_memory_limit_bytes", &container, &|value| value == 67_108_864.0);
    expect("container_spec_cpu_quota", &container, &|value| value == 50_000.0);
    expect("container_start_time_seconds", &container, &|value| value > 1.7e9);
    expect("container_network_receive_bytes_total", &sandbox, &|value| value >= 0.0);
    let nameless = [&pod[..], &["container=\"\"", "image=\"\""]].concat();
    let id = ["pods", "-q", "--no-trunc", "--name", "busy-node1"];
    let name = format!("name=\"{}\"", node.runtime.crictl(&id).trim());
    let sandbox = [&nameless[..], &[&name]].concat();
    let sandbox = sample(&text, "container_memory_usage_bytes", &sandbox);
    assert_eq!(sandbox, None, "the sandbox's image is not named");
    let of_pod = [&nameless[..], &["name=\"\"", "id=\"/"]].concat();
    expect("container_memory_usage_bytes", &of_pod, &some);
    expect("container_cpu_usage_seconds_total", &["id=\"/\""], &some);
    expect("container_fs_limit_bytes", &["id=\"/\"", "device=\""], &some);
    expect("machine_memory_bytes", &["boot_id=\""], &some);
}

/// What Prometheus' own tool finds wrong with a page.
fn lint(path: &str, text: &str) -> Vec<String> {
    assert!(!text.is_empty());
    let mut promtool = match Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(promtool) => promtool,
        Err(error) => {
            let missing = format!("promtool (Debian: prometheus) cannot be run: {error}");
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
            eprintln!("\n*** SKIPPED: {path} was not checked: {missing} ***\n");
            return Vec::new();
        }
    };
    let mut stdin = promtool.stdin.take().unwrap();
    let page = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(page.as_bytes()));
    let output = promtool.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // It says a family and what is wrong with it; anything else is no metrics at all.
    let ours = |line: &&str| {
        let family = line.split(' ').next().unwrap_or_default();
        !UPSTREAMS_OWN.contains(&family)
    };
    let lines = said.lines().filter(ours);
    lines.map(|line| format!("{path}: {line}")).collect()
}

/// Families that are not in the table for people as they are here.
fn undocumented(path: &str, text: &str) -> Vec<String> {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let table = std::fs::read_to_string(table).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, kind)| !table.contains(&format!("| `{name}` | {kind} |")))
        .map(|(name, kind)| format!("{path}: {name} is no {kind} in docs/metrics.md"))
        .collect()
}
