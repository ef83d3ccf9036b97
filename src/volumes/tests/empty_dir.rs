use super::*;

#[tokio::test]
async fn an_empty_dir_is_open_to_all_and_keeps_its_content_over_a_restart_of_the_kubelet() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    let paths = node.prepare(&pod).await.unwrap();
    let volume = &paths["v"];
    let expected = node.base.join("kubelet/pods/u1/volumes/kubernetes.io~empty-dir/v");
    assert_eq!(volume.host_path, expected);
    assert!(volume.managed);
    assert_eq!(fs::metadata(&expected).unwrap().mode() & 0o7777, 0o777);
    fs::write(expected.join("data"), "x").unwrap();
    fs::set_permissions(&expected, fs::Permissions::from_mode(0o700)).unwrap();

    let again = manager(&node.base, &node.mounter);
    again.prepare(&pod, &never()).await.unwrap();
    assert_eq!(fs::read(expected.join("data")).unwrap(), b"x");
    let mode = fs::metadata(&expected).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o700, "what the pod did to its volume stays");
}

#[tokio::test]
async fn an_empty_dir_belongs_to_the_pods_group() {
    let node = node();
    let mut pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    let group = rustix::process::getgid().as_raw();
    pod.spec.as_mut().unwrap().security_context =
        serde_json::from_value(json!({"fsGroup": group})).unwrap();
    let paths = node.prepare(&pod).await.unwrap();
    let metadata = fs::metadata(&paths["v"].host_path).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o2777);
    assert_eq!(metadata.gid(), group);
}

#[tokio::test]
async fn a_volume_in_memory_is_mounted_once_with_the_least_of_its_bounds() {
    for (limit, memory, size) in [
        (json!(null), json!(null), 1_u64 << 30),
        (json!("64Mi"), json!(null), 64 << 20),
        (json!("64Mi"), json!("32Mi"), 32 << 20),
        (json!("5Gi"), json!(null), 1 << 30),
        (json!("0"), json!("32Mi"), 32 << 20),
    ] {
        let node = node();
        let medium = json!({"medium": "Memory", "sizeLimit": limit});
        let mut pod = pod(json!([{"name": "v", "emptyDir": medium}]));
        let resources =
            if memory.is_null() { json!({}) } else { json!({"limits": {"memory": memory}}) };
        pod.spec.as_mut().unwrap().containers[0].resources =
            serde_json::from_value(resources).unwrap();
        node.prepare(&pod).await.unwrap();
        manager(&node.base, &node.mounter).prepare(&pod, &never()).await.unwrap();
        let mounted = node.mounter.0.lock().tmpfs.clone();
        assert_eq!(mounted.len(), 1);
        assert_eq!(mounted[0].1, size, "{limit} {memory}");
    }
}

#[tokio::test]
async fn a_volume_in_memory_that_is_no_longer_mounted_is_mounted_again() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    node.prepare(&pod).await.unwrap();
    node.mounter.0.lock().mounts.clear();
    manager(&node.base, &node.mounter).prepare(&pod, &never()).await.unwrap();
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 2);
}

#[tokio::test]
async fn a_satisfied_pod_costs_no_look_at_the_disk() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]));
    let first = node.prepare(&pod).await.unwrap();
    let lists = node.mounter.0.lock().lists;
    let second = node.prepare(&pod).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(node.mounter.0.lock().lists, lists);
}

fn huge(medium: &str, requests: Value) -> Pod {
    let mut pod = pod(json!([{"name": "v", "emptyDir": {"medium": medium}}]));
    pod.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(json!({"requests": requests, "limits": requests})).unwrap();
    pod
}

#[tokio::test]
async fn a_volume_of_huge_pages_has_pages_of_the_size_that_the_pod_asks_for() {
    let one = json!({"hugepages-2Mi": "4Mi", "memory": "1Gi"});
    let two = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"});
    let none = "hugePages storage requested, but there is no resource request for huge pages";
    for (medium, requests, expected) in [
        ("HugePages", &one, Ok(2 << 20)),
        ("HugePages-2Mi", &one, Ok(2 << 20)),
        ("HugePages-1Gi", &two, Ok(1 << 30)),
        ("HugePages", &json!({}), Err(format!("medium HugePages: {none}"))),
        ("HugePages-1Gi", &one, Err(format!("medium HugePages-1Gi: {none}"))),
        (
            "HugePages",
            &two,
            Err("medium: HugePages can't be used if container requests multiple huge page sizes"
                .into()),
        ),
    ] {
        let node = node();
        let prepared = node.prepare(&huge(medium, requests.clone())).await;
        let mounted: Vec<u64> = node.mounter.0.lock().huge.iter().map(|(_, p)| *p).collect();
        match expected {
            Ok(size) => {
                prepared.unwrap();
                assert_eq!(mounted, [size], "{medium}");
            }
            Err(text) => {
                let error = error_chain(&prepared.unwrap_err());
                assert!(error.ends_with(&text), "{error}");
                assert_eq!(mounted, [0_u64; 0]);
            }
        }
    }
}
