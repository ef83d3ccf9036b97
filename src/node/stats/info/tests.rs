use super::*;
use crate::host::cgroup::{CgroupLimits, CgroupUsage, CpuUsage, TaskCount};
use crate::node::stats::running_pods::{ContainerSubject, PodSubject};
use crate::node::stats::sampler::SystemSample;
use std::sync::Arc;

const AT: i64 = 1_700_000_000_123_456_789;

fn a_sample(path: &str) -> CgroupSample {
    let usage = CgroupUsage {
        cpu: Some(CpuUsage { total: 5, user: 3, system: 2 }),
        memory: Some(MemoryUsage { usage: 100, inactive_file: 40, ..MemoryUsage::default() }),
        tasks: Some(TaskCount { processes: 1, threads: 4, any_pid: None }),
        io: vec![DeviceIo { device: (8, 0), read_bytes: 7, write_bytes: 1, reads: 2, writes: 1 }],
        ..CgroupUsage::default()
    };
    CgroupSample {
        path: path.into(),
        at: AT,
        created: Some(AT - 1_000_000_000),
        usage: Arc::new(usage),
        limits: CgroupLimits {
            has_memory: true,
            cpu_shares: Some(102),
            memory: Some(64 << 20),
            ..CgroupLimits::default()
        },
        nano_cores: None,
    }
}

fn snapshot() -> Snapshot {
    let container = |name: &str| ContainerSubject {
        id: format!("id-{name}").into(),
        name: name.into(),
        image: "nginx:1".into(),
        created_at: AT - 1_000_000_000,
    };
    let pod = PodSample {
        pod: PodSubject {
            uid: "u1".into(),
            name: "web".into(),
            namespace: "shop".into(),
            created_at: AT,
            sandbox: Some("box".into()),
            host_network: false,
            containers: vec![container("main"), container("lost")],
        },
        pod_cgroup: Some(a_sample("/kubepods/podu1")),
        sandbox: Some(a_sample("/kubepods/podu1/box")),
        containers: vec![Some(a_sample("/kubepods/podu1/id-main")), None],
        network: Some(Arc::new([NetworkInterface {
            name: "eth0".into(),
            received: [1, 2, 3, 4],
            sent: [5, 6, 7, 8],
        }])),
    };
    Snapshot {
        huge_pages: 0,
        node: a_sample("/"),
        ancestors: vec![a_sample("/kubepods")],
        system: vec![SystemSample {
            name: "kubelet",
            sample: a_sample("/system.slice/kubelet.service"),
        }],
        pods: vec![pod],
        disks: HashMap::from([((8, 0), "/dev/sda".to_owned())]),
        ..Snapshot::default()
    }
}

fn query(of: &ContainerInfoSelector) -> Vec<(String, Value)> {
    let filesystems =
        [("/dev/sda1".to_owned(), FilesystemUsage { capacity: 50, ..FilesystemUsage::default() })];
    let context = InfoContext {
        booted: 1_600_000_000_000_000_000,
        runtime: "containerd",
        filesystems: &filesystems,
    };
    let reported = infos(&snapshot(), &context, of);
    let with_path = |info: ContainerInfo| (info.path.clone(), info.into_json(None, None));
    reported.into_iter().map(with_path).collect()
}

fn cgroup(path: &str, subcontainers: bool) -> ContainerInfoSelector {
    ContainerInfoSelector::Cgroup { path: path.to_owned(), subcontainers }
}

fn container(uid: &str, name: &str) -> ContainerInfoSelector {
    ContainerInfoSelector::Container { pod: uid.into(), name: name.to_owned() }
}

#[test]
fn a_container_has_its_names_its_limits_and_one_sample() {
    let reported = query(&container("u1", "main"));
    let [(path, info)] = reported.as_slice() else {
        panic!("{reported:?}");
    };
    assert_eq!(path, "/kubepods/podu1/id-main");
    assert_eq!(info["name"], "/kubepods/podu1/id-main");
    assert_eq!(info["aliases"], json!(["id-main"]));
    assert_eq!(info["namespace"], "containerd");
    let spec = &info["spec"];
    assert_eq!(spec["creation_time"], "2023-11-14T22:13:19.123456789Z");
    assert_eq!(spec["labels"]["io.kubernetes.pod.uid"], "u1");
    assert_eq!(spec["cpu"], json!({"limit": 102, "max_limit": 0}));
    assert_eq!(spec["memory"], json!({"limit": 64 << 20}));
    assert_eq!((&spec["has_cpu"], &spec["has_memory"]), (&json!(true), &json!(true)));
    assert_eq!(info["stats"].as_array().map(Vec::len), Some(1));
    let sample = &info["stats"][0];
    assert_eq!(sample["timestamp"], "2023-11-14T22:13:20.123456789Z");
    let usage = json!({"total": 5, "user": 3, "system": 2});
    assert_eq!(sample["cpu"]["usage"], usage);
    assert_eq!(sample["memory"]["usage"], 100);
    assert_eq!(sample["memory"]["working_set"], 60);
    assert_eq!(sample["network"]["name"], "eth0");
    assert_eq!(sample["network"]["interfaces"][0]["tx_dropped"], 8);
    let io = &sample["diskio"]["io_service_bytes"][0];
    assert_eq!((&io["device"], &io["stats"]["Total"]), (&json!("/dev/sda"), &json!(8)));
    assert_eq!(sample["processes"]["threads_current"], 4);
}

#[test]
fn entities_without_a_running_cgroup_are_left_out() {
    for (uid, name) in [("u1", "lost"), ("u1", "none"), ("u2", "main"), ("u1", "POD")] {
        assert_eq!(query(&container(uid, name)), [], "{uid} {name}");
    }
}

#[test]
fn a_cgroup_is_returned_alone_or_with_those_below_it() {
    let table: &[(&str, bool, &[&str])] = &[
        ("/", false, &["/"]),
        (
            "/",
            true,
            &[
                "/",
                "/kubepods",
                "/kubepods/podu1",
                "/kubepods/podu1/box",
                "/kubepods/podu1/id-main",
                "/system.slice/kubelet.service",
            ],
        ),
        (
            "/kubepods/podu1",
            true,
            &["/kubepods/podu1", "/kubepods/podu1/box", "/kubepods/podu1/id-main"],
        ),
        ("/kubepods/pod", true, &[]),
        ("/system.slice", true, &[]),
        ("/none", false, &[]),
    ];
    for (path, subcontainers, expected) in table {
        let reported = query(&cgroup(path, *subcontainers));
        let paths: Vec<&str> = reported.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, *expected, "{path} {subcontainers}");
    }
    let machine = &query(&cgroup("/", false))[0].1;
    assert_eq!(machine.get("aliases"), None);
    assert_eq!(machine["spec"]["has_filesystem"], true);
    assert_eq!(machine["stats"][0]["filesystem"][0]["capacity"], 50);
    assert_eq!(machine["spec"]["creation_time"], "2023-11-14T22:13:19.123456789Z");
}

#[test]
fn a_sample_that_is_not_of_that_time_is_left_out() {
    let context = InfoContext { booted: 0, runtime: "", filesystems: &[] };
    let at = |seconds: i64| Timestamp::from_second(seconds).ok();
    for (start, end, there) in [
        (None, None, true),
        (at(1_700_000_000), at(1_700_000_001), true),
        (at(1_700_000_001), None, false),
        (None, at(1_700_000_000), false),
    ] {
        let reported = infos(&snapshot(), &context, &cgroup("/", false));
        let info = reported.into_iter().next().unwrap().into_json(start, end);
        assert_eq!(info.get("stats").is_some(), there, "{start:?} {end:?}");
    }
}
