//! The cgroups of the node and of pods, in the kernel's own files.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::{Node, WAIT_LIMIT, manifest, restarts};
use crate::support::wait::{holds, wait_for};

const ROOT: &str = "/sys/fs/cgroup";

fn is_v2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// The directory of a cgroup below that of all pods: in the hierarchy of a controller for version 1.
fn directory(node: &Node, controller: &str, path: &str) -> PathBuf {
    let below = format!("{}/kubepods/{path}", node.runtime.name());
    if is_v2() { Path::new(ROOT).join(below) } else { Path::new(ROOT).join(controller).join(below) }
}

/// What is in a file of a cgroup: `v1` is `CONTROLLER/FILE`.
fn value(node: &Node, path: &str, v1: &str, v2: &str) -> String {
    let (controller, file) = v1.split_once('/').unwrap();
    let file = if is_v2() { v2 } else { file };
    let file = directory(node, controller, path).join(file);
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.trim().to_owned()
}

/// Every directory of a pod in every hierarchy.
fn of_pods(node: &Node) -> Vec<String> {
    let root = node.runtime.name();
    let script = format!("find {ROOT} -type d -path '*/{root}/kubepods/*' -name 'pod*'");
    let found = Command::new("sh").args(["-c", &script]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    found.lines().map(str::to_owned).collect()
}

async fn none_left(node: &Node) {
    wait_for("no cgroup of a pod is left", WAIT_LIMIT, || async {
        let left = of_pods(node);
        holds(left.is_empty(), left.join("\n"))
    })
    .await;
}

async fn uid(node: &Node, name: &str) -> String {
    let pod = node.ready(name).await;
    pod.metadata.uid.unwrap()
}

fn sleeper(name: &str, resources: &str) -> String {
    manifest(
        name,
        &format!(
            "
containers:
- name: c
  image: localhost/busybox:dev
  command: [sleep, \"100000\"]
  resources: {{ {resources} }}
"
        ),
    )
}

/// The paths of a process' cgroups.
fn cgroups_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

fn pid_of(node: &Node, pod: &str) -> u32 {
    let found = node.runtime.containers_of(&format!("{pod}-node1"));
    let running = found.iter().find(|container| container.running).unwrap();
    let inspected = node.runtime.crictl(&["inspect", &running.id]);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    u32::try_from(inspected["info"]["pid"].as_u64().unwrap()).unwrap()
}

pub async fn pods_have_the_cgroups_of_their_classes_with_their_limits() {
    let node =
        Node::start_with("podPidsLimit: 77\nsystemReserved: {cpu: 100m, memory: 64Mi}\n").await;
    let amounts = "cpu: 100m, memory: 32Mi";
    let guaranteed = format!("requests: {{ {amounts} }}, limits: {{ {amounts} }}");
    node.put("g", &sleeper("g", &guaranteed));
    let burstable = "requests: { cpu: 50m }, limits: { cpu: 200m, memory: 64Mi }";
    node.put("b", &sleeper("b", burstable));
    node.put("e", &sleeper("e", ""));
    let [g, b, e] = [
        format!("pod{}", uid(&node, "g").await),
        format!("burstable/pod{}", uid(&node, "b").await),
        format!("besteffort/pod{}", uid(&node, "e").await),
    ];
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let memory = memory.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024;
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let count = std::thread::available_parallelism().unwrap().get();
    let shares = (count * 1000 - 100) * 1024 / 1000;
    let all_memory = (memory - (64 << 20)).to_string();
    let weight = |shares: usize| (1 + (shares - 2) * 9999 / 262_142).to_string();
    let (all, all_weight) = (shares.to_string(), weight(shares));
    let none_v1 = "9223372036854771712";
    for (path, v1, expected_v1, v2, expected_v2) in [
        ("", "cpu/cpu.shares", all.as_str(), "cpu.weight", all_weight.as_str()),
        ("", "memory/memory.limit_in_bytes", &all_memory, "memory.max", &all_memory),
        ("", "cpuset/cpuset.cpus", cpus.trim(), "cpuset.cpus", cpus.trim()),
        ("burstable", "cpu/cpu.shares", "51", "cpu.weight", "2"),
        ("besteffort", "cpu/cpu.shares", "2", "cpu.weight", "1"),
        (&g, "cpu/cpu.shares", "102", "cpu.weight", "4"),
        (&g, "cpu/cpu.cfs_quota_us", "10000", "cpu.max", "10000 100000"),
        (&g, "memory/memory.limit_in_bytes", "33554432", "memory.max", "33554432"),
        (&g, "pids/pids.max", "77", "pids.max", "77"),
        (&b, "cpu/cpu.shares", "51", "cpu.weight", "2"),
        (&b, "cpu/cpu.cfs_quota_us", "20000", "cpu.max", "20000 100000"),
        (&b, "memory/memory.limit_in_bytes", "67108864", "memory.max", "67108864"),
        (&e, "cpu/cpu.shares", "2", "cpu.weight", "1"),
        (&e, "cpu/cpu.cfs_quota_us", "-1", "cpu.max", "max 100000"),
        (&e, "memory/memory.limit_in_bytes", none_v1, "memory.max", "max"),
        (&e, "pids/pids.max", "77", "pids.max", "77"),
    ] {
        let expected = if is_v2() { expected_v2 } else { expected_v1 };
        assert_eq!(value(&node, path, v1, v2), expected, "{path:?} {v1}");
    }
    for (name, path) in [("g", &g), ("b", &b), ("e", &e)] {
        let cgroups = cgroups_of(pid_of(&node, name));
        let parent = format!("/{}/kubepods/{path}/", node.runtime.name());
        let memory = cgroups
            .lines()
            .find(|line| line.contains(":memory:") || line.starts_with("0::") && is_v2());
        assert!(memory.unwrap().contains(&parent), "{cgroups}");
    }
    let events = node.events().await;
    assert!(events.contains("Updated Node Allocatable limit across pods"), "{events}");
    for name in ["g", "b", "e"] {
        node.remove(name);
    }
    none_left(&node).await;
    assert!(directory(&node, "memory", "burstable").is_dir());
}

pub async fn pods_that_go_while_no_kubelet_runs_leave_no_cgroup() {
    let mut node = Node::start().await;
    node.put("goes", &sleeper("goes", ""));
    node.put("stays", &sleeper("stays", "requests: { cpu: 50m }"));
    let stays = uid(&node, "stays").await;
    uid(&node, "goes").await;
    let before = pid_of(&node, "stays");
    node.kubelet.kill();
    node.remove("goes");
    // Of an unknown pod, with a process that its runtime lost.
    let mut lost = Command::new("sleep").arg("100000").spawn().unwrap();
    let forgotten = "besteffort/pod0c5a1d2e-9a3f-4b6c-8d7e-aabbccddeeff";
    for controller in ["memory", "pids"] {
        let directory = directory(&node, controller, forgotten);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("cgroup.procs"), lost.id().to_string()).unwrap();
    }
    node.kubelet.respawn();
    node.gone("goes", WAIT_LIMIT).await;
    wait_for("only the cgroup of the pod that stays is left", WAIT_LIMIT, || async {
        let mut left = of_pods(&node);
        left.retain(|path| !path.contains(&stays));
        holds(left.is_empty(), left.join("\n"))
    })
    .await;
    let ended = lost.try_wait().unwrap();
    assert!(ended.is_some(), "the lost process still runs");
    assert_eq!(pid_of(&node, "stays"), before);
    node.remove("stays");
    none_left(&node).await;
}

pub async fn a_pod_from_before_keeps_its_parent_and_is_not_restarted() {
    let off = "cgroupsPerQOS: false\nenforceNodeAllocatable: []\n";
    let mut node = Node::start_with(off).await;
    node.put("old", &sleeper("old", "requests: { cpu: 50m }"));
    node.ready("old").await;
    assert!(of_pods(&node).is_empty());
    let before = pid_of(&node, "old");
    let parents = |pid| {
        let cgroups = cgroups_of(pid);
        let lines = cgroups.lines().map(|line| line.rsplit_once('/').unwrap().0.to_owned());
        lines.collect::<Vec<_>>()
    };
    let old_parents = parents(before);
    node.kubelet.reconfigure("cgroupsPerQOS: false", "cgroupsPerQOS: true");
    node.kubelet.reconfigure("enforceNodeAllocatable: []", "enforceNodeAllocatable: [pods]");
    node.restart_kubelet().await;
    node.put("new", &sleeper("new", ""));
    uid(&node, "new").await;
    assert_eq!(pid_of(&node, "old"), before, "it is not restarted");
    let killed = Command::new("kill").args(["-KILL", &before.to_string()]).status();
    assert!(killed.unwrap().success());
    node.pod_when("old", "has restarted", |pod| restarts(pod, "c") == 1).await;
    node.ready("old").await;
    assert_eq!(parents(pid_of(&node, "old")), old_parents);
    assert!(!of_pods(&node).is_empty(), "those of the new pod");
    node.remove("old");
    node.remove("new");
    none_left(&node).await;
}

pub async fn a_cgroup_that_somebody_removed_is_made_again_for_the_next_pod() {
    let node = Node::start().await;
    // Until the next minute the kubelet does not make them by itself.
    node.says("Updated Node Allocatable limit across pods").await;
    // Only below its own directories: others come and go beside them.
    let name = node.runtime.name();
    let script = format!(
        "set -e; for dir in {ROOT}/{name}/kubepods {ROOT}/*/{name}/kubepods; do
            [ ! -d \"$dir\" ] || find \"$dir\" -depth -type d -exec rmdir {{}} +
        done"
    );
    let removed = Command::new("sh").args(["-c", &script]).status().unwrap();
    assert!(removed.success() && !directory(&node, "memory", "").exists());
    node.put("e", &sleeper("e", ""));
    let uid = uid(&node, "e").await;
    let shares = value(&node, &format!("besteffort/pod{uid}"), "cpu/cpu.shares", "cpu.weight");
    assert_eq!(shares, if is_v2() { "1" } else { "2" });
    let shares = value(&node, "", "cpu/cpu.shares", "cpu.weight");
    assert!(shares.parse::<u64>().unwrap() > 30, "{shares}");
    node.remove("e");
    none_left(&node).await;
}

pub async fn containers_share_the_cpus_that_their_pod_has_for_itself() {
    let mut node = Node::start_with(
        "cpuManagerPolicy: static
topologyManagerPolicy: restricted
topologyManagerScope: pod
kubeReserved: {cpu: \"1\"}
featureGates: {PodLevelResourceManagers: true}
",
    )
    .await;
    let containers = "
resources: { requests: { cpu: 1, memory: 64Mi }, limits: { cpu: 1, memory: 64Mi } }
containers:
- name: one
  image: localhost/busybox:dev
  command: [sleep, \"100000\"]
- name: two
  image: localhost/busybox:dev
  command: [sleep, \"100000\"]
";
    node.put("other", &sleeper("other", ""));
    node.put("whole", &manifest("whole", containers));
    node.ready("other").await;
    node.ready("whole").await;
    let cpus = |node: &Node, pod: &str, container: &str| {
        let status = node.sh(pod, container, "grep Cpus_allowed_list /proc/self/status");
        status.split_whitespace().nth(1).unwrap().to_owned()
    };
    let own = cpus(&node, "whole", "one");
    assert!(own.parse::<u32>().is_ok(), "one CPU: {own}");
    assert_eq!(cpus(&node, "whole", "two"), own);
    wait_for("the other pod leaves that CPU", WAIT_LIMIT, || async {
        let shared = cpus(&node, "other", "c");
        holds(shared != own && !shared.is_empty(), shared)
    })
    .await;
    let shared = cpus(&node, "other", "c");
    node.restart_kubelet().await;
    let pod = node.ready("whole").await;
    assert_eq!((restarts(&pod, "one"), restarts(&pod, "two")), (0, 0));
    assert_eq!(cpus(&node, "whole", "two"), own);
    assert_eq!(cpus(&node, "other", "c"), shared);
}
