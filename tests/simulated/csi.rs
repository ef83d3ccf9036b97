//! Volumes of a CSI driver that is a real gRPC server and mounts directories.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/volumes/csi/tests/driver/mod.rs"]
pub(crate) mod driver;

use std::path::Path;

use kubelet::base::connections;
use kubelet::resources::plugin_manager::registration_proto;
use kubelet::volumes::csi::proto;
use serde_json::{Value, json};

use crate::api_source::{ForeignMount, bound, joined, path, stays_untouched, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::registrar;
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::{holds, wait_for};
use driver::{CsiDriver, DriverConfig, Mounts};

pub(crate) const DRIVER: &str = "csi.example.com";
pub(crate) const VOLUME: &str = "vol-a";
pub(crate) const NODE: &str = "/api/v1/nodes/node1";

pub(crate) fn start_driver(node: &Node) -> CsiDriver {
    let mut config = DriverConfig::new(DRIVER, &node.path("driver"));
    config.registry = Some(node.path("root/plugins_registry"));
    config.mounts = Mounts::Bind;
    config.volume_stats = true;
    config.topology = [("example.com/zone".to_owned(), "a".to_owned())].into();
    config.max_volumes = 7;
    let driver = CsiDriver::start(config);
    driver.add_volume(VOLUME);
    driver
}

pub(crate) fn put_driver(api: &FakeApiServer, spec: Value) {
    let place = format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER}");
    api.put(&place, json!({"metadata": {"name": DRIVER}, "spec": spec}));
}

/// The claim `data`, bound to a volume of the driver.
pub(crate) fn put_claim(api: &FakeApiServer) {
    api.put(
        "/api/v1/persistentvolumes/pv1",
        json!({"metadata": {"name": "pv1"}, "spec": {
            "claimRef": {"uid": "c1"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": VOLUME},
        }}),
    );
    api.put(
        "/api/v1/namespaces/default/persistentvolumeclaims/data",
        json!({"metadata": {"name": "data", "namespace": "default", "uid": "c1"},
            "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}),
    );
}

/// A pod that mounts this volume, and a directory of it.
pub(crate) fn pod(name: &str, volume: Value) -> Value {
    let mut pod = bound(name);
    let mut volume = volume;
    volume["name"] = json!("v");
    pod["spec"]["volumes"] = json!([volume]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "v", "mountPath": "/data"},
        {"name": "v", "mountPath": "/part", "subPath": "part"},
    ]);
    pod
}

pub(crate) fn of_claim(name: &str) -> Value {
    pod(name, json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

pub(crate) fn delete(api: &FakeApiServer, name: &str) {
    let mut pod = api.object(&path(name)).expect("the pod");
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(1);
    api.put(&path(name), pod);
}

pub(crate) async fn gone(api: &FakeApiServer, name: &str) {
    wait_for("it is gone from the API server", WAIT_LIMIT, async || {
        let pod = api.object(&path(name)).unwrap_or_default();
        holds(pod.is_null(), pod["status"].to_string())
    })
    .await;
}

pub(crate) fn mounts_below(directory: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let directory = std::fs::canonicalize(directory).unwrap();
    let prefix = format!("{}/", directory.display());
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.filter(|point| point.starts_with(&prefix));
    below.map(str::to_owned).collect()
}

/// The volume's name in the Node object.
pub(crate) fn unique_name() -> String {
    format!("kubernetes.io/csi/{DRIVER}^{VOLUME}")
}

/// What the controllers do.
pub(crate) fn attach(api: &FakeApiServer, driver: &CsiDriver) {
    driver.volumes.change(VOLUME, |volume| {
        volume.attached_to.insert("node-1".to_owned());
    });
    let attachment =
        kubelet::apiserver::volume_attachment::attachment_name(VOLUME, DRIVER, "node1");
    api.put(
        &format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}"),
        json!({"metadata": {"name": attachment},
            "spec": {"attacher": DRIVER, "nodeName": "node1", "source": {}},
            "status": {"attached": true, "attachmentMetadata": {"device": "x"}}}),
    );
    let mut object = api.object(NODE).unwrap();
    object["status"]["volumesAttached"] = json!([{"name": unique_name(), "devicePath": ""}]);
    api.put(NODE, object);
}

/// A node with an API server; `None`, with a warning, where the test may not mount.
pub(crate) async fn joined_and_mounting() -> Option<(Node, FakeApiServer)> {
    let (node, api) = joined().await;
    ForeignMount::new(node.path("may-mount"))?;
    Some((node, api))
}

/// Waits until the pod `web` is explained as waiting for its driver.
pub(crate) async fn waits_for_driver(node: &Node) {
    let waits = |report: &Value| report.to_string().contains("for the CSI driver to register");
    node.explained("web", "it waits for its driver", waits).await;
}

/// Waits until the driver has nothing staged, and asserts that nothing is left on disk.
pub(crate) async fn all_undone(node: &Node, driver: &CsiDriver) {
    wait_for("the volume is unstaged", WAIT_LIMIT, async || {
        let left =
            |volume: driver::DriverVolume| volume.staged.is_some() || !volume.published.is_empty();
        let left = driver.volumes.all().into_values().any(left);
        let records = std::fs::read_dir(node.path("root/csi_volumes"));
        let records = records.into_iter().flatten().count();
        holds(!left && records == 0, format!("{records} records"))
    })
    .await;
    assert_eq!(mounts_below(&node.path("root")), <[&str; 0]>::default());
    assert_eq!(driver.journal.violations(), <[&str; 0]>::default());
}

#[tokio::test]
async fn a_pod_keeps_its_data_in_a_volume_of_a_driver() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(&api, json!({"attachRequired": false, "podInfoOnMount": true}));
    put_claim(&api);
    api.put(&path("web"), of_claim("web"));
    node.start().await;
    // The driver comes later than its pod.
    waits_for_driver(&node).await;
    let driver = start_driver(&node);
    let status = driver.registered().await;
    assert!(status.plugin_registered, "{status:?}");
    let running = wait_runs(&node, "web").await;
    let mounts = &running.containers[0].config.mounts;
    let data = mounts.iter().find(|mount| mount.container_path == "/data");
    let of_pod = "pods/uid-of-web/volumes/kubernetes.io~csi/pv1/mount";
    let data = Path::new(&data.unwrap().host_path);
    assert!(data.ends_with(of_pod), "{data:?}");
    std::fs::write(data.join("file"), "kept").unwrap();
    assert!(driver.volumes.data(VOLUME).join("file").exists());
    assert!(driver.volumes.data(VOLUME).join("part").is_dir());
    let published = &driver.journal.of("NodePublishVolume")[0];
    assert_eq!(published.pod_info["csi.storage.k8s.io/pod.name"], "web");

    let csi_node = api.object("/apis/storage.k8s.io/v1/csinodes/node1");
    let csi_node = csi_node.expect("a CSINode");
    let entry = &csi_node["spec"]["drivers"][0];
    assert_eq!(entry["nodeID"], "node-1");
    assert_eq!(entry["topologyKeys"], json!(["example.com/zone"]));
    assert_eq!(entry["allocatable"]["count"], 7);
    let labels = &api.object(NODE).unwrap()["metadata"]["labels"];
    assert_eq!(labels["example.com/zone"], "a");

    // The driver reports the usage for each scrape, once in a period.
    for _ in 0..2 {
        let (_, metrics) = node.get("/metrics").await;
        let labels = r#"{namespace="default",persistentvolumeclaim="data"}"#;
        for family in ["capacity_bytes", "used_bytes", "inodes"] {
            let sample = format!("kubelet_volume_stats_{family}{labels} ");
            assert!(metrics.contains(&sample), "{sample}: {metrics}");
        }
    }
    assert_eq!(driver.journal.of("NodeGetVolumeStats").len(), 1);

    // The next kubelet repeats the calls, and touches no container.
    node.stop().await;
    node.fake.clear_calls();
    node.start().await;
    driver.journal.called("NodePublishVolume", 2).await;
    stays_untouched(&node, "after a restart").await;
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;

    // Another pod finds the data.
    api.put(&path("next"), of_claim("next"));
    wait_runs(&node, "next").await;
    let file = driver.volumes.data(VOLUME).join("file");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kept");
    delete(&api, "next");
    gone(&api, "next").await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_volume_that_is_attached_stays_in_use_until_it_is_unstaged() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(&api, json!({}));
    put_claim(&api);
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    api.put(&path("web"), of_claim("web"));
    let name = unique_name();
    let in_use = || api.object(NODE).unwrap()["status"]["volumesInUse"].clone();
    wait_for("it is reported in use", WAIT_LIMIT, async || {
        holds(in_use() == json!([name]), in_use().to_string())
    })
    .await;
    assert_eq!(driver.journal.of("NodeStageVolume").len(), 0);
    attach(&api, &driver);
    wait_runs(&node, "web").await;
    assert_eq!(driver.journal.of("NodeStageVolume")[0].publish_context, ["device"]);
    node.stop().await;
    node.start().await;
    driver.journal.called("NodePublishVolume", 2).await;
    assert_eq!(in_use(), json!([name]));
    driver.script.once("NodeUnstageVolume", driver::Behaviour::Hang);
    delete(&api, "web");
    driver.journal.called("NodeUnstageVolume", 1).await;
    gone(&api, "web").await;
    assert_eq!(in_use(), json!([name]), "while it is being unstaged");
    driver.script.release();
    wait_for("it is not in use any more", WAIT_LIMIT, async || {
        holds(in_use() != json!([name]), in_use().to_string())
    })
    .await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn an_inline_volume_lives_as_long_as_its_pod() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(
        &api,
        json!({"attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]}),
    );
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    let volume = json!({"csi": {"driver": DRIVER, "volumeAttributes": {"size": "1"}}});
    api.put(&path("web"), pod("web", volume));
    wait_runs(&node, "web").await;
    assert_eq!(driver.journal.of("NodeStageVolume").len(), 0);
    let published = &driver.journal.of("NodePublishVolume")[0];
    assert!(published.volume_context.contains(&"size".to_owned()));
    assert_eq!(published.pod_info["csi.storage.k8s.io/ephemeral"], "true");
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("it is gone", WAIT_LIMIT, gone).await;
}
