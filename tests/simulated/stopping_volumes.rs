//! Config maps, secrets and tokens of a pod that is being started or stopped for long.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api_source::{bound, joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{Behaviour, FakeRuntime, Pull, Rpc};
use crate::support::wait::{holds, wait_for};

const CONFIG: &str = "/api/v1/namespaces/default/configmaps/settings";

fn settings(value: &str) -> Value {
    json!({
        "metadata": {"name": "settings", "namespace": "default", "uid": "uid-of-settings"},
        "data": {"key": value},
    })
}

/// A pod with a config map and with an empty directory, that does not end on its stop signal.
fn slow_to_end(name: &str) -> Value {
    let mut pod = bound(name);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(3600);
    pod["spec"]["volumes"] = json!([
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "scratch", "emptyDir": {}},
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "settings", "mountPath": "/settings"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]);
    pod
}

fn file(node: &Node) -> PathBuf {
    node.path("root/pods/uid-of-web/volumes/kubernetes.io~configmap/settings/key")
}

async fn wait_written(node: &Node, value: &str) {
    wait_for(&format!("the volume has {value:?}"), WAIT_LIMIT, async || {
        let found = std::fs::read_to_string(file(node)).unwrap_or_default();
        holds(found == value, found)
    })
    .await;
}

/// A node on which the pod `web` is being stopped.
async fn with_stopping_pod() -> (Node, FakeApiServer) {
    let (mut node, api) = joined().await;
    api.put(CONFIG, settings("first"));
    api.put(&path("web"), slow_to_end("web"));
    node.fake.behave("web", Behaviour::ignores_term());
    node.start().await;
    wait_runs(&node, "web").await;
    wait_written(&node, "first").await;
    let mut pod = api.object(&path("web")).expect("the pod");
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(3600);
    api.put(&path("web"), pod);
    wait_stops(&node, 1).await;
    (node, api)
}

async fn wait_stops(node: &Node, number: u64) {
    let stops = move |fake: &FakeRuntime| fake.count(Rpc::StopContainer) >= number;
    node.fake.wait_until("it is being stopped", WAIT_LIMIT, stops).await;
}

#[tokio::test]
async fn a_config_map_is_updated_while_its_pod_takes_its_grace_also_after_a_restart() {
    let (mut node, api) = with_stopping_pod().await;
    for value in ["second", "third"] {
        api.put(CONFIG, settings(value));
        wait_written(&node, value).await;
    }
    node.stop().await;
    node.start().await;
    wait_stops(&node, 2).await;
    api.put(CONFIG, settings("fourth"));
    wait_written(&node, "fourth").await;
    // What was not updated is as it was.
    let volumes = node.entries("root/pods/uid-of-web/volumes");
    assert_eq!(volumes.len(), 2, "{volumes:?}");
    assert!(node.fake.exit("web", 0));
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("nothing is left of it", WAIT_LIMIT, gone).await;
    wait_for("its volumes are removed", WAIT_LIMIT, async || {
        let pods = node.entries("root/pods");
        holds(pods.is_empty(), format!("{pods:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_config_map_is_updated_while_an_image_of_its_pod_is_being_pulled() {
    let (mut node, api) = joined().await;
    let pull = Pull { delay: Duration::from_secs(3600), ..Pull::default() };
    node.fake.on_pull("registry.test/large:1", pull);
    api.put(CONFIG, settings("first"));
    let mut pod = slow_to_end("web");
    let large = json!({"name": "large", "image": "registry.test/large:1"});
    pod["spec"]["containers"].as_array_mut().unwrap().push(large);
    api.put(&path("web"), pod);
    node.start().await;
    let pulls = |fake: &FakeRuntime| fake.count(Rpc::PullImage) > 0;
    node.fake.wait_until("the image is being pulled", WAIT_LIMIT, pulls).await;
    wait_written(&node, "first").await;
    api.put(CONFIG, settings("second"));
    wait_written(&node, "second").await;
}

#[tokio::test]
async fn a_config_map_that_is_gone_keeps_no_pod_from_ending() {
    let (node, api) = with_stopping_pod().await;
    api.remove(CONFIG);
    api.put("/api/v1/namespaces/default/configmaps/other", settings("other"));
    assert!(node.fake.exit("web", 0));
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("nothing is left of it", WAIT_LIMIT, gone).await;
}
