//! A node that runs short of what pods use up.

use serde_json::Value;

use super::absences::variable;
use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::support::wait::{holds, wait_for};

/// The kubelet's own file system: small, and used by nothing else.
const ROOT: &str = "/run/small";
const MEGABYTES: u32 = 64;

fn pod(name: &str, limit: &str, script: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, '{script}; trap exit TERM; while :; do sleep 1000 & wait; done']
    volumeMounts: [{{name: scratch, mountPath: /scratch}}]
  volumes: [{{name: scratch, emptyDir: {{{limit}}}}}]
"
    )
}

fn write(megabytes: u32) -> String {
    format!("dd if=/dev/zero of=/scratch/file bs=1M count={megabytes}")
}

async fn evicted(cluster: &Cluster, name: &str) -> Value {
    wait_for("the pod is evicted", DEADLINE, || async {
        let pod = cluster.get(&["pod", name]);
        let (phase, reason) = (&pod["status"]["phase"], &pod["status"]["reason"]);
        let is = phase == "Failed" && reason == "Evicted";
        if is { Ok(pod) } else { Err(format!("{}", pod["status"])) }
    })
    .await
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let mut all = object["status"]["conditions"].as_array().unwrap().iter();
    all.find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

async fn node_condition(cluster: &Cluster, kind: &str, expected: &str) {
    wait_for(kind, DEADLINE, || async {
        let node = cluster.get(&["node", NODE]);
        let found = condition(&node, kind);
        holds(found["status"] == expected, found.to_string())
    })
    .await;
}

/// Asserts that pods run as at their start.
fn run_on(cluster: &Cluster, names: &[&str]) {
    for name in names {
        let pod = cluster.get(&["pod", name]);
        let container = &pod["status"]["containerStatuses"][0];
        assert_eq!(container["ready"], true, "{pod}");
        assert_eq!(container["restartCount"], 0, "{pod}");
    }
}

pub async fn a_pod_that_fills_the_disk_goes_and_the_others_stay() {
    let mut cluster = Cluster::start();
    let size = format!("size={MEGABYTES}m");
    cluster.inside(&["mkdir", ROOT]);
    cluster.inside(&["mount", "-t", "tmpfs", "-o", &size, "tmpfs", ROOT]);
    let flags = [
        "--root-dir",
        ROOT,
        "--eviction-hard=nodefs.available<20%",
        "--eviction-pressure-transition-period=2s",
        "--volume-stats-agg-period=1s",
    ];
    cluster.restart_kubelet_with(&flags);
    cluster.create(&pod("modest", "", &write(1)));
    // A static pod uses most, and stays all the same.
    let static_pod = pod("static", "", &write(30));
    cluster.manifests().put("static.yaml", &static_pod);
    cluster.wait("condition=Ready", "pod/modest");
    cluster.wait("create", "pod/static-node1");
    cluster.wait("condition=Ready", "pod/static-node1");

    cluster.create(&pod("greedy", "", &write(25)));
    let greedy = evicted(&cluster, "greedy").await;
    let message = greedy["status"]["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: "),
        "{message}"
    );
    let disruption = condition(&greedy, "DisruptionTarget");
    assert_eq!(disruption["reason"], "TerminationByKubelet", "{greedy}");
    node_condition(&cluster, "DiskPressure", "True").await;
    // Its volume has gone with it.
    node_condition(&cluster, "DiskPressure", "False").await;

    // More than its own limit, on a disk with room.
    cluster.create(&pod("limited", "sizeLimit: 1Mi", &write(4)));
    let limited = evicted(&cluster, "limited").await;
    let message = &limited["status"]["message"];
    assert_eq!(message, "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ");
    assert!(condition(&limited, "DisruptionTarget").is_null(), "{limited}");

    run_on(&cluster, &["modest", "static-node1"]);
    let node = cluster.get(&["node", NODE]);
    assert_eq!(condition(&node, "MemoryPressure")["status"], "False");
}

/// What all pods together may have, and what of it is to stay free, MiB.
const ALLOCATABLE: u64 = 600;
const FREE: u64 = 100;

/// A pod that fills a volume in memory within seconds, and then does nothing.
fn hoarder(name: &str, megabytes: u32) -> String {
    let steps = megabytes / 10;
    let script = format!(
        "for i in $(seq {steps}); do dd if=/dev/zero of=/scratch/$i bs=1M count=10; sleep 0.1; done"
    );
    pod(name, "medium: Memory", &script)
}

pub async fn pods_that_use_up_what_all_of_them_may_have_are_evicted() {
    let mut cluster = Cluster::start();
    let reserved = memory_of_machine_mib() - ALLOCATABLE;
    let reserved = format!("--system-reserved=memory={reserved}Mi");
    let threshold = format!("--eviction-hard=memory.available<{FREE}Mi");
    cluster.restart_kubelet_with(&[
        &reserved,
        &threshold,
        "--eviction-pressure-transition-period=2s",
    ]);
    cluster.create(&hoarder("modest", 20));
    cluster.wait("condition=Ready", "pod/modest");
    // One is too much alone, the other takes part of what it needs.
    cluster.create(&hoarder("large", 520));
    cluster.create(&hoarder("small", 130));
    let large = evicted(&cluster, "large").await;
    let message = large["status"]["message"].as_str().unwrap();
    let expected = format!("The node was low on resource: memory. Threshold quantity: {FREE}Mi, ");
    assert!(message.starts_with(&expected), "{message}");
    node_condition(&cluster, "MemoryPressure", "False").await;
    run_on(&cluster, &["modest"]);
}

/// Memory that may be used beside what is in use when the test begins, before the node is short of it, MiB.
const USABLE: u64 = 3072;
/// The size of the kubelet's file system, and what of it is to stay free, MiB.
const DISK: u32 = 2048;

/// A pod that writes as fast as it can until it is stopped, and does not stop by itself.
fn greedy(name: &str, volume: &str) -> String {
    let script = "trap : TERM; i=0; while :; do dd if=/dev/zero of=/scratch/$i bs=1M count=256; i=$((i+1)); done";
    pod(name, volume, script)
}

/// `CLUSTER_FILLS` has it done more often.
pub async fn a_node_filled_as_fast_as_a_pod_can_stays_and_so_do_its_critical_pods() {
    let rounds = variable("CLUSTER_FILLS", 1);
    let mut cluster = Cluster::start();
    cluster.inside(&["mkdir", ROOT]);
    let size = format!("size={DISK}m");
    cluster.inside(&["mount", "-t", "tmpfs", "-o", &size, "tmpfs", ROOT]);
    let available = available_memory_mib();
    let kept = available.checked_sub(USABLE);
    let kept =
        kept.unwrap_or_else(|| panic!("the machine has {available} MiB, {USABLE} are needed"));
    let threshold = format!("--eviction-hard=memory.available<{kept}Mi,nodefs.available<50%");
    cluster.restart_kubelet_with(&[
        "--root-dir",
        ROOT,
        &threshold,
        "--eviction-pressure-transition-period=2s",
        "--volume-stats-agg-period=1s",
    ]);
    let critical = pod("critical", "", "true")
        .replace("  containers:", "  priorityClassName: system-node-critical\n  containers:");
    cluster.create(&critical);
    cluster.manifests().put("static.yaml", &pod("static", "", "true"));
    for name in ["critical", "static-node1"] {
        cluster.wait("create", &format!("pod/{name}"));
        cluster.wait("condition=Ready", &format!("pod/{name}"));
    }
    let ready = |cluster: &Cluster| {
        condition(&cluster.get(&["node", NODE]), "Ready")["lastTransitionTime"].clone()
    };
    let since = ready(&cluster);
    for round in 0..rounds {
        for (kind, volume, pressure) in
            [("memory", "medium: Memory", "MemoryPressure"), ("disk", "", "DiskPressure")]
        {
            let name = format!("{kind}-{round}");
            cluster.create(&greedy(&name, volume));
            let status = evicted(&cluster, &name).await["status"].to_string();
            assert!(status.contains("The node was low on resource: "), "{status}");
            node_condition(&cluster, pressure, "False").await;
            println!("{name}: evicted");
        }
    }
    assert_eq!(ready(&cluster), since, "the node was Ready all the time");
    run_on(&cluster, &["critical", "static-node1"]);
}

fn memory_of_machine_mib() -> u64 {
    meminfo_mib("MemTotal")
}

/// Memory that is free or is reclaimed first, as the kubelet counts it. What else runs on the machine, and what it has
/// cached, differs from run to run.
fn available_memory_mib() -> u64 {
    let reclaimed_first = ["MemFree", "KReclaimable", "Inactive(file)"];
    reclaimed_first.into_iter().map(meminfo_mib).sum()
}

fn meminfo_mib(field: &str) -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: u64 = value.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    kib / 1024
}
