//! A pod of which one volume hangs.

use serde_json::json;

use crate::node::{Node, WAIT_LIMIT};
use crate::pods::{container, pod, with, with_spec};
use crate::support::dead_fs::DeadFs;
use crate::support::fake_runtime::Rpc;
use crate::support::wait::{holds, wait_for};

#[tokio::test]
async fn a_volume_that_hangs_is_named_and_holds_up_neither_the_others_nor_the_end_of_the_pod() {
    let node = Node::started().await;
    let Some(dead) = DeadFs::mount(&node.path("dead")) else {
        return;
    };
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let mounts = json!({"volumeMounts": [mount("dead"), mount("scratch")]});
    let volumes = json!({"volumes": [
        {"name": "dead", "hostPath": {"path": dead.path(), "type": "Directory"}},
        {"name": "scratch", "emptyDir": {}},
    ]});
    node.put(&with_spec(
        pod("web", &[with(container("main"), mounts)]),
        volumes,
    ));
    let expected = format!(
        "volume dead waits for the path {} of the node",
        dead.path().display()
    );
    node.explained("web", "the volume is named", |explanation| {
        let waits = explanation["waits"].as_array().unwrap();
        waits.len() == 1 && waits[0]["what"] == expected.as_str()
    })
    .await;
    wait_for("the other one is there", WAIT_LIMIT, async || {
        let uid = node.entries("root/pods").remove(0);
        let volumes = node.entries(&format!("root/pods/{uid}/volumes/kubernetes.io~empty-dir"));
        holds(volumes == ["scratch"], format!("{volumes:?}"))
    })
    .await;
    node.remove("web");
    node.wait_gone("web").await;
    assert_eq!(node.entries("root/pods"), [""; 0]);
    assert_eq!(node.fake.count(Rpc::RunPodSandbox), 0);
}
