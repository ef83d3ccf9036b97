//! What becomes of pods whose CSI volumes cannot be attached or are dead, and of volumes when the node shuts down.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api_source::{bound, joined, path, wait_runs};
use crate::csi::driver::{Behaviour, CsiDriver};
use crate::csi::{
    DRIVER, NODE, VOLUME, all_undone, delete, gone, of_claim, pod, put_claim, put_driver,
    start_driver,
};
use crate::node::{Node, WAIT_LIMIT};
use crate::support::dead_fs::DeadFs;
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::{holds, wait_for};
use crate::systemd::FakeSystemd;
use crate::virtual_time::real_time;

/// The attempt to attach the volume fails.
fn refuse_attach(api: &crate::support::api_server::FakeApiServer, code: i32) {
    let name = kubelet::apiserver::volume_attachment::attachment_name(VOLUME, DRIVER, "node1");
    let error = json!({"time": "2026-01-01T00:00:00Z", "message": "too many", "errorCode": code});
    api.put(
        &format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"),
        json!({"metadata": {"name": name},
            "spec": {"attacher": DRIVER, "nodeName": "node1", "source": {}},
            "status": {"attached": false, "attachError": error}}),
    );
}

#[tokio::test]
async fn a_pod_over_the_attachment_limit_is_rejected_and_no_other_is() {
    let (mut node, api) = joined().await;
    put_driver(
        &api,
        json!({"nodeAllocatableUpdatePeriodSeconds": 3600, "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}),
    );
    put_claim(&api);
    node.start().await;
    let mut driver = start_driver(&node);
    driver.registered().await;
    let count = || {
        let csi_node = api.object("/apis/storage.k8s.io/v1/csinodes/node1");
        csi_node.unwrap_or_default()["spec"]["drivers"][0]["allocatable"]["count"].clone()
    };
    wait_for("the limit is written", WAIT_LIMIT, async || holds(count() == 7, count().to_string()))
        .await;
    driver.restart(|config| config.max_volumes = 3);
    api.put(&path("plain"), bound("plain"));
    let inline = json!({"csi": {"driver": DRIVER}});
    api.put(&path("inline"), pod("inline", inline));
    wait_runs(&node, "plain").await;
    wait_runs(&node, "inline").await;
    refuse_attach(&api, 8);
    api.put(&path("web"), of_claim("web"));
    let status = || api.object(&path("web")).unwrap_or_default()["status"].clone();
    wait_for("it is rejected", WAIT_LIMIT, async || {
        holds(status()["phase"] == "Failed", status().to_string())
    })
    .await;
    let reason = "VolumeAttachmentLimitExceeded";
    let message = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: timed out waiting for the condition";
    assert_eq!(status()["reason"], reason);
    assert_eq!(status()["message"], format!("Pod was rejected: {message}"));
    let events = node.events().await;
    assert!(events.contains(reason) && events.contains(message), "{events}");
    let (_, metrics) = node.get("/metrics").await;
    let counted = format!("kubelet_admission_rejections_total{{reason=\"{reason}\"}} 1");
    assert!(metrics.contains(&counted), "{metrics}");
    wait_for("the limit is read again", WAIT_LIMIT, async || {
        holds(count() == 3, count().to_string())
    })
    .await;
    for name in ["plain", "inline"] {
        wait_runs(&node, name).await;
        let pod = api.object(&path(name)).unwrap();
        assert_eq!(pod["status"]["phase"], "Running", "{name}");
    }
    assert!(node.fake.pod("web").is_none());
    assert_eq!(driver.journal.of("NodeStageVolume").len(), 0);
    wait_for("it is not in use any more", WAIT_LIMIT, async || {
        let in_use = api.object(NODE).unwrap()["status"]["volumesInUse"].clone();
        let is_empty = in_use.as_array().is_none_or(Vec::is_empty);
        holds(is_empty, in_use.to_string())
    })
    .await;
}

/// A node and a driver whose volumes need not be attached.
async fn with_driver(
    prepare: impl FnOnce(&mut Node),
) -> (Node, crate::support::api_server::FakeApiServer, CsiDriver) {
    let (mut node, api) = joined().await;
    prepare(&mut node);
    put_driver(&api, json!({"attachRequired": false}));
    put_claim(&api);
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    (node, api, driver)
}

#[tokio::test]
async fn a_container_that_restarts_gets_its_dead_volume_mounted_again() {
    let (node, api, driver) = with_driver(|_| ()).await;
    let data = driver.volumes.data(VOLUME);
    let Some(server) = DeadFs::mount(&data) else {
        return;
    };
    let mut web = of_claim("web");
    let mounts = &mut web["spec"]["containers"][0]["volumeMounts"];
    *mounts = json!([{"name": "v", "mountPath": "/data"}]);
    api.put(&path("web"), web);
    let running = wait_runs(&node, "web").await;
    let mut mounts = running.containers[0].config.mounts.iter();
    let mount = mounts.find(|mount| mount.container_path == "/data");
    let file = std::path::Path::new(&mount.unwrap().host_path).join("file");
    drop(server);
    std::fs::write(data.join("file"), "new").unwrap();
    assert!(node.fake.exit("web/main", 1));
    let restarted = |fake: &FakeRuntime| {
        let main = fake.container("web/main");
        main.is_some_and(|main| main.is_running() && main.attempt == 1)
    };
    node.fake.wait_until("it runs again", WAIT_LIMIT, restarted).await;
    assert_eq!(std::fs::read_to_string(file).unwrap(), "new");
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        assert_eq!(driver.journal.of(method).len(), 1, "{method}");
    }
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_dead_volume_that_a_running_container_uses_stays_and_an_event_says_so() {
    let (node, api, driver) = with_driver(|_| ()).await;
    let data = driver.volumes.data(VOLUME);
    let Some(server) = DeadFs::mount(&data) else {
        return;
    };
    let mut web = of_claim("web");
    let containers = web["spec"]["containers"].as_array_mut().unwrap();
    containers[0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    let mut other: Value = containers[0].clone();
    other["name"] = json!("other");
    containers.push(other);
    api.put(&path("web"), web);
    let both = |fake: &FakeRuntime| {
        let runs = |word: &str| fake.container(word).is_some_and(|it| it.is_running());
        runs("web/main") && runs("web/other")
    };
    node.fake.wait_until("both run", WAIT_LIMIT, both).await;
    drop(server);
    assert!(node.fake.exit("web/main", 1));
    crate::api_source::wait_event(
        &node,
        "its mount is dead (Transport endpoint is not connected (os error 107)), and running containers of the pod use it",
    )
    .await;
    assert_eq!(driver.journal.of("NodeUnpublishVolume").len(), 0);
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_shutdown_of_the_node_waits_until_volumes_are_unstaged() {
    real_time("a thread reads the lock");
    let systemd = FakeSystemd::start().await;
    systemd.state.lock().inhibit_delay = 3_600_000_000;
    let (node, api, driver) = with_driver(|node| {
        node.configure("shutdownGracePeriod: 60s\nshutdownGracePeriodCriticalPods: 10s");
        node.system_bus_at(&systemd.address);
    })
    .await;
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    wait_for("logind waits", WAIT_LIMIT, async || {
        let locks = systemd.state.lock().locks.len();
        holds(locks == 1, format!("{locks} locks"))
    })
    .await;
    let lock = systemd.state.lock().locks[0].try_clone().unwrap();
    let released = tokio::task::spawn_blocking(move || {
        let mut lock = lock;
        std::io::copy(&mut lock, &mut std::io::sink())
    });
    driver.script.once("NodeUnstageVolume", Behaviour::Hang);
    systemd.prepare_for_shutdown(true).await;
    driver.journal.called("NodeUnstageVolume", 1).await;
    wait_for("the pod has ended", WAIT_LIMIT, async || {
        let status = api.object(&path("web")).unwrap_or_default()["status"].clone();
        holds(status["phase"] == "Failed", status.to_string())
    })
    .await;
    // Longer than final statuses may take.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!released.is_finished(), "the machine waits");
    driver.script.release();
    let done = tokio::time::timeout(WAIT_LIMIT, released).await;
    assert!(done.is_ok(), "the lock is released");
    all_undone(&node, &driver).await;
}

fn cordon(api: &crate::support::api_server::FakeApiServer, unschedulable: bool) {
    let mut object = api.object(NODE).expect("the node");
    object["spec"]["unschedulable"] = json!(unschedulable);
    api.put(NODE, object);
}

/// `drain` reports a node as empty when its pods are gone.
#[tokio::test]
async fn on_a_drained_node_the_last_pod_of_a_volume_is_not_gone_before_it_is_unstaged() {
    let (node, api, driver) = with_driver(|_| {}).await;
    for name in ["first", "web"] {
        api.put(&path(name), of_claim(name));
        wait_runs(&node, name).await;
    }
    cordon(&api, true);
    driver.script.once("NodeUnstageVolume", Behaviour::Hang);
    // Another pod has the volume.
    delete(&api, "first");
    gone(&api, "first").await;
    delete(&api, "web");
    driver.journal.called("NodeUnstageVolume", 1).await;
    let waits = |report: &Value| report.to_string().contains("are not unstaged: pv1");
    node.explained("web", "it waits for its volume", waits).await;
    assert!(api.object(&path("web")).is_some(), "the volume is staged");
    driver.script.release();
    gone(&api, "web").await;
    all_undone(&node, &driver).await;

    // By force: nothing waits.
    driver.script.once("NodeUnstageVolume", Behaviour::Hang);
    api.put(&path("forced"), of_claim("forced"));
    wait_runs(&node, "forced").await;
    api.remove(&path("forced"));
    driver.journal.called("NodeUnstageVolume", 2).await;
    let left = |fake: &FakeRuntime| fake.pod("forced").is_none();
    node.fake.wait_until("its sandbox is removed", WAIT_LIMIT, left).await;
    driver.script.release();
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_node_that_is_not_drained_does_not_wait_for_an_unstage() {
    let (node, api, driver) = with_driver(|_| {}).await;
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    cordon(&api, true);
    driver.script.once("NodeUnstageVolume", Behaviour::Hang);
    delete(&api, "web");
    driver.journal.called("NodeUnstageVolume", 1).await;
    assert!(api.object(&path("web")).is_some(), "the node is cordoned");
    cordon(&api, false);
    gone(&api, "web").await;
    assert!(driver.volumes.all()[VOLUME].staged.is_some());
    driver.script.release();
    all_undone(&node, &driver).await;
}
