use super::*;
use crate::host::cgroup::{CgroupLimits, CgroupUsage, CpuUsage, DeviceIo, MemoryUsage, Throttling};
use crate::host::proc::NetworkInterface;
use crate::node::stats::running_pods::{ContainerSubject, PodSubject};
use std::collections::{HashMap, HashSet};

fn sample(path: &str) -> CgroupSample {
    let usage = CgroupUsage {
        cpu: Some(CpuUsage { total: 2_500_000_000, user: 1_000_000_000, system: 0 }),
        memory: Some(MemoryUsage {
            usage: 100,
            max_usage: Some(200),
            inactive_file: 300,
            ..MemoryUsage::default()
        }),
        throttling: Some(Throttling { throttled: 70_000, ..Throttling::default() }),
        io: vec![DeviceIo { device: (8, 0), read_bytes: 9, ..DeviceIo::default() }],
        ..CgroupUsage::default()
    };
    CgroupSample {
        path: path.into(),
        at: 1_700_000_000_123_456_789,
        created: Some(1_600_000_001_000_000_000),
        usage: Arc::new(usage),
        limits: CgroupLimits { has_memory: true, cpu_shares: Some(2), ..CgroupLimits::default() },
        nano_cores: None,
    }
}

fn snapshot(pods: usize) -> Snapshot {
    let pod = |number: usize| PodSample {
        pod: PodSubject {
            uid: "u".into(),
            name: format!("p{number}").into(),
            namespace: "n\"s".into(),
            created_at: 1_600_000_000_999_999_999,
            sandbox: Some("box".into()),
            host_network: false,
            containers: vec![ContainerSubject {
                id: "cid".into(),
                name: "web".into(),
                image: "nginx:1".into(),
                created_at: 1,
            }],
        },
        pod_cgroup: None,
        sandbox: Some(sample("/k8s.io/box")),
        containers: vec![Some(sample("/k8s.io/cid"))],
        network: Some(Arc::new([NetworkInterface {
            name: "eth0".into(),
            received: [1, 2, 3, 4],
            sent: [5, 6, 7, 8],
        }])),
    };
    Snapshot {
        huge_pages: 0,
        node: sample("/"),
        pods: (0..pods).map(pod).collect(),
        disks: HashMap::from([((8, 0), "/dev/sda".to_owned())]),
        ..Snapshot::default()
    }
}

fn machine() -> MachineFacts {
    MachineFacts {
        host: HostMachine {
            kernel_release: "6.1".into(),
            boot_id: "b".into(),
            cpus: 4,
            ..HostMachine::default()
        },
        ..MachineFacts::default()
    }
}

fn text(pods: usize) -> String {
    let fs = FilesystemUsage { capacity: 50, ..FilesystemUsage::default() };
    let filesystems = vec![("/dev/sda1".to_owned(), fs)];
    chunks(Arc::new(snapshot(pods)), &machine(), "pause:3", filesystems).collect()
}

#[test]
fn series_have_upstreams_names_labels_and_moments() {
    let text = text(1);
    let container =
        r#"container="web",id="/k8s.io/cid",image="nginx:1",name="cid",namespace="n\"s",pod="p0""#;
    let sandbox =
        r#"container="",id="/k8s.io/box",image="pause:3",name="box",namespace="n\"s",pod="p0""#;
    let root = r#"container="",id="/",image="",name="",namespace="",pod="""#;
    for line in [
        format!("container_cpu_usage_seconds_total{{{container},cpu=\"total\"}} 2.5 1700000000123"),
        format!("container_cpu_usage_seconds_total{{{root},cpu=\"total\"}} 2.5 1700000000123"),
        format!("container_cpu_cfs_throttled_seconds_total{{{container}}} 0.00007 1700000000123"),
        format!("container_memory_working_set_bytes{{{container}}} 0 1700000000123"),
        format!("container_memory_failures_total{{{container},failure_type=\"pgfault\",scope=\"container\"}} 0 1700000000123"),
        format!("container_network_transmit_packets_dropped_total{{{sandbox},interface=\"eth0\"}} 8 1700000000123"),
        format!("container_network_receive_errors_total{{{sandbox},interface=\"eth0\"}} 3 1700000000123"),
        format!("container_fs_reads_bytes_total{{{container},device=\"/dev/sda\"}} 9 1700000000123"),
        format!("container_fs_limit_bytes{{{root},device=\"/dev/sda1\"}} 50 1700000000123"),
        format!("container_last_seen{{{container}}} 1700000000 1700000000123"),
        format!("container_start_time_seconds{{{container}}} 1600000001"),
        format!("container_spec_memory_limit_bytes{{{container}}} 0"),
        format!("container_spec_cpu_shares{{{container}}} 2"),
        r#"machine_cpu_cores{boot_id="b",machine_id="",system_uuid=""} 4"#.to_owned(),
        r#"cadvisor_version_info{cadvisorRevision="",cadvisorVersion="",dockerVersion="",kernelVersion="6.1",osVersion=""} 1"#.to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "missing {line}\n{text}");
    }
    for absent in ["container_spec_cpu_quota", "container_processes", "container_pressure"] {
        assert!(!text.contains(absent), "{absent}");
    }
}

#[test]
fn every_family_is_headed_once_and_no_series_is_there_twice() {
    let text = text(300);
    let mut seen = HashSet::new();
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
            assert!(seen.insert(format!("# {family}")), "{family} twice");
        } else if !line.starts_with('#') {
            let (series, _) = line.split_once("} ").unwrap_or((line, ""));
            assert!(series.starts_with(family), "{series} under {family}");
            assert!(seen.insert(series.to_owned()), "{series} twice");
        }
    }
}

#[test]
fn the_text_comes_in_pieces_whatever_its_length() {
    let long: usize = text(300).len();
    assert!(long > 20 * MIN_CHUNK, "{long}");
    let snapshot = Arc::new(snapshot(300));
    let most = chunks(snapshot, &machine(), "", Vec::new()).map(|piece| piece.len()).max();
    assert!(most < Some(2 * MIN_CHUNK), "{most:?}");
}

#[test]
fn the_table_is_sorted_and_names_match_types() {
    let names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    for family in FAMILIES {
        // Upstream's exceptions.
        let counter = match family.name {
            "container_memory_failcnt" => true,
            "container_fs_inodes_total" => false,
            name => name.ends_with("_total"),
        };
        assert_eq!(family.kind == MetricKind::Counter, counter, "{}", family.name);
        assert!(!family.help.is_empty());
    }
}
