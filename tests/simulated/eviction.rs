//! Evictions, as far as they do not need a machine that is really short of something.

use serde_json::json;

use crate::api_source::{joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::resize::sized;
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{Call, Fault, Rpc};
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

/// A node whose kubelet was stopped, and whose pod `web` runs.
async fn stopped_with_web() -> (Node, FakeApiServer) {
    let (mut node, api) = joined().await;
    node.start().await;
    api.put(&path("web"), sized("web", 1, "64Mi"));
    wait_runs(&node, "web").await;
    node.stop().await;
    (node, api)
}

#[tokio::test]
async fn a_runtime_that_removes_images_slowly_does_not_delay_evictions_for_memory() {
    real_time("an image has to be older than a nanosecond");
    let (mut node, api) = stopped_with_web().await;
    // Both are always met; the one for memory only after images are being removed.
    node.configure(
        "evictionHard: {nodefs.available: \"99.9%\"}\n\
         evictionSoft: {memory.available: \"99.9%\"}\n\
         evictionSoftGracePeriod: {memory.available: 3s}\n\
         imageMinimumGCAge: 1ns",
    );
    node.fake.add_image("localhost/unused:1");
    node.fake.inject(Fault::hang(Rpc::RemoveImage));
    node.start().await;
    wait_called(&node, Rpc::RemoveImage).await;
    wait_evicted(&api, "web", "memory").await;
    node.fake.release(Rpc::RemoveImage);
}

async fn wait_called(node: &Node, rpc: Rpc) {
    let called = move |calls: &[Call]| calls.iter().any(|call| call.rpc == rpc);
    node.fake.wait_for_calls(&format!("{rpc} is called"), WAIT_LIMIT, called).await;
}

async fn wait_evicted(api: &FakeApiServer, name: &str, resource: &str) {
    let begins = format!("The node was low on resource: {resource}. ");
    wait_for(&format!("{name} is evicted"), WAIT_LIMIT, async || {
        let status = api.object(&path(name)).unwrap_or_default()["status"].clone();
        let message = status["message"].as_str().unwrap_or_default();
        let says = status["reason"] == "Evicted" && message.starts_with(&begins);
        holds(says, status.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_disk_is_freed_of_images_before_a_pod_is_evicted() {
    real_time("an image has to be older than a nanosecond");
    let (mut node, api) = stopped_with_web().await;
    node.configure(
        "evictionHard: {nodefs.available: \"99.9%\", nodefs.inodesFree: \"99.9%\"}\n\
         imageMinimumGCAge: 1ns",
    );
    node.fake.add_image("localhost/unused:1");
    node.fake.inject(Fault::hang(Rpc::RemoveImage));
    node.start().await;
    wait_called(&node, Rpc::RemoveImage).await;
    let status = api.object(&path("web")).unwrap()["status"].clone();
    assert_eq!(status["phase"], "Running", "{status}");
    node.fake.release(Rpc::RemoveImage);
    wait_for("a pod of the disk goes", WAIT_LIMIT, async || {
        let status = api.object(&path("web")).unwrap_or_default()["status"].clone();
        holds(status["reason"] == "Evicted", status.to_string())
    })
    .await;
}

#[tokio::test]
async fn what_an_evicted_pod_wrote_into_its_containers_goes_while_the_pod_stays_in_the_api_server()
{
    let (mut node, api) = stopped_with_web().await;
    node.configure("evictionHard: {nodefs.available: \"99.9%\"}");
    node.start().await;
    wait_evicted(&api, "web", "ephemeral-storage").await;
    wait_called(&node, Rpc::RemoveContainer).await;
    wait_called(&node, Rpc::RemovePodSandbox).await;
    let pod = api.object(&path("web")).unwrap();
    assert_eq!(pod["status"]["reason"], "Evicted", "{pod}");
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
}

#[tokio::test]
async fn a_pod_that_starts_while_usage_is_read_is_not_evicted_before_one_that_ran() {
    real_time("an image has to be older than a nanosecond");
    let (mut node, api) = joined().await;
    node.start().await;
    for name in ["web", "late"] {
        api.put(&path(name), sized(name, 1, "64Mi"));
        wait_runs(&node, name).await;
    }
    node.stop().await;
    node.configure("evictionHard: {nodefs.available: \"99.9%\"}\nimageMinimumGCAge: 1ns");
    node.fake.add_image("localhost/unused:1");
    node.fake.inject(Fault::hang(Rpc::RemoveImage));
    node.fake.inject(Fault::hang(Rpc::RunPodSandbox).only("late"));
    node.fake.inject(Fault::hang(Rpc::ListContainerStats));
    node.fake.inject(Fault::hang(Rpc::StopContainer).only("web"));
    node.start().await;
    wait_called(&node, Rpc::RemoveImage).await;
    node.fake.clear_calls();
    node.fake.kill_sandbox("late");
    wait_called(&node, Rpc::RunPodSandbox).await;
    node.fake.release(Rpc::RemoveImage);
    wait_called(&node, Rpc::ListContainerStats).await;
    node.fake.release(Rpc::RunPodSandbox);
    wait_called(&node, Rpc::CreateContainer).await;
    node.fake.release(Rpc::ListContainerStats);
    let stops_web = |call: &Call| call.rpc == Rpc::StopContainer && call.subject.pod == "web";
    node.fake
        .wait_for_calls("web is stopped", WAIT_LIMIT, |calls| calls.iter().any(stops_web))
        .await;
    let status = api.object(&path("late")).unwrap()["status"].clone();
    assert_ne!(status["reason"], "Evicted", "{status}");
    node.fake.release(Rpc::StopContainer);
}

#[tokio::test]
async fn a_pod_of_which_nothing_runs_is_not_evicted_for_memory() {
    let (mut node, api) = joined().await;
    node.configure(
        "evictionSoft: {memory.available: \"99.9%\"}\n\
         evictionSoftGracePeriod: {memory.available: 5s}",
    );
    node.fake.inject(Fault::hang(Rpc::RunPodSandbox).only("waiting"));
    node.start().await;
    api.put(&path("waiting"), sized("waiting", 1, "64Mi"));
    wait_called(&node, Rpc::RunPodSandbox).await;
    api.put(&path("web"), sized("web", 1, "64Mi"));
    wait_runs(&node, "web").await;
    wait_evicted(&api, "web", "memory").await;
    let status = api.object(&path("waiting")).unwrap()["status"].clone();
    assert_ne!(status["reason"], "Evicted", "{status}");
    node.fake.release(Rpc::RunPodSandbox);
}

#[tokio::test]
async fn a_negative_maximum_leaves_a_pod_the_grace_of_its_spec_in_a_soft_eviction() {
    // Containers are given at least two seconds.
    for (maximum, seconds) in [(-1, 40), (0, 2), (7, 7)] {
        let (mut node, api) = joined().await;
        let mut web = sized("web", 1, "64Mi");
        web["spec"]["terminationGracePeriodSeconds"] = json!(40);
        api.put(&path("web"), web);
        node.start().await;
        wait_runs(&node, "web").await;
        node.stop().await;
        node.configure(&format!(
            "evictionSoft: {{memory.available: \"99.9%\"}}\n\
             evictionSoftGracePeriod: {{memory.available: 1s}}\n\
             evictionMaxPodGracePeriod: {maximum}"
        ));
        node.start().await;
        wait_called(&node, Rpc::StopContainer).await;
        let stop = node.fake.calls_of(Rpc::StopContainer).remove(0);
        let timeout = stop.detail.strip_prefix("timeout=").unwrap();
        let timeout: i64 = timeout.parse().unwrap();
        // The first seconds may have passed on a busy machine.
        assert!((seconds / 2..=seconds).contains(&timeout), "{maximum}: {timeout}");
    }
}

#[tokio::test]
async fn a_termination_log_counts_for_the_ephemeral_storage_of_its_container() {
    const WRITTEN: usize = 8 << 20;
    let (mut node, api) = joined().await;
    let mut web = sized("web", 1, "64Mi");
    let main = &mut web["spec"]["containers"][0];
    main["resources"]["limits"]["ephemeral-storage"] = json!("4Mi");
    main["terminationMessagePath"] = json!("/dev/termination-log");
    api.put(&path("web"), web);
    node.start().await;
    let pod = wait_runs(&node, "web").await;
    let mounts = &pod.containers[0].config.mounts;
    let log = mounts.iter().find(|mount| mount.container_path == "/dev/termination-log");
    std::fs::write(&log.unwrap().host_path, vec![b'x'; WRITTEN]).unwrap();
    wait_for("it is evicted", WAIT_LIMIT, async || {
        let status = api.object(&path("web")).unwrap_or_default()["status"].clone();
        let message = status["message"].as_str().unwrap_or_default();
        let says = message.contains("exceeds the total limit of containers 4Mi");
        holds(says && status["reason"] == "Evicted", status.to_string())
    })
    .await;
}
