//! What is left on the disk of pods that vanished while no kubelet ran.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::{simple, with_metadata};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::{holds, wait_for};
use crate::web::WebServer;

/// A pod with a UID that the test knows.
fn known(name: &str) -> serde_json::Value {
    with_metadata(simple(name), json!({"uid": format!("uid-of-{name}")}))
}

fn logs_of(name: &str) -> String {
    format!("default_{name}-node1_uid-of-{name}")
}

#[tokio::test]
async fn logs_of_a_pod_go_also_when_another_one_took_over_its_uid() {
    let mut node = Node::started().await;
    node.put(&known("old"));
    node.wait_runs("old").await;
    node.wait_phase("old", "Running").await;
    node.stop().await;
    node.fake.forget_everything();
    assert!(node.path("logs").join(logs_of("old")).is_dir());
    node.remove("old");
    node.put(&with_metadata(simple("new"), json!({"uid": "uid-of-old"})));
    node.start().await;
    node.wait_runs("new").await;
    wait_for("only its own logs are left", WAIT_LIMIT, async || {
        let left = (node.entries("logs"), node.entries("containers").len());
        let own = (vec!["default_new-node1_uid-of-old".to_owned()], 1);
        holds(left == own, format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_container_without_a_sandbox_is_removed() {
    let mut node = Node::started().await;
    for name in ["dead", "alive"] {
        node.put(&simple(name));
        node.wait_runs(name).await;
    }
    node.stop().await;
    assert!(node.fake.exit(&full("dead"), 137));
    node.fake.forget_sandboxes();
    node.remove("dead");
    node.remove("alive");
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.container_count() == 0;
    node.fake.wait_until("both containers are removed", WAIT_LIMIT, gone).await;
    wait_for("nothing is left on disk", WAIT_LIMIT, async || {
        let left = (node.entries("logs"), node.entries("root/pods"));
        holds(left == (vec![], vec![]), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn logs_of_pods_that_vanished_go_once_every_source_says_that_they_are_gone() {
    let server = WebServer::start(200, "").await;
    let mut node = Node::new().await;
    node.configure(&format!("staticPodURL: {}", server.url));
    node.configure("httpCheckFrequency: 100ms");
    node.start().await;
    for name in ["goes", "stays"] {
        node.put(&known(name));
        node.wait_runs(name).await;
        node.wait_phase(name, "Running").await;
    }
    node.stop().await;
    // As after a power cut that took the runtime's state along.
    node.fake.forget_everything();
    node.remove("goes");
    let (logs, links) = (node.path("logs"), node.path("containers"));
    for stranger in ["lost+found", "two_parts"] {
        std::fs::create_dir(logs.join(stranger)).unwrap();
    }
    std::fs::write(logs.join("default_a_file"), "").unwrap();
    symlink("/nowhere/default_web_u/main/0.log", links.join("elsewhere")).unwrap();
    assert!(logs.join(logs_of("goes")).is_dir());
    assert_eq!(node.entries("containers").len(), 3);

    server.answer(500, "not now");
    node.start().await;
    node.wait_runs("stays").await;
    let touched = |_: &FakeRuntime| !logs.join(logs_of("goes")).is_dir();
    assert!(node.never(Duration::from_millis(500), touched).await);

    server.answer(200, "");
    wait_for("its logs are gone", WAIT_LIMIT, async || {
        let left = node.entries("logs");
        holds(!left.contains(&logs_of("goes")), format!("{left:?}"))
    })
    .await;
    let dead = |dir: &Path| {
        let links = std::fs::read_dir(dir).unwrap().map(|link| link.unwrap());
        let names = links.filter(|link| !link.path().exists());
        names.map(|link| link.file_name()).collect::<Vec<_>>()
    };
    wait_for("so are links to them", WAIT_LIMIT, async || {
        let dead = dead(&links);
        holds(dead == ["elsewhere"], format!("{dead:?}"))
    })
    .await;
    let mut left = node.entries("logs");
    left.sort();
    let mut expected = vec![
        logs_of("stays"),
        "default_a_file".to_owned(),
        "lost+found".to_owned(),
        "two_parts".to_owned(),
    ];
    expected.sort();
    assert_eq!(left, expected);
    // The number of its log shows what ran before.
    let log = node.path(&format!("logs/{}/main", logs_of("stays")));
    assert!(log.join("0.log").exists(), "{:?}", std::fs::read_dir(log));
}

#[tokio::test]
async fn with_a_pod_go_the_logs_of_all_pods_that_had_its_uid() {
    let node = Node::started().await;
    node.put(&known("web"));
    node.wait_runs("web").await;
    // A kubelet that was killed did not come to remove them.
    std::fs::create_dir_all(node.path("logs/default_old-node1_uid-of-web/main")).unwrap();
    std::fs::create_dir_all(node.path("logs/default_other-node1_uid-of-other/main")).unwrap();
    node.remove("web");
    wait_for("the logs are gone", WAIT_LIMIT, async || {
        let left = node.entries("logs");
        holds(left == [logs_of("other")], format!("{left:?}"))
    })
    .await;
}
