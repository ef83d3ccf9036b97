//! The kubelet dies at every step, and its successor goes on or cleans up.

use super::*;

fn everything(node: &Node) -> Pod {
    node.put("configmaps/ns/app/key", "map");
    node.put("secrets/ns/db/password", "hush");
    pod(json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
        {"name": "m", "configMap": {"name": "app"}},
        {"name": "s", "secret": {"secretName": "db"}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": "db"}}]}},
    ]))
}

/// Sets the pod up with its sub-path; the mounter may fail.
async fn set_up(manager: &VolumeManager, pod: &Pod) -> Result<(), VolumeError> {
    let prepared = manager.prepare(pod, &never()).await;
    let prepared = prepared.map_err(|error| *error.first)?;
    let requests = vec![SubPathRequest {
        mount_index: 0,
        volume: "s".into(),
        spec_name: "s".into(),
        volume_path: prepared.paths["s"].host_path.clone(),
        sub_path: "password".into(),
    }];
    let uid = pod.uid();
    manager.prepare_sub_paths(&uid, "c", requests, &never()).await.map(drop)
}

fn assert_nothing_left(node: &Node) {
    assert_eq!(node.mounter.0.lock().mounts, []);
    let pods = fs::read_dir(node.base.join("kubelet/pods")).unwrap();
    assert_eq!(pods.count(), 0);
}

#[tokio::test]
async fn whatever_a_set_up_left_half_done_is_taken_down() {
    for calls in 0.. {
        let node = node();
        let pod = everything(&node);
        node.mounter.0.lock().left = Some(calls);
        let result = set_up(&node.manager, &pod).await;
        node.mounter.0.lock().left = None;
        let successor = manager(&node.base, &node.mounter);
        successor.teardown(&pod.uid()).await.unwrap();
        successor.remove_pod_dir(&pod.uid()).await.unwrap();
        assert_nothing_left(&node);
        if result.is_ok() {
            assert!(calls > 3, "the mounter was hardly asked");
            return;
        }
    }
}

#[tokio::test]
async fn whatever_a_set_up_left_half_done_is_finished() {
    for calls in 0.. {
        let node = node();
        let pod = everything(&node);
        node.mounter.0.lock().left = Some(calls);
        let result = set_up(&node.manager, &pod).await;
        node.mounter.0.lock().left = None;
        let successor = manager(&node.base, &node.mounter);
        set_up(&successor, &pod).await.unwrap();
        let points: Vec<_> = node.mounter.0.lock().mounts.clone();
        let mut once: Vec<_> = points.iter().map(|m| m.mount_point.clone()).collect();
        once.sort();
        once.dedup();
        assert_eq!((points.len(), once.len()), (4, 4), "each is mounted once");
        if result.is_ok() {
            return;
        }
    }
}

#[tokio::test]
async fn whatever_a_teardown_left_half_done_is_finished() {
    for calls in 0.. {
        let node = node();
        let pod = everything(&node);
        set_up(&node.manager, &pod).await.unwrap();
        node.mounter.0.lock().left = Some(calls);
        let down = node.manager.teardown(&pod.uid()).await;
        let gone = node.manager.remove_pod_dir(&pod.uid()).await;
        node.mounter.0.lock().left = None;
        let successor = manager(&node.base, &node.mounter);
        successor.teardown(&pod.uid()).await.unwrap();
        successor.remove_pod_dir(&pod.uid()).await.unwrap();
        assert_nothing_left(&node);
        if down.is_ok() && gone.is_ok() {
            return;
        }
    }
}

#[tokio::test]
async fn volumes_are_written_down_before_they_are_made() {
    let node = node();
    let pod = everything(&node);
    node.mounter.0.lock().left = Some(0);
    node.prepare(&pod).await.unwrap_err();
    let record = node.base.join("kubelet/pods/u1/volumes.json");
    let text = fs::read_to_string(&record).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    let names: Vec<_> = written["volumes"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 5);
    assert_eq!(*names[3], json!({"name": "s", "plugin": "kubernetes.io/secret", "mounted": true}));
    assert!(!text.contains("hush"));
    node.mounter.0.lock().left = None;
    node.manager.teardown(&pod.uid()).await.unwrap();
    assert!(!record.exists());
}

#[tokio::test]
async fn a_pod_without_volumes_of_the_kubelets_costs_neither_record_nor_mount_table() {
    let node = node();
    for pod in [pod(json!([])), pod(json!([{"name": "h", "hostPath": {"path": "/"}}]))] {
        node.prepare(&pod).await.unwrap();
        node.manager.teardown(&pod.uid()).await.unwrap();
        assert!(!node.base.join("kubelet/pods/u1/volumes.json").exists());
    }
    assert_eq!(node.mounter.0.lock().lists, 0);
}

#[tokio::test]
async fn a_volume_of_a_kind_that_is_not_known_is_left_to_who_made_it() {
    let node = node();
    let pod = pod(json!([{"name": "v", "emptyDir": {}}]));
    let paths = node.prepare(&pod).await.unwrap();
    let record = node.base.join("kubelet/pods/u1/volumes.json");
    let newer = json!({"version": 2, "volumes": [{"name": "x", "plugin": "kubernetes.io/new"}]});
    fs::write(&record, newer.to_string()).unwrap();
    let error = node.manager.teardown(&pod.uid()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "volume \"x\" of kind kubernetes.io/new was created by another kubelet"
    );
    assert!(paths["v"].host_path.exists());
    fs::write(&record, "{half").unwrap();
    node.manager.teardown(&pod.uid()).await.unwrap();
    node.manager.remove_pod_dir(&pod.uid()).await.unwrap();
    assert_nothing_left(&node);
}
