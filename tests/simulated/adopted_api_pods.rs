//! Pods of the API server that run when the kubelet starts, and an API server that does not have them.

use std::time::Duration;

use serde_json::json;

use crate::api_source::{
    bound, ids, joined, path, put_cluster, stays_untouched, wait_event, wait_runs, with_data_lost,
};
use crate::node::WAIT_LIMIT;
use crate::support::api_server::Mode;
use crate::support::fake_runtime::{FakeRuntime, Fault, Rpc};
use crate::support::wait::{holds, wait_for};

/// Longer than the kubelet waits for what runs before it goes on without it.
const LATE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_pod_whose_status_comes_late_is_adopted_while_there_is_no_api_server() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), bound("web"));
    node.start().await;
    wait_runs(&node, "web").await;
    let stored = node.path("root/api-pods/uid-of-web.json");
    wait_for("the pod is stored", WAIT_LIMIT, async || holds(stored.exists(), "it is not")).await;
    node.stop().await;
    api.answer(Mode::Away);
    for rpc in [Rpc::PodSandboxStatus, Rpc::ContainerStatus] {
        node.fake.inject(Fault::hang(rpc));
    }
    node.start().await;
    node.wait_shown(1).await;
    node.fake.clear_faults();
    assert!(node.fake.exit("web/main", 1));
    let again = |fake: &FakeRuntime| {
        let pod = fake.pod("web").unwrap();
        pod.containers.len() > 1 && pod.containers.iter().any(|one| one.is_running())
    };
    node.fake.wait_until("its container runs again", WAIT_LIMIT, again).await;
}

#[tokio::test]
async fn a_pod_that_was_not_adopted_is_confirmed_to_be_gone_before_it_is_stopped() {
    for is_late in [true, false] {
        let (mut node, api) = with_data_lost().await;
        put_cluster(&api, "two");
        let reads = [Rpc::PodSandboxStatus, Rpc::ContainerStatus];
        if is_late {
            for rpc in reads {
                node.fake.inject(Fault::delay(rpc, LATE));
            }
        } else {
            std::fs::remove_file(node.path("root/api-pods/uid-of-web.json")).unwrap();
        }
        let before = ids(&node.fake, "web");
        node.fake.clear_calls();
        node.start().await;
        wait_event(&node, "OtherCluster").await;
        let is_read = |fake: &FakeRuntime| {
            reads.iter().all(|rpc| {
                let calls = fake.calls_of(*rpc);
                calls.iter().any(|call| call.code.is_some())
            })
        };
        node.fake.wait_until("it was read", WAIT_LIMIT, is_read).await;
        stays_untouched(&node, &format!("late: {is_late}")).await;
        assert_eq!(ids(&node.fake, "web"), before);
        put_cluster(&api, "one");
        let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
        node.fake.wait_until("web is gone", WAIT_LIMIT, gone).await;
    }
}

#[tokio::test]
async fn pods_that_are_missing_from_a_list_are_confirmed_together() {
    const NUMBER: usize = 10;
    let (mut node, api) = joined().await;
    put_cluster(&api, "one");
    let names: Vec<_> = (0..NUMBER).map(|n| format!("gone-{n}")).collect();
    for name in &names {
        api.put(&path(name), bound(name));
    }
    api.put(&path("stays"), bound("stays"));
    node.start().await;
    for name in &names {
        wait_runs(&node, name).await;
    }
    wait_runs(&node, "stays").await;
    node.stop().await;
    for name in &names {
        api.remove(&path(name));
    }
    let before = api.seen().len();
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pods().len() == 1;
    node.fake.wait_until("they are gone", WAIT_LIMIT, gone).await;
    wait_runs(&node, "stays").await;
    let seen = api.seen().split_off(before);
    let number = |path: &str| {
        let lists = seen.iter().filter(|seen| {
            let is_list = seen.method == "GET" && !seen.path.contains("watch=");
            is_list && seen.path.starts_with(path)
        });
        lists.count()
    };
    // The list that lacks them, one that confirms it, and what the identity of the cluster is learned from.
    assert_eq!(number("/api/v1/namespaces/default/pods"), 0, "{seen:#?}");
    assert!(number("/api/v1/pods") <= 3, "{seen:#?}");
    assert!(number("/api/v1/namespaces/default/services/kubernetes") <= 4);
}

#[tokio::test]
async fn a_pod_in_doubt_does_not_make_way_for_one_of_its_name_in_another_cluster() {
    let (mut node, api) = with_data_lost().await;
    put_cluster(&api, "two");
    let mut other = bound("web");
    other["metadata"]["uid"] = json!("uid-of-other");
    api.put(&path("web"), other);
    let before = ids(&node.fake, "web");
    node.fake.clear_calls();
    node.start().await;
    wait_event(&node, "OtherCluster").await;
    stays_untouched(&node, "web").await;
    assert_eq!(ids(&node.fake, "web"), before);
    // It is the cluster that the pod came from, after all.
    put_cluster(&api, "one");
    let replaced = |fake: &FakeRuntime| {
        let pods = fake.pods();
        let [pod] = pods.as_slice() else { return false };
        pod.uid == "uid-of-other" && pod.containers.iter().any(|one| one.is_running())
    };
    node.fake.wait_until("the other one runs alone", WAIT_LIMIT, replaced).await;
}

/// A record that the runtime can never return does not make a pod immortal.
#[tokio::test]
async fn a_pod_that_cannot_be_read_is_stopped_once_it_is_known_to_be_gone() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), bound("web"));
    node.start().await;
    wait_runs(&node, "web").await;
    node.stop().await;
    api.remove(&path("web"));
    std::fs::remove_file(node.path("root/api-pods/uid-of-web.json")).unwrap();
    let main = ids(&node.fake, "web").remove(0);
    let broken = Fault::fail(Rpc::ContainerStatus, tonic::Code::Internal, "broken");
    node.fake.inject(broken.only(&main));
    node.start().await;
    let gone = |fake: &FakeRuntime| fake.pod("web").is_none();
    node.fake.wait_until("web is gone", WAIT_LIMIT, gone).await;
}
