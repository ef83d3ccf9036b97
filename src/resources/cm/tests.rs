//! The tree of a node in plain directories.

use super::resource_config::{NodeAmounts, PodRules};
use super::start::kernel_behavior;
use super::{
    CgroupDriver, CgroupMetrics, CgroupName, CgroupsConfig, ContainerManager, NodeCgroups,
    ReservedCgroup,
};
use crate::base::metrics::Metrics;
use crate::base::run_file_io;
use crate::host::cgroup::Cgroups;
use crate::host::systemd_fake::FakeSystemd;
use crate::host::{KernelTunableBehavior, Slices, SystemBus};
use crate::model::{Pod, PodUid};
use crate::resources::managers;
use crate::state::events::EventRecorder;
use parking_lot::Mutex;
use serde_json::json;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
    let requests = match cpu {
        "" => json!({}),
        cpu => json!({"cpu": cpu}),
    };
    let container = json!({"name": "c", "image": "i", "resources": {"requests": requests}});
    let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": [container]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

struct Tree {
    dir: tempfile::TempDir,
    pods: Arc<Mutex<Vec<Arc<Pod>>>>,
    events: EventRecorder,
    node: NodeCgroups,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", "systemd"] {
            fs::create_dir_all(dir.path().join(name).join("r")).unwrap();
        }
        Self {
            dir,
            pods: Arc::default(),
            events: EventRecorder::new(),
            node: NodeCgroups {
                node_name: "node1".into(),
                root: "/r".into(),
                pods: NodeAmounts { milli_cpu: Some(2000), memory: Some(1 << 30), pids: None },
                cpus: "0-1".into(),
                rules: PodRules::default(),
                ..NodeCgroups::default()
            },
        }
    }

    fn start(&self) -> anyhow::Result<ContainerManager> {
        let root = CgroupName::of_cgroupfs(&self.node.root);
        let driver = match self.node.slices {
            Some(_) => CgroupDriver::Systemd,
            None => CgroupDriver::Cgroupfs,
        };
        let root = root.path(driver).unwrap();
        let pods = self.pods.clone();
        ContainerManager::start(
            self.node.clone(),
            Cgroups::in_directory(self.dir.path(), root, false),
            CgroupMetrics::register(&Metrics::new()),
            self.events.clone(),
            Arc::new(move || pods.lock().clone()),
            managers::tests::managers(self.dir.path()),
        )
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    fn is_there(&self, path: &str) -> bool {
        self.dir.path().join(path).is_dir()
    }

    fn events(&self) -> String {
        let recent = self.events.recent().into_iter();
        let texts = recent.map(|event| format!("{event:?}"));
        texts.collect::<Vec<_>>().join("\n")
    }
}

#[tokio::test]
async fn the_node_and_its_classes_are_there_before_the_first_pod() {
    let tree = Tree::new();
    tree.start().unwrap();
    for (file, value) in [
        ("cpu/r/kubepods/cpu.shares", "2048"),
        ("cpuset/r/kubepods/cpuset.cpus", "0-1"),
        ("memory/r/kubepods/memory.limit_in_bytes", "1073741824"),
        ("cpu/r/kubepods/burstable/cpu.shares", "2"),
        ("cpu/r/kubepods/besteffort/cpu.shares", "2"),
    ] {
        assert_eq!(tree.read(file), value, "{file}");
    }
}

#[tokio::test]
async fn a_pod_has_its_cgroup_until_it_is_destroyed() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    let (small, idle) = (pod("small", "100m"), pod("idle", ""));
    *tree.pods.lock() = vec![small.clone(), idle.clone()];
    for (pod, parent) in
        [(&small, "/r/kubepods/burstable/podsmall"), (&idle, "/r/kubepods/besteffort/podidle")]
    {
        for _ in 0..2 {
            let made = manager.ensure_exists(pod, None).await.unwrap();
            assert_eq!((made.parent.as_str(), made.limit_error), (parent, None));
        }
        assert_eq!(manager.pod_cgroup_parent(pod).unwrap(), parent);
        assert!(tree.is_there(&format!("memory{parent}")));
    }
    assert_eq!(tree.read("cpu/r/kubepods/burstable/cpu.shares"), "102");
    assert_eq!(tree.read("cpu/r/kubepods/burstable/podsmall/cpu.shares"), "102");
    let found = manager.pods_with_cgroups().await.unwrap();
    assert_eq!(found, ["idle", "small"].map(Into::into).into());
    for _ in 0..2 {
        manager.destroy(&"small".into()).await.unwrap();
    }
    assert!(!tree.is_there("memory/r/kubepods/burstable/podsmall"));
    assert!(tree.is_there("memory/r/kubepods/besteffort/podidle"));
    let found = manager.pods_with_cgroups().await.unwrap();
    assert_eq!(found, ["idle"].map(Into::into).into());
}

#[tokio::test(start_paused = true)]
async fn limits_of_classes_are_written_when_they_change_and_once_a_minute() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    let (small, large) = (pod("small", "100m"), pod("large", "400m"));
    let file = "cpu/r/kubepods/burstable/cpu.shares";
    let overwrite = || fs::write(tree.dir.path().join(file), "7").unwrap();
    for (pods, expected) in [
        (vec![small.clone()], "102"),
        (vec![small.clone()], "7"),
        (vec![small.clone(), large], "512"),
    ] {
        *tree.pods.lock() = pods;
        manager.ensure_exists(&small, None).await.unwrap();
        assert_eq!(tree.read(file), expected);
        overwrite();
    }
    let (_delivered, delivered) = watch::channel(true);
    let running = tokio::spawn(manager.run(delivered));
    for _ in 0..2 {
        while tree.read(file) != "512" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        overwrite();
    }
    running.abort();
}

#[tokio::test]
async fn a_class_whose_limit_is_rejected_does_not_keep_the_others_without() {
    let mut tree = Tree::new();
    tree.node.qos_reserved = Some((1 << 30, 100));
    let manager = tree.start().unwrap();
    let limit = |class: &str| format!("memory/r/kubepods/{class}/memory.limit_in_bytes");
    let rejected = tree.dir.path().join(limit("burstable"));
    fs::remove_file(&rejected).unwrap();
    fs::create_dir(&rejected).unwrap();
    fs::remove_file(tree.dir.path().join(limit("besteffort"))).unwrap();
    let mut pod = Pod::clone(&pod("small", "100m"));
    let amounts = json!({"cpu": "100m", "memory": "24Mi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    let resources = serde_json::from_value(resources).unwrap();
    pod.spec.as_mut().unwrap().containers[0].resources = Some(resources);
    let pod = Arc::new(pod);
    *tree.pods.lock() = vec![pod.clone()];
    manager.ensure_exists(&pod, None).await.unwrap();
    assert_eq!(tree.read(&limit("besteffort")), (1000 << 20).to_string());
}

#[tokio::test]
async fn removed_cgroups_are_created_again() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    for name in ["cpu", "memory"] {
        fs::remove_dir_all(tree.dir.path().join(name).join("r/kubepods")).unwrap();
    }
    manager.ensure_exists(&pod("small", "100m"), None).await.unwrap();
    assert_eq!(tree.read("memory/r/kubepods/memory.limit_in_bytes"), "1073741824");
    assert!(tree.is_there("memory/r/kubepods/burstable/podsmall"));
}

#[tokio::test]
async fn a_pod_whose_cgroup_cannot_be_made_fails_alone() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    let blocked = tree.dir.path().join("memory/r/kubepods/burstable/podsmall");
    fs::write(&blocked, "").unwrap();
    let failed = manager.ensure_exists(&pod("small", "100m"), None).await;
    let failed = format!("{:#}", failed.unwrap_err());
    assert!(
        failed.contains("failed to create container for /r/kubepods/burstable/podsmall"),
        "{failed}"
    );
    manager.ensure_exists(&pod("other", "100m"), None).await.unwrap();
    fs::remove_file(&blocked).unwrap();
    manager.ensure_exists(&pod("small", "100m"), None).await.unwrap();
}

#[tokio::test]
async fn a_rejected_limit_is_reported_and_does_not_stop_the_pod() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    let pod = pod("small", "100m");
    manager.ensure_exists(&pod, None).await.unwrap();
    let file = tree.dir.path().join("cpu/r/kubepods/burstable/podsmall/cpu.shares");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let made = manager.ensure_exists(&pod, None).await.unwrap();
    let error = made.limit_error.unwrap();
    assert!(error.contains("cpu.shares"), "{error}");
}

#[tokio::test]
async fn a_memory_limit_that_a_resize_lowers_comes_with_what_the_pod_uses() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    let limited = |memory: &str| {
        let mut pod = Pod::clone(&pod("small", "100m"));
        let limits = json!({"limits": {"memory": memory}, "requests": {"memory": "1Mi"}});
        let resources = serde_json::from_value(limits).unwrap();
        pod.spec.as_mut().unwrap().containers[0].resources = Some(resources);
        Arc::new(pod)
    };
    let (low, high, unlimited) = (limited("1Mi"), limited("2Mi"), pod("small", "100m"));
    let lowered = async |pod, before| {
        let lowered = manager.lowered_memory_limit(pod, before).await.unwrap();
        lowered.map(|lowered| (lowered.limit, lowered.usage))
    };
    let used = tree.dir.path().join("memory/r/kubepods/burstable/podsmall/memory.usage_in_bytes");
    manager.ensure_exists(&high, None).await.unwrap();
    assert_eq!(lowered(&low, &high).await, Some((1 << 20, None)));
    fs::write(used, "4096\n").unwrap();
    assert_eq!(lowered(&low, &high).await, Some((1 << 20, Some(4096))));
    assert_eq!(lowered(&low, &unlimited).await, Some((1 << 20, Some(4096))));
    for (pod, before) in [(&high, &low), (&low, &low), (&unlimited, &low)] {
        assert_eq!(lowered(pod, before).await, None);
    }
}

#[tokio::test]
async fn a_root_that_is_not_there_is_an_error() {
    let mut tree = Tree::new();
    tree.node.root = "/elsewhere".into();
    let error = format!("{:#}", tree.start().err().unwrap());
    assert!(error.contains("cgroup /elsewhere has some missing paths"), "{error}");
}

#[tokio::test]
async fn reserved_cgroups_are_limited_or_the_kubelet_does_not_start() {
    let mut tree = Tree::new();
    tree.node.reserved = vec![ReservedCgroup {
        what: "System Reserved",
        name: "system",
        cgroup: "/system".into(),
        amounts: NodeAmounts { milli_cpu: Some(500), memory: Some(1 << 20), pids: None },
        only_compressible: false,
    }];
    let error = format!("{:#}", tree.start().err().unwrap());
    assert!(
        error.starts_with("Failed to enforce System Reserved Cgroup Limits on \"/system\""),
        "{error}"
    );
    assert!(tree.events().contains("FailedNodeAllocatableEnforcement"));
    for entry in fs::read_dir(tree.dir.path()).unwrap() {
        fs::create_dir(entry.unwrap().path().join("system")).unwrap();
    }
    tree.start().unwrap();
    assert_eq!(tree.read("cpu/system/cpu.shares"), "512");
    assert_eq!(tree.read("memory/system/memory.limit_in_bytes"), "1048576");
    assert!(tree.events().contains("Updated limits on system reserved cgroup /system"));
}

#[tokio::test(start_paused = true)]
async fn limits_of_all_pods_are_tried_until_the_kernel_takes_them() {
    let tree = Tree::new();
    let manager = tree.start().unwrap();
    let file = tree.dir.path().join("memory/r/kubepods/memory.limit_in_bytes");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let (_delivered, delivered) = watch::channel(true);
    let running = tokio::spawn(manager.run(delivered));
    let says = async |text: &str| {
        while !tree.events().contains(text) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    says("Failed to update Node Allocatable Limits").await;
    fs::remove_dir(&file).unwrap();
    says("Updated Node Allocatable limit across pods").await;
    assert_eq!(tree.read("memory/r/kubepods/memory.limit_in_bytes"), "1073741824");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_restart_leaves_the_shares_of_classes_until_all_pods_are_known() {
    let tree = Tree::new();
    let (one, other) = (pod("one", "100m"), pod("other", "400m"));
    *tree.pods.lock() = vec![one.clone(), other.clone()];
    tree.start().unwrap().ensure_exists(&one, None).await.unwrap();
    let shares = || tree.read("cpu/r/kubepods/burstable/cpu.shares");
    assert_eq!(shares(), "512");

    *tree.pods.lock() = Vec::new();
    let manager = tree.start().unwrap();
    let (all_sources_seen, delivered) = watch::channel(false);
    let running = tokio::spawn(manager.clone().run(delivered));
    *tree.pods.lock() = vec![one.clone()];
    manager.ensure_exists(&one, None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(shares(), "512");

    all_sources_seen.send_replace(true);
    while shares() != "102" {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    running.abort();
}

/// A tree of the driver `systemd`.
async fn sliced(fake: &FakeSystemd) -> Tree {
    let mut tree = Tree::new();
    for entry in fs::read_dir(tree.dir.path()).unwrap() {
        fs::create_dir(entry.unwrap().path().join("r.slice")).unwrap();
    }
    tree.node.slices = Some(Slices::new(Arc::new(SystemBus::at(fake.address.clone()))));
    tree
}

#[tokio::test(flavor = "multi_thread")]
async fn with_systemd_every_cgroup_is_a_slice_that_it_knows_the_limits_of() {
    let fake = FakeSystemd::start().await;
    let tree = sliced(&fake).await;
    let manager = tokio::task::block_in_place(|| tree.start()).unwrap();
    let made = manager.ensure_exists(&pod("a-b", "1"), None).await.unwrap();
    let slice = "r-kubepods-burstable-poda_b.slice";
    let path = format!("/r.slice/r-kubepods.slice/r-kubepods-burstable.slice/{slice}");
    assert_eq!((made.parent, made.limit_error), (path.clone(), None));
    let units = fake.state.lock().units.clone();
    let names: Vec<&str> = units.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["r-kubepods-besteffort.slice", slice, "r-kubepods-burstable.slice", "r-kubepods.slice",]
    );
    assert!(units[slice]["Wants"].contains("r-kubepods-burstable.slice"));
    assert_eq!(units[slice]["CPUShares"], "U64(1024)");
    assert!(units["r-kubepods.slice"]["Wants"].contains("r.slice"));
    assert_eq!(units["r-kubepods.slice"]["MemoryLimit"], "U64(1073741824)");
    assert_eq!(tree.read(&format!("cpu{path}/cpu.shares")), "1024");
    let found = manager.pods_with_cgroups().await.unwrap();
    assert_eq!(found, [PodUid::from("a-b")].into());
    // The same again changes nothing, so systemd is not bothered.
    let calls = fake.state.lock().calls.len();
    manager.ensure_exists(&pod("a-b", "1"), None).await.unwrap();
    assert_eq!(fake.state.lock().calls.len(), calls);
    manager.destroy(&"a-b".into()).await.unwrap();
    assert!(!fake.state.lock().units.contains_key(slice));
    assert!(!tree.is_there(&format!("cpu{path}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_systemd_that_does_not_respond_holds_up_no_quick_work() {
    let fake = FakeSystemd::start().await;
    let tree = sliced(&fake).await;
    let manager = tokio::task::block_in_place(|| tree.start()).unwrap();
    // As many as there are places for quick work.
    fake.state.lock().silent = 4;
    let calls: Vec<_> = (0..4)
        .map(|n| {
            let (manager, pod) = (manager.clone(), pod(&n.to_string(), "1"));
            tokio::spawn(async move { manager.ensure_exists(&pod, None).await })
        })
        .collect();
    while fake.state.lock().silent > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let quick = tokio::time::timeout(Duration::from_secs(10), run_file_io(|| ()));
    quick.await.expect("quick work is done").unwrap();
    assert!(calls.iter().all(|call| !call.is_finished()));
    fake.disconnect().await;
    for call in calls {
        call.await.unwrap().unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_cannot_tell_an_underscore_from_a_dash() {
    let fake = FakeSystemd::start().await;
    let tree = sliced(&fake).await;
    let manager = tokio::task::block_in_place(|| tree.start()).unwrap();
    let parent = |uid| manager.pod_cgroup_parent(&pod(uid, ""));
    let path =
        "/r.slice/r-kubepods.slice/r-kubepods-besteffort.slice/r-kubepods-besteffort-poda_b.slice";
    assert_eq!(parent("a-b").unwrap(), path);
    assert!(parent("a_b").is_err());
}

#[tokio::test]
async fn without_cgroups_nothing_is_made() {
    let manager = ContainerManager::off();
    let made = manager.ensure_exists(&pod("u", "1"), None).await.unwrap();
    assert_eq!((made.parent.as_str(), made.limit_error), ("", None));
    assert!(manager.pods_with_cgroups().await.unwrap().is_empty());
    manager.destroy(&"u".into()).await.unwrap();
}

#[test]
fn only_a_kubelet_that_has_the_whole_machine_changes_settings_of_the_kernel() {
    use KernelTunableBehavior::{Error, Modify, Warn};
    let rows = [
        (true, "/", false, Modify),
        (true, "/part", false, Warn),
        (false, "/", false, Warn),
        (true, "/", true, Error),
        (true, "/part", true, Error),
    ];
    for (per_qos, root, protect_kernel_defaults, expected) in rows {
        let config = CgroupsConfig {
            per_qos,
            root: root.to_owned(),
            protect_kernel_defaults,
            ..CgroupsConfig::default()
        };
        assert_eq!(kernel_behavior(&config), expected, "{config:?}");
    }
}
