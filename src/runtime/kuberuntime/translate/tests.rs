use super::*;
use std::collections::HashMap;

fn labels() -> HashMap<String, String> {
    [
        (keys::POD_NAME, "web"),
        (keys::POD_NAMESPACE, "shop"),
        (keys::POD_UID, "u-1"),
        (keys::CONTAINER_NAME, "c"),
    ]
    .map(|(key, value)| (key.to_string(), value.to_string()))
    .into()
}

fn exited() -> v1::ContainerStatus {
    v1::ContainerStatus {
        id: "id1".into(),
        metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 3 }),
        state: v1::ContainerState::ContainerExited.into(),
        created_at: 10,
        started_at: 20,
        finished_at: 30,
        exit_code: 137,
        image: Some(v1::ImageSpec {
            image: "sha256:abc".into(),
            user_specified_image: "web:1".into(),
            ..Default::default()
        }),
        image_ref: "web@sha256:def".into(),
        reason: "OOMKilled".into(),
        message: "too much".into(),
        labels: labels(),
        mounts: vec![
            v1::Mount::default(),
            v1::Mount {
                image: Some(v1::ImageSpec { image: "sha256:data".into(), ..Default::default() }),
                ..Default::default()
            },
        ],
        annotations: [
            (keys::CONTAINER_HASH.into(), "8e45cbd0".into()),
            (keys::CONTAINER_RESTART_COUNT.into(), "4".into()),
            (keys::POD_TERMINATION_GRACE_PERIOD.into(), "45".into()),
            (keys::CONFIG_SOURCE.into(), "file".into()),
        ]
        .into(),
        ..Default::default()
    }
}

fn translated(status: &v1::ContainerStatus) -> ContainerStatus {
    let strings = StringInterner::new();
    container_status(status, "s1".into(), &strings).unwrap().status
}

#[test]
fn an_exited_container_is_reported_in_full() {
    let strings = StringInterner::new();
    let entry = container_status(&exited(), "s1".into(), &strings).unwrap();
    let pod = &entry.pod_ref;
    assert_eq!(pod.uid.as_str(), "u-1");
    assert_eq!((&*pod.name, &*pod.namespace), ("web", "shop"));
    assert_eq!(
        entry.status,
        ContainerStatus {
            id: "id1".into(),
            name: "c".into(),
            sandbox: "s1".into(),
            state: ContainerState::Exited,
            start_cancelled: false,
            restart_count: 4,
            created_at: 10,
            started_at: 20,
            finished_at: 30,
            exit_code: 137,
            image: "web:1".into(),
            image_ref: "web@sha256:def".into(),
            hash: "8e45cbd0".into(),
            reason: "OOMKilled".into(),
            message: "too much".into(),
            user: None,
            stop_signal: None,
            resources: None,
            mounted_images: vec!["sha256:data".into()],
            grace_seconds: Some(45),
            source: Some(PodSource::File),
            host_ports: None,
        }
    );
}

#[test]
fn resources_are_read_if_the_runtime_reports_them() {
    let linux = |cpu_shares, cpu_quota, cpu_period, memory_limit_in_bytes| {
        let reported = translated(&v1::ContainerStatus {
            resources: Some(v1::ContainerResources {
                linux: Some(v1::LinuxContainerResources {
                    cpu_shares,
                    cpu_quota,
                    cpu_period,
                    memory_limit_in_bytes,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..exited()
        });
        reported.resources.map(|reported| {
            let amounts = (reported.cpu_request, reported.cpu_limit, reported.memory_limit);
            [amounts.0, amounts.1, amounts.2].map(Option::unwrap_or_default)
        })
    };
    for ((shares, quota, period, memory), expected) in [
        ((102, 50_000, 100_000, 64), Some([100, 500, 64])),
        ((2, 0, 100_000, 0), Some([2, 0, 0])),
        ((0, -1, 100_000, 0), None),
        ((0, 0, 0, 0), None),
    ] {
        assert_eq!(linux(shares, quota, period, memory), expected);
    }
}

#[test]
fn user_and_stop_signal_are_read_if_the_runtime_reports_them() {
    let reported = translated(&v1::ContainerStatus {
        user: Some(v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser {
                uid: 1000,
                gid: 3000,
                supplemental_groups: vec![3000, 4000],
            }),
        }),
        stop_signal: v1::Signal::Sigrtminplus3.into(),
        ..exited()
    });
    let user = reported.user.unwrap();
    assert_eq!((user.uid, user.gid), (1000, 3000));
    assert_eq!(user.supplemental_groups, [3000, 4000]);
    assert_eq!(reported.stop_signal, Some("SIGRTMIN+3"));
    let nothing = translated(&v1::ContainerStatus {
        user: Some(v1::ContainerUser { linux: None }),
        stop_signal: 99,
        ..exited()
    });
    assert_eq!((nothing.user, nothing.stop_signal), (None, None));
}

#[test]
fn fields_that_do_not_apply_to_the_state_are_empty() {
    let running = translated(&v1::ContainerStatus {
        state: v1::ContainerState::ContainerRunning.into(),
        ..exited()
    });
    assert_eq!((running.started_at, running.finished_at, running.exit_code), (20, 0, 0));
    assert_eq!((&*running.reason, &*running.message), ("", ""));
    let created = translated(&v1::ContainerStatus {
        state: v1::ContainerState::ContainerCreated.into(),
        ..exited()
    });
    assert_eq!(created.started_at, 0);
}

#[test]
fn hostile_values_are_tamed() {
    let tamed = translated(&v1::ContainerStatus {
        state: 99,
        created_at: -5,
        started_at: i64::MIN,
        image: None,
        image_ref: "x".repeat(1 << 20),
        metadata: None,
        annotations: [(keys::CONTAINER_RESTART_COUNT.into(), "-1".into())].into(),
        ..exited()
    });
    assert_eq!(tamed.state, ContainerState::Unknown);
    assert_eq!((tamed.created_at, tamed.started_at, tamed.restart_count), (0, 0, 0));
    assert_eq!((&*tamed.image, tamed.image_ref.len()), ("", MAX_TEXT));
    let wordy = translated(&v1::ContainerStatus {
        message: "é".repeat(1 << 20),
        reason: "r".repeat(1 << 20),
        finished_at: -1,
        ..exited()
    });
    assert_eq!((wordy.message.len(), wordy.reason.len()), (MAX_MESSAGE, MAX_TEXT));
    assert_eq!(wordy.finished_at, 0);
}

#[test]
fn the_attempt_stands_in_for_a_missing_restart_count_and_the_name_for_the_users_image() {
    let old = translated(&v1::ContainerStatus {
        annotations: HashMap::new(),
        image: Some(v1::ImageSpec { image: "docker.io/web:1".into(), ..Default::default() }),
        ..exited()
    });
    assert_eq!((old.restart_count, &*old.hash, &*old.image), (3, "", "docker.io/web:1"));
}

#[test]
fn other_users_of_the_runtime_are_not_seen() {
    let strings = StringInterner::new();
    for key in [keys::POD_UID, keys::POD_NAME, keys::POD_NAMESPACE, keys::CONTAINER_NAME] {
        let mut stranger = exited();
        stranger.labels.remove(key);
        assert_eq!(container_status(&stranger, "s".into(), &strings), None, "{key}");
        let listed = v1::Container { labels: stranger.labels, ..Default::default() };
        assert_eq!(container_from_list(&listed, &strings), None, "{key}");
    }
    assert_eq!(sandbox_from_list(&v1::PodSandbox::default(), &strings), None);
    assert_eq!(sandbox_status(&v1::PodSandboxStatus::default(), &strings, IPV4), None);
}

fn sandbox(ip: &str, more: &[&str]) -> v1::PodSandboxStatus {
    v1::PodSandboxStatus {
        id: "s1".into(),
        metadata: Some(v1::PodSandboxMetadata { attempt: 2, ..Default::default() }),
        state: v1::PodSandboxState::SandboxReady.into(),
        created_at: 7,
        network: Some(v1::PodSandboxNetworkStatus {
            ip: ip.into(),
            additional_ips: more.iter().map(|ip| v1::PodIp { ip: (*ip).into() }).collect(),
        }),
        labels: labels(),
        annotations: [
            (keys::CONFIG_SOURCE.into(), "file".into()),
            (keys::MANIFEST_DIGEST.into(), "v1:ab".into()),
        ]
        .into(),
        ..Default::default()
    }
}

const IPV4: AddressOrder = AddressOrder::IPV4_FIRST;

#[test]
fn a_sandbox_is_reported_with_its_addresses() {
    let strings = StringInterner::new();
    let reported =
        sandbox_status(&sandbox("10.1.0.5", &["fd00::5"]), &strings, IPV4).unwrap().status;
    assert_eq!(
        reported,
        SandboxStatus {
            id: "s1".into(),
            attempt: 2,
            ready: true,
            created_at: 7,
            network: NetworkMode::Pod,
            has_network_status: true,
            ips: vec!["10.1.0.5".into(), "fd00::5".into()],
            source: Some(PodSource::File),
            manifest_digest: Some("v1:ab".into()),
        }
    );
}

#[test]
fn an_invalid_address_voids_the_whole_list() {
    let ips = |status: &v1::PodSandboxStatus| {
        let reported = sandbox_status(status, &StringInterner::new(), IPV4);
        reported.unwrap().status.ips
    };
    assert!(ips(&sandbox("", &["fd00::5"])).is_empty());
    assert!(ips(&sandbox("not-an-ip", &[])).is_empty());
    assert!(ips(&sandbox("10.0.0.1", &["x"])).is_empty());
    let mut many = ["10.0.0.2"; 100];
    assert_eq!(ips(&sandbox("10.0.0.1", &many)), ["10.0.0.1"]);
    many[MAX_ADDRESSES - 2] = "fd00::5";
    assert_eq!(ips(&sandbox("10.0.0.1", &many)).len(), 2);
    many.swap(MAX_ADDRESSES - 2, MAX_ADDRESSES - 1);
    assert_eq!(ips(&sandbox("10.0.0.1", &many)).len(), 1, "too far down");
}

#[test]
fn a_sandbox_in_the_nodes_network_and_one_in_an_unknown_state() {
    let mut status = sandbox("", &[]);
    status.network = None;
    status.state = 42;
    status.linux = Some(v1::LinuxPodSandboxStatus {
        namespaces: Some(v1::Namespace {
            options: Some(v1::NamespaceOption {
                network: v1::NamespaceMode::Node.into(),
                ..Default::default()
            }),
        }),
    });
    let reported = sandbox_status(&status, &StringInterner::new(), IPV4);
    let reported = reported.unwrap().status;
    assert_eq!(reported.network, NetworkMode::Node);
    assert!(!reported.ready && !reported.has_network_status);
}

#[test]
fn containers_and_sandboxes_are_read_from_lists() {
    let strings = StringInterner::new();
    let container = v1::Container {
        id: "id1".into(),
        pod_sandbox_id: "s1".into(),
        state: v1::ContainerState::ContainerRunning.into(),
        labels: labels(),
        ..Default::default()
    };
    let reported = container_from_list(&container, &strings).unwrap().status;
    assert_eq!((reported.sandbox.as_str(), reported.state), ("s1", ContainerState::Running));
    let sandbox = v1::PodSandbox { id: "s1".into(), labels: labels(), ..Default::default() };
    let reported = sandbox_from_list(&sandbox, &strings).unwrap().status;
    assert!(reported.ready, "the first state of the enum is READY");
    assert!(!reported.has_network_status);
}

#[test]
fn a_container_whose_start_was_cancelled_was_never_started() {
    let with = |reason: &str, message: &str, started_at| {
        let status = translated(&v1::ContainerStatus {
            reason: reason.into(),
            message: message.into(),
            started_at,
            exit_code: 128,
            ..exited()
        });
        (status.state, status.start_cancelled)
    };
    let cancelled = "failed to start containerd task \"id1\": context canceled: unknown";
    let never_started = (ContainerState::Created, true);
    let ended = (ContainerState::Exited, false);
    for (reason, message, started_at, expected) in [
        ("StartError", cancelled, 0, never_started),
        ("StartError", "exec: \"x\": no such file", 0, ended),
        ("StartError", "context deadline exceeded", 0, ended),
        ("StartError", cancelled, 20, ended),
        ("Error", cancelled, 0, ended),
    ] {
        assert_eq!(with(reason, message, started_at), expected, "{message}");
    }
}
