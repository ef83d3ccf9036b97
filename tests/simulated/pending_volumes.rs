//! Volumes that hang, or whose paths vanish.

use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use crate::node::{Node, WAIT_LIMIT, full, runs, status_of};
use crate::pods::{container, pod, with, with_spec};
use crate::support::dead_fs::DeadFs;
use crate::support::fake_runtime::Rpc;
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

#[tokio::test]
async fn a_volume_that_hangs_is_named_and_holds_up_neither_the_others_nor_the_end_of_the_pod() {
    real_time("a thread is held by the file system that hangs");
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
    node.put(&with_spec(pod("web", &[with(container("main"), mounts)]), volumes));
    let expected = format!("volume dead waits for the path {} of the node", dead.path().display());
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

fn mount(name: &str) -> Value {
    json!({"name": name, "mountPath": format!("/{name}")})
}

/// A pod that mounts all of these volumes.
fn mounting(name: &str, volumes: Vec<Value>) -> Value {
    let mounts = volumes.iter().map(|volume| mount(volume["name"].as_str().unwrap()));
    let mounts = json!({"volumeMounts": mounts.collect::<Vec<_>>()});
    let container = with(container("main"), mounts);
    with_spec(pod(name, &[container]), json!({"volumes": volumes}))
}

#[tokio::test]
async fn a_file_system_that_hangs_holds_up_only_pods_with_paths_on_it() {
    real_time("a thread is held by the file system that hangs");
    let node = Node::started().await;
    let Some(dead) = DeadFs::mount(&node.path("dead")) else {
        return;
    };
    let (link, healthy) = (node.path("link"), node.path("healthy"));
    symlink(dead.path(), &link).unwrap();
    std::fs::create_dir(&healthy).unwrap();
    let names: Vec<_> = (0..10).map(|number| format!("hangs{number}")).collect();
    for name in &names {
        let volume = |number: usize| {
            let root = [dead.path(), &link][number % 2];
            let path = root.join(name).join(number.to_string());
            let path = json!({"path": path, "type": "Directory"});
            json!({"name": format!("v{number}"), "hostPath": path})
        };
        node.put(&mounting(name, (0..8).map(volume).collect()));
    }
    for name in &names {
        node.explained(name, "its volumes hang", |explanation| {
            explanation["waits"].as_array().is_some_and(|waits| waits.len() == 8)
        })
        .await;
    }
    let path = |path, kind: &str| json!({"path": path, "type": kind});
    let volumes = vec![
        json!({"name": "any", "hostPath": path(dead.path(), "")}),
        json!({"name": "one", "hostPath": path(&healthy, "Directory")}),
        json!({"name": "two", "hostPath": path(&healthy.join("new"), "DirectoryOrCreate")}),
    ];
    node.put(&mounting("web", volumes));
    node.wait_runs("web").await;
    node.remove("web");
    node.wait_gone("web").await;
    for name in &names {
        node.remove(name);
        node.wait_gone(name).await;
    }
}

#[tokio::test]
async fn the_type_of_a_host_path_holds_for_every_start_of_a_container() {
    let node = Node::started().await;
    let socket = node.path("server.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let volume = json!({"path": socket, "type": "Socket"});
    node.put(&mounting("web", vec![json!({"name": "socket", "hostPath": volume})]));
    node.wait_runs("web").await;
    drop(listener);
    std::fs::remove_file(&socket).unwrap();
    assert!(node.fake.exit(&full("web"), 1));
    wait_for("an event says what is missing", WAIT_LIMIT, async || {
        let events = node.events().await;
        let expected =
            format!("hostPath type check failed: {} is not a socket file", socket.display());
        let has_one = events.contains("FailedMount") && events.contains(&expected);
        holds(has_one, events)
    })
    .await;
    assert_eq!(node.calls("web", Rpc::StartContainer).len(), 1);
    let _listener = UnixListener::bind(&socket).unwrap();
    let again = |pod: &_| {
        let status = status_of(pod, "main");
        runs(pod, "main") && status.is_some_and(|status| status.restart_count == 1)
    };
    node.wait_pod("web", "runs again", WAIT_LIMIT, again).await;
}
