//! Pods with user namespaces: who has which ids.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet::cri::v1;
use serde_json::json;
use tonic::Code;

use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::{container, pod, simple, with, with_spec};
use crate::support::fake_runtime::{Behaviour, FakeRuntime, Fault, Features, Options, Rpc};
use crate::support::wait::{holds, wait_for};

fn own_ids(name: &str) -> serde_json::Value {
    with_spec(simple(name), json!({"hostUsers": false}))
}

/// The first id of a pod on the node, if it has ids of its own; its containers agree.
fn first_id(fake: &FakeRuntime, name: &str) -> Option<u32> {
    let pod = fake.pod(&full(name)).expect("a pod");
    let of = |options: Option<v1::NamespaceOption>| {
        let users = options.unwrap().userns_options.unwrap();
        assert_eq!(users.uids, users.gids);
        users.uids.first().map(|ids| {
            assert_eq!((ids.container_id, ids.length), (0, 65536));
            ids.host_id
        })
    };
    let sandbox = pod.config.linux.unwrap().security_context.unwrap();
    let first = of(sandbox.namespace_options);
    for container in pod.containers {
        for mount in &container.config.mounts {
            let mapped = mount.uid_mappings.first().map(|ids| ids.host_id);
            assert_eq!(mapped, first, "{}", mount.container_path);
        }
        let context = container.config.linux.unwrap().security_context.unwrap();
        assert_eq!(of(context.namespace_options), first);
    }
    first
}

#[tokio::test]
async fn each_pod_has_ids_of_its_own_over_restarts_until_it_is_gone() {
    let mut node = Node::new().await;
    node.start().await;
    for name in ["a", "b"] {
        node.put(&own_ids(name));
        node.wait_runs(name).await;
    }
    node.put(&simple("plain"));
    node.wait_runs("plain").await;
    assert_eq!(first_id(&node.fake, "plain"), None);
    let (a, b) = (first_id(&node.fake, "a"), first_id(&node.fake, "b"));
    assert!(a.is_some() && b.is_some() && a != b, "{a:?} {b:?}");

    node.stop().await;
    node.start().await;
    node.wait_healthy().await;
    // A container that ends is started again with the ids of its sandbox.
    let ended = node.wait_runs("a").await;
    assert!(node.fake.exit(&format!("{}/main", full("a")), 1));
    node.fake
        .wait_until("a runs again", WAIT_LIMIT, |fake| {
            let container = fake.container(&format!("{}/main", full("a")));
            container.is_some_and(|c| c.is_running() && c.id != ended.id)
        })
        .await;
    assert_eq!(first_id(&node.fake, "a"), a);
    node.put(&own_ids("c"));
    node.wait_runs("c").await;
    let c = first_id(&node.fake, "c");
    assert!(c != a && c != b, "{c:?} is taken");

    node.remove("a");
    node.wait_removed("a").await;
    wait_for("its directory is gone", WAIT_LIMIT, async || {
        let left = node.entries("root/pods").len();
        holds(left == 3, format!("{left} directories"))
    })
    .await;
}

#[tokio::test]
async fn the_ids_of_a_pod_that_has_ended_are_free_again() {
    let node = Node::started().await;
    node.fake.behave(&full("job"), Behaviour::exits(Duration::ZERO, 0));
    let job = with_spec(own_ids("job"), json!({"restartPolicy": "Never"}));
    node.put(&job);
    let ended = node.wait_phase("job", "Succeeded").await;
    let uid = ended.metadata.uid.unwrap();
    wait_for("its note is gone", WAIT_LIMIT, async || {
        let left = node.entries(&format!("root/pods/{uid}"));
        holds(!left.contains(&"userns".to_owned()), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_runtime_that_learns_it_is_asked_again() {
    let mut options = Options::default();
    options.features.handler.user_namespaces = false;
    let mut node = Node::with(options).await;
    node.start().await;
    node.put(&own_ids("web"));
    wait_for("an event says why it waits", WAIT_LIMIT, async || {
        let events = node.events().await;
        let text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        holds(events.contains(text), events)
    })
    .await;
    assert!(node.fake.pod(&full("web")).is_none());
    node.fake.set_features(Features::default());
    let runs = |fake: &FakeRuntime| {
        let container = fake.container(&format!("{}/main", full("web")));
        container.is_some_and(|c| c.is_running())
    };
    node.fake.wait_until("it runs", WAIT_LIMIT, runs).await;
    assert!(first_id(&node.fake, "web").is_some());
}

#[tokio::test]
async fn status_and_mounts_follow_what_the_runtime_can() {
    let node = Node::started().await;
    let mount = json!({"volumeMounts": [
        {"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"},
    ]});
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    node.put(&with_spec(pod("web", &[with(container("main"), mount)]), volumes));
    let main = node.wait_runs("web").await;
    let recursive: BTreeMap<_, _> = main
        .config
        .mounts
        .iter()
        .map(|mount| (mount.container_path.as_str(), mount.recursive_read_only))
        .collect();
    assert!(recursive["/v"], "{recursive:?}");
    let shown = node
        .wait_pod("web", "mounts are shown", WAIT_LIMIT, |pod| {
            let status = crate::node::status_of(pod, "main");
            status.is_some_and(|status| status.volume_mounts.is_some())
        })
        .await;
    let status = crate::node::status_of(&shown, "main").unwrap();
    let mounts = status.volume_mounts.as_ref().unwrap();
    assert_eq!(mounts[0].recursive_read_only.as_deref(), Some("Enabled"));
}

#[tokio::test]
async fn a_pod_with_ids_of_its_own_that_fails_in_its_first_sync_is_counted() {
    let mut node = Node::new().await;
    node.start().await;
    let counts = async |node: &Node| {
        let (_, metrics) = node.get("/metrics").await;
        let count = |name: &str| {
            let prefix = format!("kubelet_started_user_namespaced_pods_{name} ");
            let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(&prefix));
            lines.next().unwrap_or("none").to_owned()
        };
        [count("total"), count("errors_total")]
    };
    node.put(&own_ids("good"));
    node.wait_runs("good").await;
    assert_eq!(counts(&node).await, ["1", "0"]);
    let fault = Fault::fail(Rpc::StartContainer, Code::Unknown, "no such program");
    node.fake.inject(fault);
    node.put(&own_ids("bad"));
    wait_for("it fails", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains("no such program"), events)
    })
    .await;
    wait_for("it is counted", WAIT_LIMIT, async || {
        let counts = counts(&node).await;
        holds(counts == ["2", "1"], format!("{counts:?}"))
    })
    .await;
}
