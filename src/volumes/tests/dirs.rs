use super::*;

#[test]
fn a_name_that_is_not_one_path_component_is_refused() {
    for bad in ["", ".", "..", "a/b", "/", "../x", "a\0b", &"x".repeat(256)] {
        assert!(component(bad).is_err(), "{bad:?}");
    }
    for good in ["a", "a.b", "...", "ns_name_uid", "ä"] {
        assert_eq!(component(good).unwrap(), good);
    }
}

#[tokio::test]
async fn volumes_nobody_mounts_are_left_alone_and_unknown_kinds_are_named() {
    let node = node();
    let mut unused = pod(json!([{"name": "s", "rbd": {"monitors": ["m"], "image": "i"}}]));
    unused.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    assert!(node.prepare(&unused).await.unwrap().is_empty());
    let used = pod(json!([{"name": "s", "rbd": {"monitors": ["m"], "image": "i"}}]));
    assert_eq!(
        error_chain(&node.prepare(&used).await.unwrap_err()),
        "MountVolume.SetUp failed for volume \"s\" : source rbd is not supported by this kubelet"
    );
}

#[tokio::test]
async fn a_pod_with_a_hostile_uid_touches_nothing() {
    let node = node();
    let mut hostile = pod(json!([{"name": "v", "emptyDir": {}}]));
    hostile.metadata.uid = Some("../../escape".into());
    assert!(matches!(node.prepare(&hostile).await, Err(VolumeError::Name(_))));
    assert!(node.manager.teardown(&hostile.uid()).await.is_err());
    assert!(node.manager.remove_pod_dir(&PodUid::from("..")).await.is_err());
    assert!(!node.base.join("escape").exists());
}

#[test]
fn a_termination_log_is_a_fresh_file_that_anybody_may_write() {
    let node = node();
    let pod = node.manager.root().pod(&PodUid::from("u1")).unwrap();
    pod_dirs::create(&pod).unwrap();
    let create = |count, other_restart_counts: &[u32]| {
        let wanted = pod_dirs::TerminationLog {
            restart_count: count,
            other_restart_counts: other_restart_counts.to_vec(),
        };
        pod_dirs::create_termination_log(&pod, "c", &wanted).unwrap()
    };
    let first = create(0, &[]);
    fs::write(&first, "last words").unwrap();
    assert_eq!(create(0, &[]), first);
    assert_eq!(fs::read(&first).unwrap(), b"", "nothing is inherited");
    assert_eq!(fs::metadata(&first).unwrap().mode() & 0o777, 0o666);
    assert_eq!(first.parent().unwrap(), pod.path().join("containers/c"));
    let anywhere = pod_dirs::TerminationLog::default();
    assert!(pod_dirs::create_termination_log(&pod, "../c", &anywhere).is_err());
}

#[test]
fn termination_logs_of_instances_that_are_gone_are_removed() {
    let node = node();
    let pod = node.manager.root().pod(&PodUid::from("u1")).unwrap();
    pod_dirs::create(&pod).unwrap();
    let directory = pod.path().join("containers/c");
    for count in 0..50_u32 {
        let other_restart_counts: Vec<u32> = count.checked_sub(1).into_iter().collect();
        let wanted = pod_dirs::TerminationLog { restart_count: count, other_restart_counts };
        pod_dirs::create_termination_log(&pod, "c", &wanted).unwrap();
    }
    // Of the Go kubelet, which names them so.
    fs::write(directory.join("01234567"), "").unwrap();
    let wanted = pod_dirs::TerminationLog { restart_count: 50, other_restart_counts: vec![49, 7] };
    pod_dirs::create_termination_log(&pod, "c", &wanted).unwrap();
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["01234567", "49", "50"]);
}
