use super::*;
use crate::model::{ContainerState, ContainerStatus, SandboxStatus};
use crate::node::node_status::resources::ThresholdValue;
use crate::node::stats::api::{MemoryStats, ProcessStats, VolumeStats};

fn pod(name: &str, priority: i32, memory: &str) -> Arc<Pod> {
    let spec = format!(
        r#"{{"priority":{priority},"containers":[{{"name":"c","resources":{{"requests":{{"memory":"{memory}","ephemeral-storage":"1Ki"}}}}}}],
        "volumes":[{{"name":"scratch","emptyDir":{{}}}},{{"name":"host","hostPath":{{"path":"/"}}}}]}}"#
    );
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.spec = serde_json::from_str(&spec).unwrap();
    Arc::new(pod)
}

fn usage(memory: u64) -> PodStats {
    let memory = Some(MemoryStats { working_set_bytes: Some(memory), ..MemoryStats::default() });
    PodStats {
        containers: vec![ContainerStats {
            name: "c".into(),
            memory: memory.clone(),
            ..ContainerStats::default()
        }],
        memory,
        ..PodStats::default()
    }
}

fn names(candidates: &[Candidate]) -> Vec<&str> {
    candidates.iter().map(|candidate| candidate.pod.name()).collect()
}

fn fs(bytes: u64) -> FsStats {
    FsStats { used_bytes: Some(bytes), ..FsStats::default() }
}

const ALL: FilesOnDisk = FilesOnDisk { layers: true, logs_and_volumes: true };

#[test]
fn a_pod_of_which_nothing_runs_frees_no_memory_and_only_what_it_is_known_to_have_on_disk() {
    let nothing = PodStatus::default();
    let sandbox = PodStatus {
        sandboxes: vec![SandboxStatus { ready: true, ..SandboxStatus::default() }],
        ..PodStatus::default()
    };
    let container = |state| PodStatus {
        containers: vec![ContainerStatus { state, ..ContainerStatus::default() }],
        ..PodStatus::default()
    };
    let running = container(ContainerState::Running);
    let exited = container(ContainerState::Exited);
    for (status, ran_before, has_usage, memory, disk) in [
        (Some(&nothing), true, false, false, false),
        (Some(&nothing), true, true, false, true),
        (Some(&exited), false, true, false, true),
        (Some(&running), true, false, true, true),
        (Some(&sandbox), true, false, true, true),
        // Its status is being read.
        (None, true, false, true, true),
        // It has started since its usage was read.
        (Some(&running), false, false, false, false),
        (Some(&sandbox), false, false, false, false),
        (None, false, false, false, false),
        (Some(&running), false, true, true, true),
    ] {
        let candidate = Candidate { pod: pod("a", 0, "100"), usage: has_usage.then(|| usage(1)) };
        let found = [EvictionResource::Memory, EvictionResource::Pids, EvictionResource::Disk]
            .map(|resource| can_free(&candidate, ran_before, status, resource));
        let case = format!("{status:?} {ran_before} {has_usage}");
        assert_eq!(found, [memory, memory, disk], "{case}");
    }
}

#[test]
fn pods_over_their_requests_go_first_then_those_of_lesser_priority_then_the_greedy() {
    let mut candidates: Vec<_> = [
        ("within", 0, "100", Some(100)),
        ("important", 5, "1", Some(1000)),
        ("greedy", 0, "100", Some(500)),
        ("modest", 0, "100", Some(101)),
        ("unknown", 9, "100", None),
        ("within and less important", -1, "100", Some(1)),
    ]
    .map(|(name, priority, memory, used)| Candidate {
        pod: pod(name, priority, memory),
        usage: used.map(usage),
    })
    .into();
    rank(&mut candidates, EvictionSignal::MemoryAvailable, ALL);
    assert_eq!(
        names(&candidates),
        ["unknown", "greedy", "modest", "important", "within and less important", "within"]
    );
}

#[test]
fn only_files_on_the_scarce_disk_count() {
    let with = |name, layer, log, volume, host| {
        let usage = PodStats {
            containers: vec![ContainerStats {
                name: "c".into(),
                rootfs: Some(fs(layer)),
                logs: Some(fs(log)),
                ..ContainerStats::default()
            }],
            volumes: vec![
                VolumeStats { name: "scratch".into(), fs: fs(volume), ..VolumeStats::default() },
                VolumeStats { name: "host".into(), fs: fs(host), ..VolumeStats::default() },
            ],
            ..PodStats::default()
        };
        Candidate { pod: pod(name, 0, "1"), usage: Some(usage) }
    };
    let all = [
        with("layer", 9000, 0, 0, 0),
        with("log", 0, 5000, 0, 0),
        with("volume", 0, 0, 6000, 0),
        with("host", 0, 0, 0, 99_000),
    ];
    let (node, images) = (EvictionSignal::NodeFsAvailable, EvictionSignal::ImageFsAvailable);
    for (signal, layout, expected) in [
        (node, DiskLayout::OneDisk, ["layer", "volume", "log", "host"]),
        (node, DiskLayout::DedicatedImages, ["volume", "log", "layer", "host"]),
        (images, DiskLayout::DedicatedImages, ["layer", "log", "volume", "host"]),
        (node, DiskLayout::SplitImages, ["layer", "volume", "log", "host"]),
        (images, DiskLayout::SplitImages, ["layer", "log", "volume", "host"]),
    ] {
        let mut candidates = all.to_vec();
        rank(&mut candidates, signal, FilesOnDisk::of(signal, layout));
        assert_eq!(names(&candidates), expected, "{signal:?} {layout:?}");
    }
}

#[test]
fn a_pod_whose_usage_is_not_fully_known_is_over_its_request() {
    let with = |name, priority, log, volume: Option<FsStats>| {
        let volume =
            volume.map(|fs| VolumeStats { name: "scratch".into(), fs, ..VolumeStats::default() });
        let usage = PodStats {
            containers: vec![ContainerStats {
                name: "c".into(),
                logs: Some(fs(log)),
                ..ContainerStats::default()
            }],
            volumes: volume.into_iter().collect(),
            ..PodStats::default()
        };
        Candidate { pod: pod(name, priority, "1"), usage: Some(usage) }
    };
    let mut candidates = [
        with("known", 0, 500, Some(fs(500))),
        with("not measured yet", 0, 100, None),
        with("unreadable", 0, 50, Some(FsStats::default())),
        with("over", 0, 2000, Some(fs(0))),
        with("more", 0, 10, Some(FsStats { is_partial: true, ..fs(300) })),
        with("more important", 1, 10, Some(FsStats { is_partial: true, ..fs(900) })),
    ];
    rank(&mut candidates, EvictionSignal::NodeFsAvailable, ALL);
    let order = names(&candidates);
    assert_eq!(
        order,
        ["over", "more", "not measured yet", "unreadable", "more important", "known"]
    );
}

#[test]
fn the_pod_with_countless_files_goes_before_one_with_a_few() {
    let inodes = |count, is_partial| FsStats { inodes_used: Some(count), is_partial, ..fs(0) };
    let with = |name, volume| Candidate {
        pod: pod(name, 0, "1"),
        usage: Some(PodStats {
            volumes: vec![VolumeStats {
                name: "scratch".into(),
                fs: volume,
                ..VolumeStats::default()
            }],
            ..PodStats::default()
        }),
    };
    let mut candidates =
        [with("few", inodes(10, false)), with("countless", inodes(2_000_000, true))];
    rank(&mut candidates, EvictionSignal::NodeFsInodesFree, ALL);
    assert_eq!(names(&candidates), ["countless", "few"]);
}

#[test]
fn what_shares_a_disk_follows_from_the_devices() {
    for (root, images, layers, expected) in [
        (Some(1), Some(1), Some(1), DiskLayout::OneDisk),
        (Some(1), Some(1), None, DiskLayout::OneDisk),
        (Some(1), Some(2), Some(2), DiskLayout::DedicatedImages),
        (Some(1), Some(2), None, DiskLayout::DedicatedImages),
        (Some(1), Some(2), Some(3), DiskLayout::DedicatedImages),
        (Some(1), Some(2), Some(1), DiskLayout::SplitImages),
        (None, Some(2), None, DiskLayout::DedicatedImages),
    ] {
        assert_eq!(
            DiskLayout::of(root, images, layers),
            expected,
            "{root:?} {images:?} {layers:?}"
        );
    }
}

#[test]
fn processes_count_by_number_and_priority_alone() {
    let with = |name, priority, processes| {
        let usage = PodStats {
            process_stats: Some(ProcessStats { process_count: Some(processes) }),
            ..PodStats::default()
        };
        Candidate { pod: pod(name, priority, "1"), usage: Some(usage) }
    };
    let mut candidates = [with("few", 0, 2), with("many", 0, 900), with("important", 1, 5000)];
    rank(&mut candidates, EvictionSignal::PidAvailable, ALL);
    assert_eq!(names(&candidates), ["many", "few", "important"]);
}

#[test]
fn the_message_says_what_was_scarce_and_who_used_it() {
    let threshold = EvictionThreshold {
        signal: EvictionSignal::MemoryAvailable,
        value: ThresholdValue::Absolute(100 << 20),
        grace: None,
        min_reclaim: ThresholdValue::Absolute(0),
    };
    let observed = Observation { available: 52_428_800, capacity: 8 << 30 };
    let candidate = Candidate { pod: pod("p", 0, "10Mi"), usage: Some(usage(20 << 20)) };
    assert_eq!(
        message(&candidate, &threshold, Some(observed)),
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
         Container c was using 20Mi, request is 10Mi, has larger consumption of memory. "
    );
    let decimal = Candidate { pod: pod("p", 0, "1000k"), ..candidate.clone() };
    let text = message(&decimal, &threshold, None);
    assert!(text.contains("request is 1M,"), "{text}");
    let modest = Candidate { usage: Some(usage(1)), ..candidate };
    assert_eq!(message(&modest, &threshold, None), "The node was low on resource: memory. ");
}

#[test]
fn the_annotations_name_the_resource_and_the_containers_over_their_requests() {
    for (used, container, amount) in [(20 << 20, "c", "20Mi"), (1, "", "")] {
        let candidate = Candidate { pod: pod("p", 0, "10Mi"), usage: Some(usage(used)) };
        let expected = [
            ("offending_containers", container),
            ("offending_containers_usage", amount),
            ("starved_resource", "memory"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(annotations(&candidate, EvictionResource::Memory), expected.into());
    }
}

#[test]
fn the_message_names_the_memory_that_a_pod_requests_for_all_its_containers() {
    let threshold = EvictionThreshold {
        signal: EvictionSignal::MemoryAvailable,
        value: ThresholdValue::Absolute(100 << 20),
        grace: None,
        min_reclaim: ThresholdValue::Absolute(0),
    };
    let spec = r#"{"containers":[{"name":"c"}],"resources":{"requests":{"memory":"30Mi"}}}"#;
    let candidate = Candidate {
        pod: Arc::new(Pod {
            spec: serde_json::from_str(spec).unwrap(),
            ..(*pod("p", 0, "0")).clone()
        }),
        usage: Some(PodStats {
            memory: Some(MemoryStats {
                working_set_bytes: Some(20 << 20),
                ..MemoryStats::default()
            }),
            ..PodStats::default()
        }),
    };
    let annotations = annotations(&candidate, EvictionResource::Memory);
    assert_eq!(annotations["offending_pod"], "p");
    assert_eq!(annotations["offending_pod_usage"], "20Mi");
    assert_eq!(
        message(&candidate, &threshold, None),
        "The node was low on resource: memory. \
         Pod p was using 20Mi, request is 30Mi, has larger consumption of memory. "
    );
    let disk = EvictionThreshold { signal: EvictionSignal::NodeFsAvailable, ..threshold };
    assert_eq!(
        message(&candidate, &disk, None),
        "The node was low on resource: ephemeral-storage. "
    );
}

#[test]
fn a_container_of_which_some_usage_on_disk_is_unknown_is_not_in_the_message() {
    let threshold = EvictionThreshold {
        signal: EvictionSignal::NodeFsAvailable,
        value: ThresholdValue::Absolute(100 << 20),
        grace: None,
        min_reclaim: ThresholdValue::Absolute(0),
    };
    let low = "The node was low on resource: ephemeral-storage. ";
    for (layer, log, over) in [
        (Some(fs(4096)), Some(fs(4096)), true),
        (Some(fs(4096)), None, false),
        (None, Some(fs(4096)), false),
        (Some(fs(4096)), Some(FsStats::default()), false),
        (Some(fs(512)), Some(fs(512)), false),
    ] {
        let usage = PodStats {
            containers: vec![ContainerStats {
                name: "c".into(),
                rootfs: layer.clone(),
                logs: log.clone(),
                ..ContainerStats::default()
            }],
            ..PodStats::default()
        };
        let candidate = Candidate { pod: pod("p", 0, "1"), usage: Some(usage) };
        let text = message(&candidate, &threshold, None);
        assert_eq!(text != low, over, "{layer:?} {log:?}: {text}");
    }
}
