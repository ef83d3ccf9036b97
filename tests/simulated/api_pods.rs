//! Pods of the API server on a node whose kubelet takes none from there: they are left alone.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::foreign_objects::{Plant, Planter};
use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::{simple, with_metadata};
use crate::support::fake_runtime::{Call, FakeRuntime, PodView};
use crate::support::wait::{holds, wait_for};

/// A kubeconfig of an API server that does not listen.
fn kubeconfig(dir: &Path) -> String {
    let path = dir.join("kubeconfig");
    let text = r#"{apiVersion: v1, kind: Config, current-context: c,
        clusters: [{name: k, cluster: {server: "http://127.0.0.1:9"}}],
        users: [{name: u, user: {token: t}}],
        contexts: [{name: c, context: {cluster: k, user: u}}]}"#;
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// What was done to other pods than these since the calls were cleared.
fn done_to(fake: &FakeRuntime, names: &[&str]) -> Vec<Call> {
    let mut calls = fake.calls();
    calls.retain(|call| call.rpc.is_mutating() && names.contains(&call.subject.pod.as_str()));
    calls
}

#[tokio::test]
async fn pods_of_the_api_server_are_left_alone_whatever_the_flags() {
    for with_kubeconfig in [true, false] {
        let mut node = Node::new().await;
        node.periods().housekeeping = Duration::from_millis(200);
        if with_kubeconfig {
            let path = kubeconfig(&node.path(""));
            node.argue(&format!("--kubeconfig={path}"));
        }
        let mut planter = Planter::new(&node.fake).await;
        let api = |name: &str| Plant::of_a_kubelet(name).made_for("api");
        planter.pod(&api("from-the-api")).await;
        planter.pod(&Plant::of_a_kubelet("unmarked")).await;
        planter.pod(&api("ended")).await;
        node.fake.kill_sandbox("ended");
        planter.pod(&Plant::of_a_kubelet("lost").made_for_a_file()).await;
        let directories = [
            "root/pods/uid-of-from-the-api/volumes",
            "root/pods/uid-of-elsewhere/volumes",
            "logs/default_ended_uid-of-ended/main",
            "logs/default_elsewhere_uid-of-elsewhere/main",
        ];
        for directory in directories {
            std::fs::create_dir_all(node.path(directory)).unwrap();
        }
        node.fake.clear_calls();
        node.put(&simple("web"));
        node.start().await;
        node.wait_runs("web").await;
        let gone = |fake: &FakeRuntime| fake.pod("lost").is_none();
        node.fake.wait_until("the orphan of the file is removed", WAIT_LIMIT, gone).await;
        let names = ["from-the-api", "unmarked", "ended"];
        // Several runs of housekeeping.
        let touched = |fake: &FakeRuntime| !done_to(fake, &names).is_empty();
        assert!(
            node.never(Duration::from_millis(1500), touched).await,
            "{:?}",
            done_to(&node.fake, &names)
        );
        for directory in directories {
            assert!(node.path(directory).is_dir(), "{directory} is gone");
        }
    }
}

#[tokio::test]
async fn dead_containers_of_pods_of_the_api_server_are_not_collected() {
    let mut node = Node::new().await;
    node.periods().housekeeping = Duration::from_millis(200);
    let mut planter = Planter::new(&node.fake).await;
    let plant = Plant::of_a_kubelet("from-the-api").made_for("api");
    planter.pod(&plant).await;
    node.fake.kill_sandbox("from-the-api");
    // A second sandbox of the same pod.
    planter.pod(&plant.attempt(1)).await;
    node.fake.clear_calls();
    node.put(&simple("web"));
    node.start().await;
    node.wait_runs("web").await;
    let touched = |fake: &FakeRuntime| !done_to(fake, &["from-the-api"]).is_empty();
    assert!(node.never(Duration::from_secs(1), touched).await);
}

#[tokio::test]
async fn a_static_pod_starts_beside_a_pod_of_the_api_server_with_its_name() {
    let mut node = Node::new().await;
    let plant = Plant::of_a_kubelet(&full("web")).made_for("api");
    Planter::new(&node.fake).await.pod(&plant).await;
    node.fake.clear_calls();
    node.put(&simple("web"));
    node.start().await;
    let both = |fake: &FakeRuntime| {
        let pods = fake.pods();
        let runs = |pod: &&PodView| pod.ready && pod.containers.iter().any(|c| c.is_running());
        pods.iter().filter(runs).count() == 2
    };
    node.fake.wait_until("both run", WAIT_LIMIT, both).await;
    let ended = |fake: &FakeRuntime| !both(fake);
    assert!(node.never(Duration::from_millis(500), ended).await);
}

#[tokio::test]
async fn a_static_pod_with_the_uid_of_a_pod_of_the_api_server_waits_until_that_is_gone() {
    for name in ["other".to_owned(), full("web")] {
        let mut node = Node::new().await;
        node.periods().housekeeping = Duration::from_millis(200);
        let plant = Plant::of_a_kubelet(&name).made_for("api");
        Planter::new(&node.fake).await.pod(&plant).await;
        node.fake.clear_calls();
        let uid = json!({"uid": format!("uid-of-{name}")});
        node.put(&with_metadata(simple("web"), uid));
        node.start().await;
        wait_for("an event says why", WAIT_LIMIT, async || {
            let events = node.events().await;
            holds(events.contains("already in use by pod default/"), events)
        })
        .await;
        let touched = |fake: &FakeRuntime| fake.mutations() > 0;
        assert!(node.never(Duration::from_secs(1), touched).await);
        node.fake.forget_everything();
        node.fake.end_event_streams(None);
        node.wait_runs("web").await;
    }
}
