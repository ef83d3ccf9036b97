use super::*;

#[tokio::test]
async fn teardown_unmounts_and_deletes_and_may_be_repeated() {
    let node = node();
    let outside = node.base.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    let pod = pod(json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": outside}},
    ]));
    let paths = node.prepare(&pod).await.unwrap();
    let disk = &paths["disk"].host_path;
    fs::create_dir_all(disk.join("a/b")).unwrap();
    symlink(&outside, disk.join("a/link")).unwrap();

    // A new manager: as after a crash.
    let manager = manager(&node.base, &node.mounter);
    for _ in 0..2 {
        manager.teardown(&pod.uid()).await.unwrap();
        assert!(!disk.exists());
        assert!(outside.join("precious").exists());
        assert!(node.mounter.0.lock().mounts.is_empty());
    }
    assert_eq!(
        pod_dirs::list(&manager.shared.root).unwrap(),
        [PodUid::from("u1")],
        "last words may still be asked for"
    );
    for _ in 0..2 {
        manager.remove_pod_dir(&pod.uid()).await.unwrap();
    }
    assert!(pod_dirs::list(&manager.shared.root).unwrap().is_empty());
}

#[tokio::test]
async fn a_busy_mount_fails_the_teardown_and_keeps_the_data() {
    let node = node();
    let pod = pod(json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
    ]));
    let paths = node.prepare(&pod).await.unwrap();
    fs::write(paths["ram"].host_path.join("data"), "x").unwrap();
    node.mounter.0.lock().busy = true;
    assert!(node.manager.teardown(&pod.uid()).await.is_err());
    assert!(paths["ram"].host_path.join("data").exists());
    assert!(node.manager.remove_pod_dir(&pod.uid()).await.is_err());
    node.mounter.0.lock().busy = false;
    node.manager.teardown(&pod.uid()).await.unwrap();
    node.manager.remove_pod_dir(&pod.uid()).await.unwrap();
}

#[tokio::test]
async fn what_others_mounted_or_left_is_not_touched() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    node.prepare(&pod).await.unwrap();
    let place = node.base.join("kubelet/pods/u1/volumes/kubernetes.io~csi/pv");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("precious"), "x").unwrap();
    node.mounter.add(&place, "ext4");
    assert!(matches!(
        node.manager.teardown(&pod.uid()).await,
        Err(VolumeError::StillMounted(path)) if path == place
    ));
    node.mounter.0.lock().mounts.clear();
    node.manager.teardown(&pod.uid()).await.unwrap();
    assert!(node.manager.remove_pod_dir(&pod.uid()).await.is_err());
    assert!(place.join("precious").exists());
}
