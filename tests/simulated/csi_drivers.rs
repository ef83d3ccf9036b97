//! What a whole kubelet does around drivers that come, go and lie, and the Node's volumes in use.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::api_source::{path, wait_runs};
use crate::csi::driver::CsiDriver;
use crate::csi::{
    DRIVER, NODE, VOLUME, all_undone, attach, delete, gone, joined_and_mounting, of_claim,
    put_claim, put_driver, start_driver, unique_name,
};
use crate::node::{Node, WAIT_LIMIT};
use crate::support::api_server::{FakeApiServer, Seen};
use crate::support::wait::{holds, wait_for};

/// The directory that a Go kubelet makes for the staged volume.
fn stage_directory(node: &Node) -> std::path::PathBuf {
    let name = kubelet::volumes::csi::paths::stage_name(VOLUME);
    let directory = format!("root/plugins/kubernetes.io/csi/{DRIVER}/{name}");
    node.path(&directory)
}

/// A node with a claim, whose driver is registered; `None` where nothing can be mounted.
async fn with_driver() -> Option<(Node, FakeApiServer, CsiDriver)> {
    let (mut node, api) = joined_and_mounting().await?;
    put_driver(&api, json!({"attachRequired": false}));
    put_claim(&api);
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    Some((node, api, driver))
}

#[tokio::test]
async fn a_new_socket_of_a_driver_never_takes_it_out_of_the_csi_node() {
    let Some((node, api, mut driver)) = with_driver().await else {
        return;
    };
    let is_entry = |entry: &Value| entry["name"] == DRIVER;
    let has_entry = move |object: &Value| {
        let drivers = object["spec"]["drivers"].as_array();
        drivers.into_iter().flatten().any(is_entry)
    };
    let object = api.object("/apis/storage.k8s.io/v1/csinodes/node1");
    assert!(has_entry(&object.unwrap()));
    let lost = Arc::new(Mutex::new(Vec::new()));
    let seen = lost.clone();
    api.observe(move |resource, object| {
        if resource == "csinodes" && !has_entry(object) {
            seen.lock().unwrap().push(object.to_string());
        }
    });
    for number in 0..3 {
        // The old process ends and its registration socket goes before the new one's comes.
        driver.restart(|config| config.base.set_file_name(format!("socket-{number}")));
        driver.register();
        driver.registered().await;
    }
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    assert_eq!(*lost.lock().unwrap(), [""; 0]);
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
}

/// Requests that set the Node's volumes in use to these names.
fn reports(seen: &[Seen], names: &[&str]) -> usize {
    let is_report = |seen: &&Seen| {
        let in_use = &seen.body["status"]["volumesInUse"];
        // An empty list is removed.
        let removes = names.is_empty() && seen.body["status"].get("volumesInUse").is_some();
        seen.method == "PATCH" && (*in_use == json!(names) || removes && in_use.is_null())
    };
    seen.iter().filter(is_report).count()
}

#[tokio::test]
async fn volumes_in_use_follow_each_volume_with_one_status_update_and_without_a_poll() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    node.configure("nodeStatusUpdateFrequency: 1h");
    node.configure("nodeStatusReportFrequency: 1h");
    put_driver(&api, json!({}));
    put_claim(&api);
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    let in_use = || api.object(NODE).unwrap()["status"]["volumesInUse"].clone();
    let before = api.seen().len();
    api.put(&path("web"), of_claim("web"));
    wait_for("it is in use", WAIT_LIMIT, async || {
        holds(in_use() == json!([unique_name()]), in_use().to_string())
    })
    .await;
    attach(&api, &driver);
    wait_runs(&node, "web").await;
    assert_eq!(reports(&api.seen()[before..], &[&unique_name()]), 1);
    let before = api.seen().len();
    delete(&api, "web");
    gone(&api, "web").await;
    wait_for("it is not in use any more", WAIT_LIMIT, async || {
        let is_empty = in_use().as_array().is_none_or(Vec::is_empty);
        holds(is_empty, in_use().to_string())
    })
    .await;
    assert_eq!(reports(&api.seen()[before..], &[]), 1);
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_driver_that_comes_back_on_its_socket_is_used_without_another_registration() {
    let Some((node, api, mut driver)) = with_driver().await else {
        return;
    };
    driver.kill();
    api.put(&path("web"), of_claim("web"));
    let waits = |report: &Value| report.to_string().contains("NodeStageVolume");
    node.explained("web", "it waits for its driver", waits).await;
    driver.restart(|_| {});
    wait_runs(&node, "web").await;
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn what_a_go_kubelet_left_of_a_driver_without_staging_is_removed() {
    // As it is after a publish, and after a kill before the file was written.
    for file in [Some(json!({"driverName": DRIVER, "volumeHandle": VOLUME})), None] {
        let Some((mut node, api)) = joined_and_mounting().await else {
            return;
        };
        put_driver(&api, json!({"attachRequired": false}));
        let directory = stage_directory(&node);
        std::fs::create_dir_all(directory.join("globalmount")).unwrap();
        if let Some(file) = file {
            std::fs::write(directory.join("vol_data.json"), file.to_string()).unwrap();
        }
        let mut driver: CsiDriver = start_driver(&node);
        driver.restart(|config| config.stage_unstage = false);
        node.start().await;
        driver.registered().await;
        wait_for("it is removed", WAIT_LIMIT, async || holds(!directory.exists(), "it is there"))
            .await;
        all_undone(&node, &driver).await;
        assert_eq!(driver.journal.calls(), [""; 0]);
    }
}

#[tokio::test]
async fn a_pod_whose_driver_leaves_its_mounts_ends_all_the_same() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(&api, json!({"attachRequired": false}));
    put_claim(&api);
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    // Of the unpublish and of the unstage.
    driver.volumes.leave_mounts(2);
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
    assert!(!stage_directory(&node).exists());
}
