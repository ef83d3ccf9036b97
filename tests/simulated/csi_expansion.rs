//! CSI volumes that become larger, by a kubelet that is killed in any moment of it.

use serde_json::{Value, json};
use tonic::Code;

use crate::api_source::{path, wait_event, wait_runs};
use crate::csi::driver::{Behaviour, CsiDriver};
use crate::csi::{
    DRIVER, VOLUME, all_undone, delete, gone, joined_and_mounting, of_claim, put_driver,
    start_driver,
};
use crate::csi_node::{CsiNode, NodeDriver, pod};
use crate::node::WAIT_LIMIT;
use crate::support::api_server::{FakeApiServer, Mode};
use crate::support::wait::{holds, wait_for};

const EXPAND: &str = "NodeExpandVolume";

fn claim_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}")
}

/// A claim of one GiB with its volume, as its controller leaves it after it has done its part for `size`.
fn put_claim(api: &FakeApiServer, name: &str, volume: &str, handle: &str, size: &str) {
    let uid = format!("c-{name}");
    let claim = json!({"namespace": "default", "name": name, "uid": uid});
    let mut status = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    if size != "1Gi" {
        status["allocatedResources"] = json!({"storage": size});
        status["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
        status["conditions"] = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    }
    api.put(
        &claim_path(name),
        json!({"metadata": claim, "status": status, "spec": {
            "volumeName": volume, "resources": {"requests": {"storage": size}},
        }}),
    );
    // Last: the kubelet may read both at any moment.
    api.put(
        &format!("/api/v1/persistentvolumes/{volume}"),
        json!({"metadata": {"name": volume}, "spec": {
            "claimRef": claim, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
            "csi": {"driver": DRIVER, "volumeHandle": handle},
        }}),
    );
}

fn status(api: &FakeApiServer, name: &str) -> Value {
    let claim = api.object(&claim_path(name)).unwrap_or_default();
    claim["status"].clone()
}

async fn has_grown(api: &FakeApiServer, name: &str, size: &str) {
    wait_for(&format!("{name} has {size}"), WAIT_LIMIT, async || {
        let status = status(api, name);
        let has_size = status["capacity"]["storage"] == size;
        let is_over = status["allocatedResourceStatuses"]["storage"].is_null();
        let conditions = status["conditions"].as_array();
        let is_clean = conditions.is_none_or(Vec::is_empty);
        holds(has_size && is_over && is_clean, status.to_string())
    })
    .await;
}

fn expansions(driver: &CsiDriver, handle: &str) -> usize {
    let calls = driver.journal.of(EXPAND);
    calls.iter().filter(|call| call.volume == handle).count()
}

fn enlarge(driver: &CsiDriver, handle: &str) {
    driver.volumes.change(handle, |volume| volume.capacity = 4 << 30);
}

#[tokio::test]
async fn a_volume_grows_under_a_running_pod_and_what_is_infeasible_waits_for_another_size() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(&api, json!({"attachRequired": false}));
    put_claim(&api, "data", "pv1", VOLUME, "1Gi");
    node.configure("syncFrequency: 1s");
    node.configure("featureGates: {CSIVolumeHealth: true}");
    node.start().await;
    let mut driver = start_driver(&node);
    driver.registered().await;
    driver.restart(|config| {
        config.expand = true;
        config.volume_condition = true;
    });
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    assert_eq!(expansions(&driver, VOLUME), 0);
    // With an open outcome first.
    let open = Behaviour::do_then_fail(Code::DeadlineExceeded);
    driver.script.once(EXPAND, open);
    enlarge(&driver, VOLUME);
    put_claim(&api, "data", "pv1", VOLUME, "2Gi");
    has_grown(&api, "data", "2Gi").await;
    assert_eq!(expansions(&driver, VOLUME), 2);
    wait_event(&node, "FileSystemResizeSuccessful").await;

    driver.script.once(EXPAND, Behaviour::fail(Code::InvalidArgument));
    put_claim(&api, "data", "pv1", VOLUME, "4Gi");
    wait_event(&node, "VolumeResizeFailed").await;
    wait_for("it is infeasible", WAIT_LIMIT, async || {
        let status = status(&api, "data");
        let is_infeasible =
            status["allocatedResourceStatuses"]["storage"] == "NodeResizeInfeasible";
        let has_condition = status["conditions"].to_string().contains("NodeResizeError");
        holds(is_infeasible && has_condition, status.to_string())
    })
    .await;
    put_claim(&api, "data", "pv1", VOLUME, "3Gi");
    has_grown(&api, "data", "3Gi").await;
    assert_eq!(expansions(&driver, VOLUME), 4);
    let (_, metrics) = node.get("/metrics").await;
    let sample = r#"operation_name="volume_fs_resize",status="success",migrated="false"} 2"#;
    assert!(metrics.contains(sample), "{metrics}");

    // A volume that is not well is in the statistics, and an event says why.
    driver
        .volumes
        .change(VOLUME, |volume| volume.abnormal = Some("the disk has bad blocks".into()));
    let (_, metrics) = node.get("/metrics").await;
    let sample = "kubelet_volume_stats_health_status_abnormal{namespace=\"default\",persistentvolumeclaim=\"data\"} ";
    assert!(metrics.contains(sample), "{metrics}");
    let (_, summary) = node.get("/stats/summary").await;
    assert!(summary.contains("volumeHealthStats"), "{summary}");
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_kubelet_that_is_killed_while_volumes_grow_finishes_each_of_them() {
    let dir = tempfile::Builder::new().prefix("grow").tempdir().unwrap();
    // What becomes of the call that is in progress when the kubelet is killed.
    let points = [
        ("never", Behaviour::hang_then_fail(Code::Internal)),
        ("later", Behaviour::Hang),
        ("before", Behaviour::DoThenHang),
    ];
    let names = points.iter().map(|(name, _)| (*name).to_owned());
    let driver = NodeDriver {
        name: DRIVER,
        attach: false,
        stage: true,
        block: false,
        volumes: names.chain(["reported".to_owned()]).collect(),
    };
    let Some(mut node) = CsiNode::start(dir.path(), &[driver], 1).await else {
        return;
    };
    node.drivers[0].restart(|config| config.expand = true);
    let put = |node: &CsiNode, name: &str| {
        enlarge(&node.drivers[0], name);
        put_claim(&node.api, name, &format!("pv-{name}"), name, "2Gi");
        let pod = pod(name, &format!("uid-of-{name}"), &[name], None);
        node.api.put(&path(name), pod);
    };
    for (name, behaviour) in &points {
        let (volume, once) = (Some((*name).to_owned()), Some(1));
        let script = &node.drivers[0].script;
        script.add(EXPAND, volume, once, behaviour.clone());
        put(&node, name);
    }
    wait_for("all calls are in progress", WAIT_LIMIT, async || {
        let calls = node.drivers[0].journal.of(EXPAND);
        holds(calls.len() == points.len(), format!("{calls:?}"))
    })
    .await;
    // None of the pods has been started with a volume that is too small.
    for (name, _) in &points {
        assert!(node.running(&format!("uid-of-{name}")).is_none(), "{name}");
    }
    node.kubelet.kill();
    node.drivers[0].script.release();
    node.kubelet.respawn();
    let runs = async |node: &CsiNode, name: &str| {
        wait_for(&format!("{name} runs"), WAIT_LIMIT, async || {
            let running = node.running(&format!("uid-of-{name}"));
            holds(running.is_some(), "it does not run")
        })
        .await;
    };
    for (name, _) in &points {
        has_grown(&node.api, name, "2Gi").await;
        runs(&node, name).await;
        let volume = node.drivers[0].volumes.get(name).unwrap();
        assert_eq!(volume.node_capacity, 2 << 30, "{name}");
    }

    // Killed after the call, while the claim could not be written.
    node.drivers[0].script.once(EXPAND, Behaviour::Hang);
    put(&node, "reported");
    wait_for("the call is in progress", WAIT_LIMIT, async || {
        let calls = expansions(&node.drivers[0], "reported");
        holds(calls == 1, "it is not")
    })
    .await;
    node.api.answer(Mode::Status(500));
    node.drivers[0].script.release();
    let records = node.root().join("csi_volumes");
    wait_for("the size is on disk", WAIT_LIMIT, async || {
        let entries = std::fs::read_dir(&records).into_iter().flatten().flatten();
        // What is still a temporary file is lost with the kubelet.
        let records = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension() == Some("json".as_ref()));
        let mut texts = records.filter_map(|path| std::fs::read_to_string(path).ok());
        let parts = [r#""handle":"reported""#, r#""reported":false"#];
        let is_written = texts.any(|text| parts.iter().all(|part| text.contains(part)));
        holds(is_written, "it is not")
    })
    .await;
    node.kubelet.kill();
    node.api.answer(Mode::Well);
    assert_eq!(status(&node.api, "reported")["capacity"]["storage"], "1Gi");
    node.kubelet.respawn();
    has_grown(&node.api, "reported", "2Gi").await;
    runs(&node, "reported").await;
    assert_eq!(expansions(&node.drivers[0], "reported"), 1);

    for name in ["never", "later", "before", "reported"] {
        delete(&node.api, name);
    }
    wait_for("nothing is left", WAIT_LIMIT, async || {
        let left = node.left();
        holds(left.is_empty(), format!("{left:#?}"))
    })
    .await;
    assert_eq!(node.violations(), [""; 0]);
}
