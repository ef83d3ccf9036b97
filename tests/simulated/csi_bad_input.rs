//! Objects, names and disks that a volume of a CSI driver must survive.

use std::path::Path;

use serde_json::{Value, json};

use crate::api_source::{ids, path, stays_untouched, wait_event, wait_runs};
use crate::csi::driver::CsiDriver;
use crate::csi::{
    DRIVER, VOLUME, all_undone, delete, gone, joined_and_mounting, of_claim, put_claim, put_driver,
    start_driver,
};
use crate::node::{Node, WAIT_LIMIT};
use crate::registrar::FakeRegistrar;
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::{holds, wait_for};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data";
const VOLUME_OBJECT: &str = "/api/v1/persistentvolumes/pv1";
const OTHER: &str = "vol-b";

/// A pod that runs with its volume, which has a file.
async fn running() -> Option<(Node, FakeApiServer, CsiDriver)> {
    let (mut node, api) = joined_and_mounting().await?;
    put_driver(&api, json!({"attachRequired": false}));
    put_claim(&api);
    node.start().await;
    let driver = start_driver(&node);
    driver.add_volume(OTHER);
    driver.registered().await;
    std::fs::write(driver.volumes.data(VOLUME).join("file"), "kept").unwrap();
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    Some((node, api, driver))
}

fn data(node: &Node) -> std::path::PathBuf {
    let pod = node.fake.pod("web").expect("the pod");
    let running = pod.containers.iter().find(|one| one.is_running());
    let mounts = &running.expect("a container").config.mounts;
    let data = mounts.iter().find(|mount| mount.container_path == "/data");
    Path::new(&data.expect("the mount").host_path).join("file")
}

/// The pod keeps the volume that it has: as long as its container runs, after a restart of the kubelet, and for the next
/// container. The driver is asked for nothing else, and in the end nothing is left.
async fn keeps_its_volume((mut node, api, driver): (Node, FakeApiServer, CsiDriver)) {
    let before = ids(&node.fake, "web");
    node.stop().await;
    node.fake.clear_calls();
    node.start().await;
    wait_for("the kubelet shows its pod", WAIT_LIMIT, async || {
        holds(node.pods().await.len() == 1, "no pod")
    })
    .await;
    stays_untouched(&node, "after a restart").await;
    assert!(node.fake.exit("web/main", 1));
    let next = |fake: &FakeRuntime| {
        let pod = fake.pod("web").unwrap();
        let mut running = pod.containers.iter().filter(|one| one.is_running());
        running.any(|one| !before.contains(&one.id))
    };
    node.fake.wait_until("it is started again", WAIT_LIMIT, next).await;
    assert_eq!(std::fs::read_to_string(data(&node)).unwrap(), "kept");
    let calls = driver.journal.calls();
    let others: Vec<_> = calls.iter().filter(|call| call.ends_with(OTHER)).collect();
    assert_eq!(others, [""; 0]);
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
}

#[tokio::test]
async fn a_pod_keeps_its_volume_when_its_persistent_volume_is_edited() {
    for (field, value) in [("volumeHandle", OTHER), ("driver", "other.example.com")] {
        let Some(world) = running().await else { return };
        let mut object = world.1.object(VOLUME_OBJECT).unwrap();
        object["spec"]["csi"][field] = json!(value);
        world.1.put(VOLUME_OBJECT, object);
        keeps_its_volume(world).await;
    }
}

#[tokio::test]
async fn a_pod_keeps_its_volume_when_its_claim_is_made_anew() {
    let Some(world) = running().await else { return };
    let api = &world.1;
    api.remove(CLAIM);
    api.remove(VOLUME_OBJECT);
    api.put(
        "/api/v1/persistentvolumes/pv2",
        json!({"metadata": {"name": "pv2"}, "spec": {
            "claimRef": {"uid": "c2"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": OTHER},
        }}),
    );
    api.put(
        CLAIM,
        json!({"metadata": {"name": "data", "namespace": "default", "uid": "c2"},
            "spec": {"volumeName": "pv2"}, "status": {"phase": "Bound"}}),
    );
    keeps_its_volume(world).await;
}

#[tokio::test]
async fn hostile_names_and_sizes_reach_neither_a_driver_nor_the_disk() {
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(&api, json!({"attachRequired": false}));
    node.start().await;
    let driver = start_driver(&node);
    driver.registered().await;
    let large = "x".repeat(3 << 20);
    let of_driver = |driver: &str| json!({"driver": driver, "volumeHandle": VOLUME});
    let of_handle = |handle: &str| json!({"driver": DRIVER, "volumeHandle": handle});
    let cases: [(Value, &str); 9] = [
        (of_driver("../../etc"), "spec.csi.driver"),
        (of_driver("a/b"), "spec.csi.driver"),
        (of_driver("-rf"), "spec.csi.driver"),
        (of_driver(&"d".repeat(64)), "spec.csi.driver"),
        (of_driver("volumeDevices"), "spec.csi.driver"),
        (of_handle("a\nb"), "spec.csi.volumeHandle"),
        (of_handle(&"h".repeat(5000)), "spec.csi.volumeHandle"),
        (
            json!({"driver": DRIVER, "volumeHandle": VOLUME, "volumeAttributes": {"a": large}}),
            "spec.csi.volumeAttributes",
        ),
        (json!({"driver": DRIVER, "volumeHandle": VOLUME, "fsType": "-o"}), "spec.csi.fsType"),
    ];
    for (number, (source, field)) in cases.into_iter().enumerate() {
        let volume = format!("pv-{number}");
        api.put(
            &format!("/api/v1/persistentvolumes/{volume}"),
            json!({"metadata": {"name": volume}, "spec": {
                "claimRef": {"uid": "c1"}, "accessModes": ["ReadWriteOnce"], "csi": source}}),
        );
        api.put(
            CLAIM,
            json!({"metadata": {"name": "data", "namespace": "default", "uid": "c1"},
                "spec": {"volumeName": volume}, "status": {"phase": "Bound"}}),
        );
        let name = format!("web-{number}");
        api.put(&path(&name), of_claim(&name));
        let text = format!("{field} of PersistentVolume \\\"{volume}\\\"");
        wait_event(&node, &text).await;
        delete(&api, &name);
        gone(&api, &name).await;
    }
    // Handles are never part of a path.
    driver.add_volume("../../etc");
    put_claim(&api);
    let mut object = api.object(VOLUME_OBJECT).unwrap();
    object["spec"]["csi"]["volumeHandle"] = json!("../../etc");
    api.put(VOLUME_OBJECT, object);
    api.put(&path("web"), of_claim("web"));
    wait_runs(&node, "web").await;
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;
    let calls = driver.journal.calls();
    let honest = |call: &String| call.ends_with("../../etc");
    assert!(calls.iter().all(honest), "{calls:?}");
}

#[tokio::test]
async fn a_driver_with_a_hostile_name_is_not_registered() {
    let Some((mut node, _api)) = joined_and_mounting().await else {
        return;
    };
    node.start().await;
    let registry = node.path("root/plugins_registry");
    std::fs::create_dir_all(&registry).unwrap();
    let long = "d".repeat(64);
    let names = ["..", "a/../b", "-rf", "volumeDevices", &long];
    for (number, name) in names.into_iter().enumerate() {
        let socket = node.path("driver.sock");
        let registrar = FakeRegistrar::new("CSIPlugin", name, &socket, &["1.0.0"]);
        let listening = registrar.clone();
        let _server = listening.listen(&registry.join(format!("{number}.sock")));
        let status = registrar.registered().await;
        assert!(!status.plugin_registered, "{name}");
        assert!(!status.error.is_empty(), "{name}");
    }
}
