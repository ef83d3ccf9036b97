use super::*;
use crate::host::DiskUsage;
use crate::host::cgroup::{CgroupLimits, CgroupUsage, CpuUsage, MemoryUsage, Pressures, TaskCount};
use crate::model::{ClaimRef, MeasurableVolume, ReportedUsage, UsageSource};
use crate::node::stats::disk::DiskMeasurement;
use crate::node::stats::sampler::SystemSample;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const S: i64 = 1_000_000_000;

fn sample(path: &str, at: i64, cpu: u64, memory: u64) -> CgroupSample {
    let usage = CgroupUsage {
        cpu: Some(CpuUsage { total: cpu, ..CpuUsage::default() }),
        memory: Some(MemoryUsage {
            usage: memory,
            inactive_file: memory / 4,
            rss: memory / 2,
            page_faults: 5,
            major_page_faults: 1,
            swap: 8,
            ..MemoryUsage::default()
        }),
        tasks: Some(TaskCount { processes: 2, threads: 3, any_pid: Some(1) }),
        ..CgroupUsage::default()
    };
    CgroupSample {
        path: path.into(),
        at: at * S,
        created: None,
        usage: Arc::new(usage),
        limits: CgroupLimits::default(),
        nano_cores: Some(cpu / 10),
    }
}

fn subject(uid: &str, containers: &[&str]) -> PodSubject {
    let container = |name: &&str| ContainerSubject {
        id: format!("id-{name}").into(),
        name: (*name).into(),
        image: "image".into(),
        created_at: 1_700_000_000 * S,
    };
    PodSubject {
        uid: uid.into(),
        name: "web".into(),
        namespace: "default".into(),
        created_at: 1_700_000_000 * S,
        sandbox: Some("box".into()),
        host_network: false,
        containers: containers.iter().map(container).collect(),
    }
}

fn one_pod() -> Snapshot {
    let pod = PodSample {
        pod: subject("u", &["a", "b"]),
        pod_cgroup: None,
        sandbox: Some(sample("/k8s.io/box", 1_700_000_100, 10, 40)),
        containers: vec![
            Some(sample("/k8s.io/id-a", 1_700_000_101, 100, 400)),
            Some(sample("/k8s.io/id-b", 1_700_000_102, 200, 800)),
        ],
        network: Some(Arc::new([NetworkInterface {
            name: "eth0".into(),
            received: [1, 2, 3, 4],
            sent: [5, 6, 7, 8],
        }])),
    };
    Snapshot {
        huge_pages: 0,
        node: sample("/", 1_700_000_103, 9_000, 80_000),
        pods: vec![pod],
        ..Snapshot::default()
    }
}

fn reported(snapshot: &Snapshot, disks: Option<Disks<'_>>) -> Summary {
    told_with(snapshot, &HashMap::new(), disks)
}

fn told_with(
    snapshot: &Snapshot,
    runtime_stats: &HashMap<String, v1::ContainerStats>,
    disks: Option<Disks<'_>>,
) -> Summary {
    summary(&SummaryInputs {
        node_name: "node1",
        booted: Time(1_600_000_000 * S),
        started: Time(1_650_000_000 * S),
        snapshot,
        runtime_stats,
        disks,
    })
}

fn no_pressure() -> Value {
    let line = json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
    json!({"full": line, "some": line})
}

fn as_json(summary: &Summary) -> Value {
    serde_json::to_value(summary).unwrap()
}

#[test]
fn only_cpu_and_memory_leaves_out_disks_and_networks() {
    let reported = as_json(&reported(&one_pod(), None));
    let pod = &reported["pods"][0];
    let expected = json!({
        "podRef": {"name": "web", "namespace": "default", "uid": "u"},
        "startTime": "2023-11-14T22:13:20Z",
        "cpu": {
            "time": "2023-11-14T22:15:02Z", "usageNanoCores": 31, "usageCoreNanoSeconds": 310
        },
        "memory": {
            "time": "2023-11-14T22:15:02Z", "usageBytes": 1240, "workingSetBytes": 930,
            "rssBytes": 620, "pageFaults": 15, "majorPageFaults": 3
        },
        "swap": {"time": "2023-11-14T22:15:02Z", "swapUsageBytes": 16},
        // Eviction ranks by it; requests for the Summary API do not get it.
        "process_stats": {"process_count": 4},
        "containers": pod["containers"],
    });
    assert_eq!(pod, &expected);
    assert_eq!(
        pod["containers"][0],
        json!({
            "name": "a",
            "startTime": "2023-11-14T22:13:20Z",
            "cpu": {
                "time": "2023-11-14T22:15:01Z", "usageNanoCores": 10, "usageCoreNanoSeconds": 100,
                "psi": no_pressure()
            },
            "memory": {
                "time": "2023-11-14T22:15:01Z", "usageBytes": 400, "workingSetBytes": 300,
                "rssBytes": 200, "pageFaults": 5, "majorPageFaults": 1, "psi": no_pressure()
            },
            "swap": {"time": "2023-11-14T22:15:01Z", "swapUsageBytes": 8},
        })
    );
    let node = &reported["node"];
    assert_eq!(node["nodeName"], "node1");
    assert_eq!(node["startTime"], "2020-09-13T12:26:40Z");
    assert!(node.get("fs").is_none() && node.get("rlimit").is_none());
    let pods = &node["systemContainers"][0];
    assert_eq!((&pods["name"], &pods["startTime"]), (&json!("pods"), &Value::Null));
    assert_eq!(pods["memory"]["workingSetBytes"], 930);
}

#[test]
fn a_pods_own_cgroup_counts_more_than_the_sum_and_limits_give_what_is_left() {
    let mut snapshot = one_pod();
    let mut whole = sample("/kubepods/podu", 1_700_000_104, 500, 2_000);
    whole.limits.memory = Some(1_000);
    let mut usage = CgroupUsage::clone(&whole.usage);
    usage.pressure = Some(Pressures::default());
    whole.usage = Arc::new(usage);
    snapshot.pods[0].pod_cgroup = Some(whole);
    let reported = reported(&snapshot, None);
    let pod = &reported.pods[0];
    assert_eq!(pod.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(500));
    assert!(pod.cpu.as_ref().unwrap().psi.is_some() && pod.io.is_none());
    // More in use than the limit means that zero is available.
    assert_eq!(pod.memory.as_ref().unwrap().available_bytes, Some(0));
}

#[test]
fn huge_pages_are_not_available_to_the_node() {
    let mut snapshot = one_pod();
    snapshot.node.limits.memory = Some(1 << 30);
    let available = |snapshot: &Snapshot| {
        let memory = reported(snapshot, None).node.memory.unwrap();
        (memory.available_bytes, memory.working_set_bytes)
    };
    let (before, working_set) = available(&snapshot);
    snapshot.huge_pages = 100;
    assert_eq!(available(&snapshot), (before.map(|before| before - 100), working_set));
    snapshot.huge_pages = 1 << 40;
    assert_eq!(available(&snapshot), (Some(0), working_set));
}

#[test]
fn system_containers_are_named_and_dated_as_upstream_names_and_dates_them() {
    let mut snapshot = one_pod();
    let system = |name, path, cpu, created| SystemSample {
        name,
        sample: CgroupSample { created, ..sample(path, 1_700_000_106, cpu, 3_000) },
    };
    snapshot.system = vec![
        system("kubelet", "/kubelet", 7, Some(S)),
        system("runtime", "/containerd", 8, Some(1_660_000_000 * S)),
        system("misc", "/", 9, None),
        system("pods", "/kubepods", 600, Some(1_670_000_000 * S)),
    ];
    snapshot.system[3].sample.limits.memory = Some(4_000);
    let measurements = DiskMeasurements::default();
    let disks = Disks {
        node: None,
        images: None,
        measurements: &measurements,
        pods: &HashMap::new(),
        threads: (None, None),
    };
    for disks in [None, Some(disks)] {
        let reported = reported(&snapshot, disks);
        let found: Vec<_> = reported
            .node
            .system_containers
            .iter()
            .map(|c| (&*c.name, c.start_time.0 / S))
            .collect();
        assert_eq!(
            found,
            [
                ("kubelet", 1_650_000_000),
                ("runtime", 1_660_000_000),
                ("misc", 1_600_000_000),
                ("pods", 1_670_000_000),
            ]
        );
        let reported = as_json(&reported);
        let pods = &reported["node"]["systemContainers"][3];
        assert_eq!(pods["cpu"]["usageCoreNanoSeconds"], 600);
        assert_eq!(pods["cpu"]["psi"], no_pressure());
        assert_eq!(pods["memory"]["availableBytes"], 1_750);
        assert_eq!(pods["memory"]["psi"], no_pressure());
        assert!(pods.get("rootfs").is_none() && pods.get("logs").is_none());
        // Only the whole summary has disks, as upstream.
        assert_eq!(pods.get("io").is_some(), disks.is_some());
        assert_eq!(reported["node"].get("io").is_some(), disks.is_some());
    }
}

#[test]
fn without_a_cgroup_the_runtimes_values_are_used_and_without_both_none() {
    let mut snapshot = one_pod();
    snapshot.pods[0].containers = vec![None, None];
    snapshot.pods[0].sandbox = None;
    let number = |value| Some(UInt64Value { value });
    let runtime_stats = v1::ContainerStats {
        cpu: Some(v1::CpuUsage {
            timestamp: 1_700_000_000 * S,
            usage_core_nano_seconds: number(7),
            ..v1::CpuUsage::default()
        }),
        memory: Some(v1::MemoryUsage {
            timestamp: -5,
            working_set_bytes: number(u64::MAX),
            ..v1::MemoryUsage::default()
        }),
        ..v1::ContainerStats::default()
    };
    let runtime_stats = HashMap::from([
        ("id-a".to_owned(), runtime_stats.clone()),
        ("unknown".to_owned(), runtime_stats),
    ]);
    let reported = told_with(&snapshot, &runtime_stats, None);
    let pod = &reported.pods[0];
    let [a, b] = &pod.containers[..] else { panic!() };
    assert_eq!(a.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(7));
    assert_eq!((&b.cpu, &b.memory, &b.swap), (&None, &None, &None));
    assert_eq!(pod.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(7));
    assert_eq!(pod.memory.as_ref().unwrap().working_set_bytes, Some(u64::MAX));
    assert_eq!(
        as_json(&reported)["pods"][0]["containers"][0]["memory"]["time"],
        "1969-12-31T23:59:59Z"
    );
}

#[test]
fn a_pods_disk_usage_is_layers_logs_and_volumes() {
    let snapshot = one_pod();
    let number = |value| Some(UInt64Value { value });
    let runtime_stats = v1::ContainerStats {
        writable_layer: Some(v1::FilesystemUsage {
            timestamp: 1_700_000_000 * S,
            used_bytes: number(1_000),
            inodes_used: number(10),
            ..v1::FilesystemUsage::default()
        }),
        ..v1::ContainerStats::default()
    };
    let runtime_stats = HashMap::from([("id-a".to_owned(), runtime_stats)]);
    let fs = FilesystemUsage {
        capacity: 1 << 30,
        available: 1 << 20,
        used: 1 << 29,
        inodes: 100,
        inodes_free: 40,
    };
    let at = 1_700_000_200 * S;
    let used = |bytes, inodes| Some(DiskUsage { bytes, inodes, is_partial: false });
    let measurements = DiskMeasurements::from([
        (PathBuf::from("/logs/a"), DiskMeasurement::of(at, used(200, 2), None)),
        (PathBuf::from("/pods/u/containers/a"), DiskMeasurement::of(at, used(50, 2), None)),
        (PathBuf::from("/pods/u/etc-hosts"), DiskMeasurement::of(at, used(4, 1), None)),
        // A directory of logs in which no file lies.
        (PathBuf::from("/logs"), DiskMeasurement::of(at, None, None)),
        (PathBuf::from("/v/disk"), DiskMeasurement::of(at, used(30, 3), None)),
        (PathBuf::from("/v/full"), DiskMeasurement::of(at, None, None)),
        (PathBuf::from("/v/claimed"), DiskMeasurement::of(at, None, Some(fs))),
        (
            PathBuf::from("/v/memory"),
            DiskMeasurement::of(at, None, Some(FilesystemUsage { inodes: 0, ..fs })),
        ),
    ]);
    let (files, filesystem) = (UsageSource::Files(None), UsageSource::Filesystem);
    let volume = |name: &str, source| MeasurableVolume {
        name: name.into(),
        path: format!("/v/{name}").into(),
        source,
        claim: None,
    };
    let reported = ReportedUsage {
        at,
        capacity_bytes: 9,
        used_bytes: 4,
        is_abnormal: Some(true),
        ..ReportedUsage::default()
    };
    let claim = ClaimRef { namespace: "default".into(), name: "data".into() };
    let claimed = MeasurableVolume { claim: Some(claim), ..volume("claimed", filesystem) };
    let paths = PodPaths {
        volumes: vec![
            volume("disk", files),
            volume("full", files),
            volume("memory", filesystem),
            volume("unmeasured", files),
            claimed,
            volume("reported", UsageSource::Driver(Some(reported))),
            volume("unreported", UsageSource::Driver(None)),
        ],
        logs: HashMap::from([(
            "a".to_owned(),
            vec!["/logs/a".into(), "/pods/u/containers/a".into()],
        )]),
        files: vec!["/pods/u/etc-hosts".into(), "/logs".into()],
    };
    let pods = HashMap::from([(PodUid::from("u"), paths)]);
    let (node, images) = ((Time(at), fs), whole_fs(Time(at), &fs));
    let disks = Disks {
        node: Some(&node),
        images: Some(&images),
        measurements: &measurements,
        pods: &pods,
        threads: (Some(300), Some(32_768)),
    };
    let reported = as_json(&told_with(&snapshot, &runtime_stats, Some(disks)));
    let pod = &reported["pods"][0];
    assert_eq!(pod["ephemeral-storage"]["usedBytes"], 1_284);
    assert_eq!(pod["ephemeral-storage"]["inodesUsed"], 18);
    assert_eq!(pod["ephemeral-storage"]["availableBytes"], 1 << 20);
    assert_eq!(pod["containers"][0]["rootfs"]["usedBytes"], 1_000);
    assert_eq!(pod["containers"][0]["rootfs"]["inodes"], 100);
    assert_eq!(pod["containers"][0]["logs"]["usedBytes"], 250);
    assert!(pod["containers"][1].get("rootfs").is_none());
    let volumes = pod["volume"].as_array().unwrap();
    let names: Vec<_> = volumes.iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["disk", "full", "memory", "claimed", "reported"]);
    assert_eq!(volumes[4]["capacityBytes"], 9);
    assert_eq!(volumes[4]["inodes"], 0);
    assert_eq!(volumes[4]["volumeHealthStats"], json!({"abnormal": true}));
    assert!(volumes[3].get("volumeHealthStats").is_none());
    let claim = json!({"name": "data", "namespace": "default"});
    assert_eq!(volumes[3]["pvcRef"], claim);
    assert_eq!(volumes[3]["usedBytes"], 1 << 29);
    assert!(volumes[0].get("pvcRef").is_none());
    assert!(volumes[1].get("usedBytes").is_none());
    assert_eq!(volumes[2]["usedBytes"], 1 << 29);
    assert!(volumes[2].get("inodes").is_none());
    assert_eq!(pod["process_stats"], json!({"process_count": 4}));
    assert_eq!(pod["network"]["rxErrors"], 3);
    assert_eq!(pod["network"]["interfaces"][0]["txBytes"], 5);
    assert_eq!(reported["node"]["rlimit"]["maxpid"], 32_768);
    assert_eq!(reported["node"]["rlimit"]["curproc"], 300);
    assert_eq!(reported["node"]["runtime"]["imageFs"]["inodesUsed"], 60);
    assert_eq!(reported["node"]["fs"]["usedBytes"], 1 << 29);
}

#[test]
fn an_empty_node_and_an_empty_pod_have_metrics() {
    let mut snapshot = Snapshot::default();
    assert!(as_json(&reported(&snapshot, None))["pods"].as_array().unwrap().is_empty());
    snapshot.pods.push(PodSample {
        pod: subject("u", &[]),
        pod_cgroup: None,
        sandbox: None,
        containers: Vec::new(),
        network: None,
    });
    let reported = as_json(&reported(&snapshot, None));
    assert_eq!(reported["pods"][0]["containers"], json!([]));
    assert!(reported["pods"][0].get("cpu").is_none());
}
