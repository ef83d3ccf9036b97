//! Where manifests come from, good and bad.

use std::time::Duration;

use serde_json::{Value, json};

use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::{simple, version};
use crate::support::fake_runtime::{FakeRuntime, Rpc};
use crate::support::wait::{holds, wait_for};
use crate::web::WebServer;

fn args_of(fake: &FakeRuntime, name: &str) -> Vec<String> {
    let found = fake.container(&format!("{}/main", full(name)));
    found.filter(|c| c.is_running()).map(|c| c.config.args).unwrap_or_default()
}

fn list(pods: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "PodList", "items": pods}).to_string()
}

#[tokio::test]
async fn bad_manifests_do_not_keep_good_ones_from_running() {
    let mut node = Node::new().await;
    let dir = node.manifests.dir().to_owned();
    node.manifests.put("a-broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n");
    node.manifests.put("b-empty.yaml", "");
    node.manifests.put("c-wrong.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: c}\n");
    node.manifests.put("d-huge.yaml", &"# ....................\n".repeat(1_000_000));
    node.manifests.put("e-binary.yaml", "\u{0}\u{1}\u{2}");
    std::fs::create_dir(dir.join("f-directory.yaml")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("g-dangling.yaml")).unwrap();
    node.manifests.put("h-invalid.yaml", &simple("NOT_A_NAME").to_string());
    node.put(&simple("web"));
    node.start().await;
    node.put(&simple("later"));
    node.wait_phase("web", "Running").await;
    node.wait_phase("later", "Running").await;
    assert_eq!(node.pods().await.len(), 2);
    assert_eq!(node.fake.pods().len(), 2);
    node.wait_healthy().await;
}

#[tokio::test]
async fn of_two_files_with_one_pod_name_one_runs() {
    let node = Node::started().await;
    node.manifests.put("a.yaml", &version("web", "a").to_string());
    node.wait_runs("web").await;
    node.manifests.put("b.yaml", &version("web", "b").to_string());
    node.put(&simple("other"));
    node.wait_runs("other").await;
    let two = |fake: &FakeRuntime| {
        let name = full("web");
        fake.pods().iter().filter(|pod| pod.name == name && pod.ready).count() > 1
    };
    assert!(node.never(Duration::from_millis(500), two).await);
    assert_eq!(node.fake.count(Rpc::StopContainer), 0);
    assert_eq!(args_of(&node.fake, "web"), ["a"]);
}

#[tokio::test]
async fn a_manifest_written_in_two_parts_is_read_when_it_is_whole() {
    let node = Node::started().await;
    let text = simple("web").to_string();
    let path = node.manifests.dir().join("web.yaml");
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    node.put(&simple("other"));
    node.wait_runs("other").await;
    assert!(node.fake.pod(&full("web")).is_none());
    std::fs::write(&path, &text).unwrap();
    node.wait_runs("web").await;
}

#[tokio::test]
async fn a_manifest_that_turns_bad_keeps_its_pod_running() {
    let node = Node::started().await;
    node.put(&version("web", "v1"));
    node.wait_runs("web").await;
    node.wait_phase("web", "Running").await;
    for bad in ["apiVersion: v1\nkind: Pod\nmetadata: {name: [", ""] {
        node.manifests.put("web.yaml", bad);
        let marker = format!("marker{}", bad.len());
        node.put(&simple(&marker));
        // What comes later in the same directory is seen, so the bad file was read.
        node.wait_runs(&marker).await;
    }
    assert_eq!(node.fake.count(Rpc::StopContainer), 0);
    assert_eq!(args_of(&node.fake, "web"), ["v1"]);
    node.put(&version("web", "v2"));
    let edited = |fake: &FakeRuntime| args_of(fake, "web") == ["v2"];
    node.fake.wait_until("the mended one runs", WAIT_LIMIT, edited).await;
}

#[tokio::test]
async fn pods_come_from_a_url_and_stay_while_it_talks_nonsense() {
    let server = WebServer::start(200, &simple("one").to_string()).await;
    let mut node = Node::new().await;
    node.configure(&format!("staticPodURL: {}", server.url));
    node.configure("httpCheckFrequency: 100ms");
    node.start().await;
    node.wait_runs("one").await;
    server.answer(200, &list(&[simple("one"), version("two", "v1")]));
    node.wait_runs("two").await;
    server.answer(200, &list(&[simple("one"), version("two", "v2")]));
    let edited = |fake: &FakeRuntime| args_of(fake, "two") == ["v2"];
    node.fake.wait_until("the new one runs", WAIT_LIMIT, edited).await;
    let stops = node.fake.count(Rpc::StopContainer);
    for (code, body) in [(200, "{nonsense"), (500, "sorry"), (404, "")] {
        server.answer(code, body);
        let requested = server.requested();
        wait_for("it requests again", WAIT_LIMIT, async || {
            holds(server.requested() >= requested + 2, "it does not")
        })
        .await;
    }
    assert_eq!(node.fake.count(Rpc::StopContainer), stops);
    server.answer(200, &list(&[version("two", "v2")]));
    node.wait_removed("one").await;
    node.wait_runs("two").await;
    server.answer(200, &list(&[]));
    node.wait_removed("two").await;
}
