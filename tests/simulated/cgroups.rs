//! Cgroups of pods, made as plain directories: who makes them, when, and what becomes of a pod without.

use std::path::PathBuf;

use serde_json::json;
use tonic::Code;

use crate::api_source::{joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::pods::simple;
use crate::resize::{allocatable, request_resize, shown, sized, wait_condition, wait_resized};
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{FakeRuntime, Fault, Features, Options, Rpc};
use crate::support::wait::{holds, wait_for};

const HIERARCHIES: [&str; 7] = ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", "systemd"];

/// A node with cgroups below `/r`; they are those of version 1 where this machine has that.
async fn node() -> Node {
    with_cgroups(Node::new().await).await
}

async fn with_cgroups(mut node: Node) -> Node {
    node.configure("cgroupRoot: /r");
    for hierarchy in HIERARCHIES {
        std::fs::create_dir_all(node.path("cgroup").join(hierarchy).join("r")).unwrap();
    }
    std::fs::create_dir_all(node.path("cgroup/r")).unwrap();
    node.start().await;
    node
}

fn directory(node: &Node, path: &str) -> PathBuf {
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let hierarchy = if v2 { "" } else { "memory" };
    node.path("cgroup").join(hierarchy).join("r/kubepods").join(path)
}

async fn wait_removed(node: &Node, path: &str) {
    let directory = directory(node, path);
    wait_for("its cgroup is removed", WAIT_LIMIT, || async {
        holds(!directory.exists(), directory.display().to_string())
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_made_in_its_cgroup_which_goes_with_it() {
    let node = node().await;
    let mut pod = simple("web");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    node.put(&pod);
    node.wait_runs("web").await;
    let made = node.fake.pod("web-node1").unwrap();
    let path = format!("burstable/pod{}", made.uid);
    let parent = made.config.linux.unwrap().cgroup_parent;
    assert_eq!(parent, format!("/r/kubepods/{path}"));
    assert!(directory(&node, &path).is_dir());
    node.remove("web");
    node.wait_removed("web").await;
    wait_removed(&node, &path).await;
    assert!(directory(&node, "burstable").is_dir());
}

#[tokio::test]
async fn events_of_a_start_reach_the_api_server_at_each_start() {
    let (node, api) = joined().await;
    let mut node = with_cgroups(node).await;
    let v1 = !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let created = |reason: &str| {
        let seen = api.seen().into_iter();
        let events = seen.filter(|seen| seen.method == "POST" && seen.body["kind"] == "Event");
        events.filter(|seen| seen.body["reason"] == reason).count()
    };
    for starts in 1..=5 {
        wait_for("the events of the start are sent", WAIT_LIMIT, || async {
            let counts = (created("NodeAllocatableEnforced"), created("CgroupV1"));
            holds(counts == (starts, if v1 { starts } else { 0 }), format!("{counts:?}"))
        })
        .await;
        node.stop().await;
        node.start().await;
    }
}

#[tokio::test]
async fn a_pod_whose_cgroup_cannot_be_made_says_so_and_leaves_others_alone() {
    let node = node().await;
    node.put(&simple("first"));
    node.wait_runs("first").await;
    let classes = directory(&node, "besteffort");
    let mut bounded = simple("bounded");
    bounded["metadata"]["uid"] = json!("0b9d3f1c-0000-4000-8000-000000000001");
    let blocked = classes.join("pod0b9d3f1c-0000-4000-8000-000000000001");
    std::fs::write(&blocked, "").unwrap();
    node.put(&bounded);
    wait_for("the pod says what it waits for", WAIT_LIMIT, || async {
        let events = node.events().await;
        let says = events.contains("FailedCreatePodContainer")
            && events.contains("unable to ensure pod container exists");
        holds(says, events)
    })
    .await;
    assert!(node.fake.pod("bounded-node1").is_none());
    node.put(&simple("second"));
    node.wait_runs("second").await;
    std::fs::remove_file(&blocked).unwrap();
    node.wait_runs("bounded").await;
}

#[tokio::test]
async fn a_cgroup_of_a_pod_that_is_gone_is_removed_and_no_other() {
    let mut node = node().await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
    let own = format!("besteffort/pod{}", node.fake.pod("web-node1").unwrap().uid);
    node.stop().await;
    let (lost, strange) = ("burstable/pod1234-lost", "burstable/mine");
    for path in [lost, strange] {
        std::fs::create_dir_all(directory(&node, path)).unwrap();
    }
    node.start().await;
    wait_removed(&node, lost).await;
    assert!(directory(&node, strange).is_dir());
    assert!(directory(&node, &own).is_dir());
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 1);
}

#[tokio::test]
async fn a_runtime_that_names_no_cgroup_driver_loses_support() {
    let (new, old) = (
        node().await,
        Node::with(Options { features: Features::old(), ..Options::default() }).await,
    );
    let old = with_cgroups(old).await;
    let line = "kubelet_cri_losing_support{version=\"1.37.0\"} 1";
    for (node, says) in [(&new, false), (&old, true)] {
        node.put(&simple("web"));
        node.wait_runs("web").await;
        let (_, text) = node.get("/metrics").await;
        assert_eq!(text.contains(line), says, "{text}");
    }
}

/// A process as the kernel shows it, in one cgroup of every hierarchy; the kernel's have no program.
fn process(node: &Node, id: u32, cgroup: &str, program: bool) {
    let own = node.path("proc").join(id.to_string());
    std::fs::create_dir_all(own.join("ns")).unwrap();
    let _ = std::os::unix::fs::symlink("pid:[1]", own.join("ns/pid"));
    std::fs::write(own.join("oom_score_adj"), "0\n").unwrap();
    let of = HIERARCHIES.map(|name| format!("1:{name}:{cgroup}\n"));
    std::fs::write(own.join("cgroup"), format!("{}0::{cgroup}\n", of.concat())).unwrap();
    if program {
        let _ = std::os::unix::fs::symlink("/bin/program", own.join("exe"));
    }
}

#[tokio::test]
async fn the_kubelet_and_processes_of_the_root_are_put_where_the_configuration_says() {
    let own = std::process::id();
    let mut node = Node::new().await;
    for (id, cgroup, program) in [
        (1, "/", true),
        (2, "/", false),
        (own, "/", true),
        (4_000_001, "/", true),
        (4_000_002, "/user", true),
    ] {
        process(&node, id, cgroup, program);
    }
    for root in ["", "cpu", "memory"] {
        let root = node.path("cgroup").join(root);
        std::fs::create_dir_all(&root).unwrap();
        // The last one ends before it is read.
        let list = "1\n2\n4000001\n4000002\n4000003\n";
        std::fs::write(root.join("cgroup.procs"), list).unwrap();
    }
    node.configure("kubeletCgroups: /kube/kubelet");
    node.configure("systemCgroups: /system");
    let node = with_cgroups(node).await;
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let hierarchies = if v2 { &[""][..] } else { &HIERARCHIES };
    for (cgroup, expected) in
        [("kube/kubelet", format!("{own}\n")), ("system", "4000001\n".to_owned())]
    {
        wait_for("processes are moved", WAIT_LIMIT, || async {
            let files = hierarchies.iter().map(|name| {
                let directory = node.path("cgroup").join(name).join(cgroup);
                std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default()
            });
            let found: Vec<String> = files.collect();
            let all = found.iter().all(|text| *text == expected);
            holds(all, format!("{cgroup}: {found:?}"))
        })
        .await;
    }
    let score = node.path("proc").join(format!("{own}/oom_score_adj"));
    assert_eq!(std::fs::read_to_string(score).unwrap(), "-999");
    node.put(&simple("web"));
    node.wait_runs("web").await;
}

#[tokio::test]
async fn a_cgroup_that_cannot_be_made_for_the_kubelet_does_not_keep_pods_from_running() {
    let mut node = Node::new().await;
    for id in [1, std::process::id()] {
        process(&node, id, "/", true);
    }
    for root in ["", "cpu"] {
        let root = node.path("cgroup").join(root);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("taken"), "").unwrap();
    }
    node.configure("kubeletCgroups: /taken/kubelet");
    let node = with_cgroups(node).await;
    node.put(&simple("web"));
    node.wait_runs("web").await;
}

/// A node of a cluster, with cgroups, on which `web` runs with two containers.
async fn with_web(cpu_milli: i64) -> (Node, FakeApiServer) {
    let (node, api) = joined().await;
    let node = with_cgroups(node).await;
    let mut pod = sized("web", cpu_milli, "64Mi");
    let mut other = pod["spec"]["containers"][0].clone();
    other["name"] = json!("other");
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("32Mi");
    other["resources"] =
        json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "1m", "memory": "64Mi"}});
    pod["spec"]["containers"].as_array_mut().unwrap().push(other);
    api.put(&path("web"), pod);
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", &shown(cpu_milli)).await;
    (node, api)
}

/// The memory limit of the cgroup of `web`.
fn memory_limit(node: &Node) -> String {
    let directory = directory(node, "burstable/poduid-of-web");
    let limit = |file| std::fs::read_to_string(directory.join(file)).ok();
    let limit = limit("memory.max").or_else(|| limit("memory.limit_in_bytes"));
    limit.unwrap_or_default().trim().to_owned()
}

#[tokio::test]
async fn a_resize_that_cannot_be_carried_out_lowers_no_limit_and_frees_nothing() {
    let (mut node, api) = with_web(1).await;
    let all = allocatable(&api).await;
    request_resize(&api, "web", all * 6 / 10, "64Mi");
    wait_resized(&api, "web", &shown(all * 6 / 10)).await;
    let of_two = (128 << 20).to_string();
    assert_eq!(memory_limit(&node), of_two);

    request_resize(&api, "web", 1, "1Mi");
    wait_condition(&api, "web", "PodResizeInProgress", "Error").await;
    let other = |fake: &FakeRuntime| {
        let containers = fake.pod("web").unwrap().containers;
        let mut others = containers.into_iter().filter(|one| one.is_running());
        others.find(|one| one.config.metadata.as_ref().unwrap().name == "other")
    };
    let before = other(&node.fake).unwrap().id;
    assert!(node.fake.exit("web/other", 1));
    let again = |fake: &FakeRuntime| other(fake).is_some_and(|one| one.id != before);
    node.fake.wait_until("it was restarted", WAIT_LIMIT, again).await;
    assert_eq!(memory_limit(&node), of_two);

    api.put(&path("room"), sized("room", 1, "64Mi"));
    wait_runs(&node, "room").await;
    request_resize(&api, "room", all * 6 / 10, "64Mi");
    wait_condition(&api, "room", "PodResizePending", "Deferred").await;
    node.stop().await;
}

#[tokio::test]
async fn the_runtime_is_notified_of_a_resize_first_and_may_reject_it() {
    let (mut node, api) = with_web(100).await;
    let notifications = |node: &Node| node.fake.calls_of(Rpc::UpdatePodSandboxResources).len();
    assert_eq!(notifications(&node), 0);
    request_resize(&api, "web", 200, "64Mi");
    wait_resized(&api, "web", "200m").await;
    assert_eq!(notifications(&node), 1, "the limits only grew");
    let call = &node.fake.calls_of(Rpc::UpdatePodSandboxResources)[0];
    let memory = format!("memory_limit_in_bytes: {}", 128 << 20);
    assert!(call.detail.contains(&memory), "{}", call.detail);

    let rpc = Rpc::UpdatePodSandboxResources;
    node.fake.inject(Fault::fail(rpc, Code::Internal, "no room"));
    node.fake.clear_calls();
    request_resize(&api, "web", 300, "64Mi");
    let shown = wait_condition(&api, "web", "PodResizeInProgress", "Error").await;
    let wanted = "failed to notify runtime for UpdatePodSandboxResources; resize rejected: rpc error: code = Internal desc = no room";
    assert_eq!(shown["message"], wanted);
    assert!(node.fake.calls_of(Rpc::UpdateContainerResources).is_empty());

    node.fake.clear_faults();
    for (cpu, code, text) in
        [(400, Code::Unimplemented, ""), (500, Code::Unknown, "not implemented yet")]
    {
        node.fake.inject(Fault::fail(rpc, code, text));
        request_resize(&api, "web", cpu, "64Mi");
        wait_resized(&api, "web", &format!("{cpu}m")).await;
        node.fake.clear_faults();
    }
    node.stop().await;
}
