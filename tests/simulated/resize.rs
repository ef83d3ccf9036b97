//! Pods that request other amounts of CPU and memory while they run.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::Code;

use crate::api_source::{bound, ids, joined, path, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{FakeRuntime, Fault, Rpc};
use crate::support::log::Log;
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

/// A pod that requests so much CPU, and may use twice that and some memory.
pub(crate) fn sized(name: &str, cpu_milli: i64, memory: &str) -> Value {
    let mut pod = bound(name);
    pod["metadata"]["generation"] = json!(1);
    set(&mut pod, cpu_milli, memory);
    pod
}

fn set(pod: &mut Value, cpu_milli: i64, memory: &str) {
    let (request, limit) = (format!("{cpu_milli}m"), format!("{}m", 2 * cpu_milli));
    pod["spec"]["containers"][0]["resources"] = json!({
        "requests": {"cpu": request, "memory": "1Mi"},
        "limits": {"cpu": limit, "memory": memory},
    });
}

/// Requests other amounts, as `kubectl patch --subresource resize` does.
pub(crate) fn request_resize(api: &FakeApiServer, name: &str, cpu_milli: i64, memory: &str) {
    let mut pod = api.object(&path(name)).expect("the pod");
    let generation = pod["metadata"]["generation"].as_i64().unwrap_or_default();
    pod["metadata"]["generation"] = json!(generation + 1);
    set(&mut pod, cpu_milli, memory);
    api.put(&path(name), pod);
}

fn status(api: &FakeApiServer, name: &str) -> Value {
    let pod = api.object(&path(name)).unwrap_or_default();
    pod["status"].clone()
}

fn condition(api: &FakeApiServer, name: &str, type_: &str) -> Option<Value> {
    condition_of(&status(api, name), type_)
}

fn condition_of(status: &Value, type_: &str) -> Option<Value> {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|one| one["type"] == type_)
}

pub(crate) async fn wait_condition(
    api: &FakeApiServer,
    name: &str,
    type_: &str,
    reason: &str,
) -> Value {
    wait_for(&format!("{type_} is {reason}"), WAIT_LIMIT, async || {
        let found = condition(api, name, type_);
        let is = found.as_ref().is_some_and(|one| one["reason"] == reason);
        holds(is, status(api, name).to_string())
    })
    .await;
    condition(api, name, type_).expect("the condition")
}

/// Waits until the pod is shown with this request, allocated and in force, and with no condition of a resize.
pub(crate) async fn wait_resized(api: &FakeApiServer, name: &str, cpu: &str) {
    wait_for(&format!("{name} has {cpu}"), WAIT_LIMIT, async || {
        let status = status(api, name);
        let container = &status["containerStatuses"][0];
        let has = container["allocatedResources"]["cpu"] == cpu
            && container["resources"]["requests"]["cpu"] == cpu
            && condition(api, name, "PodResizePending").is_none()
            && condition(api, name, "PodResizeInProgress").is_none();
        holds(has, status.to_string())
    })
    .await;
}

fn updates(fake: &FakeRuntime) -> Vec<String> {
    let calls = fake.calls_of(Rpc::UpdateContainerResources);
    calls.into_iter().map(|call| call.detail).collect()
}

async fn wait_event(node: &Node, reason: &str) {
    wait_for(&format!("the event {reason}"), WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains(reason), events)
    })
    .await;
}

#[tokio::test]
async fn a_running_container_is_given_what_its_pod_asks_for() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), sized("web", 100, "64Mi"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    let before = ids(&node.fake, "web");
    for (cpu, shown, shares, memory) in [(200, "200m", 204, "128Mi"), (50, "50m", 51, "128Mi")] {
        node.fake.clear_calls();
        request_resize(&api, "web", cpu, memory);
        wait_resized(&api, "web", shown).await;
        let updates = updates(&node.fake);
        assert_eq!(updates.len(), 1, "{updates:?}");
        assert!(updates[0].contains(&format!("cpu_shares: {shares}")), "{updates:?}");
        assert!(updates[0].contains("memory_limit_in_bytes: 134217728"), "{updates:?}");
    }
    assert_eq!(ids(&node.fake, "web"), before, "nothing was restarted");
    wait_event(&node, "ResizeStarted").await;
    wait_event(&node, "ResizeCompleted").await;
    let (_, metrics) = node.get("/metrics").await;
    let line = "kubelet_container_requested_resizes_total{resource=\"cpu\",requirement=\"requests\",operation=\"increase\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    assert!(metrics.contains("kubelet_pod_resize_duration_milliseconds_count{success=\"true\"} 2"));
}

#[tokio::test]
async fn a_container_that_takes_new_amounts_only_at_its_start_is_restarted() {
    let (mut node, api) = joined().await;
    let mut pod = sized("web", 100, "64Mi");
    pod["spec"]["containers"][0]["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    api.put(&path("web"), pod);
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    let before = ids(&node.fake, "web");
    request_resize(&api, "web", 200, "64Mi");
    wait_resized(&api, "web", "200m").await;
    assert_eq!(ids(&node.fake, "web"), before, "CPU needs no restart");
    request_resize(&api, "web", 200, "128Mi");
    let restarted = |fake: &FakeRuntime| {
        let Some(pod) = fake.pod("web") else {
            return false;
        };
        let mut running = pod.containers.iter().filter(|one| one.is_running());
        running.any(|one| !before.contains(&one.id))
    };
    node.fake.wait_until("it was restarted", WAIT_LIMIT, restarted).await;
    wait_resized(&api, "web", "200m").await;
    wait_event(&node, "Container main resize requires restart").await;
    wait_for("the memory is shown", WAIT_LIMIT, async || {
        let status = status(&api, "web");
        let memory = &status["containerStatuses"][0]["resources"]["limits"]["memory"];
        holds(memory == "128Mi", status.to_string())
    })
    .await;
}

/// As the API prints it.
pub(crate) fn shown(cpu_milli: i64) -> String {
    match cpu_milli % 1000 {
        0 => (cpu_milli / 1000).to_string(),
        _ => format!("{cpu_milli}m"),
    }
}

/// Thousandths of CPUs that pods may have on this machine.
pub(crate) async fn allocatable(api: &FakeApiServer) -> i64 {
    let found = wait_for("the node says what it has", WAIT_LIMIT, async || {
        let node = api.object("/api/v1/nodes/node1").unwrap_or_default();
        let cpu = node["status"]["allocatable"]["cpu"].clone();
        holds(cpu.is_string(), node.to_string())
    });
    found.await;
    let node = api.object("/api/v1/nodes/node1").unwrap_or_default();
    let cpu = node["status"]["allocatable"]["cpu"].as_str().unwrap_or_default().to_owned();
    match cpu.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap(),
        None => cpu.parse::<i64>().unwrap() * 1000,
    }
}

#[tokio::test]
async fn a_resize_without_room_waits_also_over_a_restart_until_another_pod_goes() {
    let (mut node, api) = joined().await;
    node.start().await;
    let all = allocatable(&api).await;
    api.put(&path("big"), sized("big", all * 6 / 10, "64Mi"));
    api.put(&path("web"), sized("web", all / 10, "64Mi"));
    for name in ["big", "web"] {
        wait_runs(&node, name).await;
    }
    let had = shown(all / 10);
    wait_resized(&api, "web", &had).await;
    node.fake.clear_calls();
    request_resize(&api, "web", all / 2, "64Mi");
    let pending = wait_condition(&api, "web", "PodResizePending", "Deferred").await;
    let message = pending["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Node didn't have enough resource: cpu, requested: "), "{message}");
    assert_eq!(pending["observedGeneration"], 2);
    assert_eq!(
        status(&api, "web")["containerStatuses"][0]["allocatedResources"]["cpu"],
        had.as_str()
    );
    wait_event(&node, "ResizeDeferred").await;
    let (_, metrics) = node.get("/metrics").await;
    let line = "kubelet_pod_pending_resizes{reason=\"deferred\"} 1";
    assert!(metrics.contains(line), "{metrics}");

    node.stop().await;
    node.start().await;
    wait_condition(&api, "web", "PodResizePending", "Deferred").await;
    let acted = |fake: &FakeRuntime| fake.mutations() > 0;
    assert!(node.never(Duration::from_millis(500), acted).await, "{:?}", node.fake.calls());

    api.remove(&path("big"));
    wait_resized(&api, "web", &shown(all / 2)).await;
    assert_eq!(updates(&node.fake).len(), 1);
    let (_, metrics) = node.get("/metrics").await;
    assert!(
        metrics.contains("kubelet_pod_deferred_accepted_resizes_total{retry_trigger="),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_resize_that_is_taken_back_is_over() {
    let (mut node, api) = joined().await;
    node.start().await;
    let all = allocatable(&api).await;
    for (name, milli) in [("web", 100), ("other", all / 2)] {
        api.put(&path(name), sized(name, milli, "64Mi"));
        wait_runs(&node, name).await;
    }
    wait_resized(&api, "web", "100m").await;
    node.fake.clear_calls();
    request_resize(&api, "web", all, "64Mi");
    wait_condition(&api, "web", "PodResizePending", "Deferred").await;
    request_resize(&api, "web", 100, "64Mi");
    wait_resized(&api, "web", "100m").await;
    assert_eq!(updates(&node.fake), Vec::<String>::new());
}

/// `kubectl` and others take a resize for done when its version of the pod is observed and has no condition.
#[tokio::test(flavor = "multi_thread")]
async fn a_resize_is_not_shown_as_observed_before_it_is_decided() {
    real_time("it runs on several threads");
    let (mut node, api) = joined().await;
    api.put(&path("web"), sized("web", 100, "64Mi"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    for round in 0..40 {
        let milli = 100 + 10 * ((round + 1) % 2);
        request_resize(&api, "web", milli, "64Mi");
        let requested = api.object(&path("web")).expect("the pod");
        let generation = &requested["metadata"]["generation"];
        let deadline = Instant::now() + WAIT_LIMIT;
        let shown = loop {
            let status = status(&api, "web");
            let is_over = ["PodResizePending", "PodResizeInProgress"]
                .iter()
                .all(|type_| condition_of(&status, type_).is_none());
            if status["observedGeneration"] == *generation && is_over {
                break status;
            }
            assert!(Instant::now() < deadline, "{status}");
            tokio::task::yield_now().await;
        };
        let allocated = &shown["containerStatuses"][0]["allocatedResources"]["cpu"];
        assert_eq!(*allocated, format!("{milli}m"), "round {round}: {shown}");
    }
}

#[tokio::test]
async fn what_the_runtime_refuses_is_shown_and_tried_again_after_a_restart() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), sized("web", 100, "64Mi"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    let rpc = Rpc::UpdateContainerResources;
    node.fake.inject(Fault::fail(rpc, Code::Internal, "the kernel is busy"));
    request_resize(&api, "web", 200, "64Mi");
    let shown = wait_condition(&api, "web", "PodResizeInProgress", "Error").await;
    let message = shown["message"].as_str().unwrap_or_default();
    assert!(message.contains("the kernel is busy"), "{message}");
    wait_event(&node, "ResizeError").await;

    node.stop().await;
    node.fake.clear_faults();
    node.start().await;
    wait_resized(&api, "web", "200m").await;
    wait_event(&node, "ResizeCompleted").await;
}

#[tokio::test]
async fn a_memory_limit_below_what_is_used_is_not_set() {
    let (mut node, api) = joined().await;
    let mut pod = sized("web", 100, "64Mi");
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("32Mi");
    api.put(&path("web"), pod);
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    node.fake.clear_calls();
    request_resize(&api, "web", 100, "1Mi");
    let shown = wait_condition(&api, "web", "PodResizeInProgress", "Error").await;
    let message = shown["message"].as_str().unwrap_or_default();
    let wanted = "cannot decrease memory limits: attempting to set container \"main\" memory limit (1048576) below current usage (";
    assert!(message.starts_with(wanted), "{message}");
    assert_eq!(updates(&node.fake), Vec::<String>::new());
    // Also the request that no runtime reports: the scheduler must not give that memory away.
    let resources = &status(&api, "web")["containerStatuses"][0]["resources"];
    let expected = json!({"limits": {"cpu": "200m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}});
    assert_eq!(*resources, expected);
}

#[tokio::test]
async fn a_node_under_pressure_defers_resizes() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), sized("web", 1, "64Mi"));
    node.start().await;
    wait_runs(&node, "web").await;
    node.stop().await;
    // Met for an hour before anything is evicted.
    node.configure(
        "evictionSoft: {nodefs.available: \"99.9%\"}\n\
         evictionSoftGracePeriod: {nodefs.available: 1h}",
    );
    node.start().await;
    let pressed = async || {
        let node = api.object("/api/v1/nodes/node1").unwrap_or_default();
        let disk = condition_of(&node["status"], "DiskPressure").unwrap_or_default();
        holds(disk["status"] == "True", node.to_string())
    };
    wait_for("the disk is short", WAIT_LIMIT, pressed).await;
    request_resize(&api, "web", 2, "64Mi");
    let pending = wait_condition(&api, "web", "PodResizePending", "Deferred").await;
    assert_eq!(pending["message"], "The node had condition: [DiskPressure]. ");

    // Nothing decides about the resize of a pod that ends: its last version is shown all the same.
    node.fake.inject(Fault::hang(Rpc::StopContainer));
    let mut pod = api.object(&path("web")).expect("the pod");
    let generation = pod["metadata"]["generation"].as_i64().unwrap() + 1;
    pod["metadata"]["generation"] = json!(generation);
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    api.put(&path("web"), pod);
    wait_for("its last version is observed", WAIT_LIMIT, async || {
        let status = status(&api, "web");
        holds(status["observedGeneration"] == generation, status.to_string())
    })
    .await;
    node.fake.clear_faults();
}

/// No runtime reports the request of memory, and one or two thousandths of a CPU are the same shares: what the runtime
/// returns after the update equals what it returned before.
#[tokio::test]
async fn a_finished_resize_is_published_also_if_the_late_status_of_the_runtime_shows_no_change() {
    let (mut node, api) = joined().await;
    let with_requests = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": "64Mi"}});
    let mut pod = sized("web", 1, "64Mi");
    pod["spec"]["containers"][0]["resources"] = with_requests("1m", "1Mi");
    api.put(&path("web"), pod);
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "1m").await;
    node.fake.inject(Fault::delay(Rpc::ContainerStatus, Duration::from_millis(50)));
    for (generation, cpu, memory) in [(2, "1m", "2Mi"), (3, "2m", "2Mi")] {
        let mut pod = api.object(&path("web")).expect("the pod");
        pod["metadata"]["generation"] = json!(generation);
        pod["spec"]["containers"][0]["resources"] = with_requests(cpu, memory);
        api.put(&path("web"), pod);
        let published = async || {
            let status = status(&api, "web");
            let requests = &status["containerStatuses"][0]["resources"]["requests"];
            let is_over = status["observedGeneration"] == generation
                && condition_of(&status, "PodResizeInProgress").is_none();
            let has = requests["cpu"] == cpu && requests["memory"] == memory;
            holds(is_over && has, status.to_string())
        };
        wait_for("the end of the resize is published", WAIT_LIMIT, published).await;
    }
}

#[tokio::test]
async fn a_container_that_was_restarted_for_its_resize_is_not_restarted_again_after_a_kill() {
    real_time("the kubelet is killed on threads of its own");
    let log = Log::new();
    let (mut node, api) = joined().await;
    let mut pod = sized("web", 100, "64Mi");
    pod["spec"]["containers"][0]["resizePolicy"] = json!([
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    api.put(&path("web"), pod);
    node.start_on_threads(&log).await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    let before = ids(&node.fake, "web");
    request_resize(&api, "web", 100, "128Mi");
    let restarted = |fake: &FakeRuntime| {
        let pod = fake.pod("web").expect("the pod");
        let mut running = pod.containers.iter().filter(|one| one.is_running());
        running.any(|one| !before.contains(&one.id))
    };
    node.fake.wait_until("it was restarted", WAIT_LIMIT, restarted).await;
    node.kill().await;
    node.start_on_threads(&log).await;
    wait_resized(&api, "web", "100m").await;
    let limit = &status(&api, "web")["containerStatuses"][0]["resources"]["limits"]["memory"];
    assert_eq!(limit, "128Mi");
    assert_eq!(node.fake.starts().len(), 2);
    node.stop().await;
}

#[tokio::test]
async fn pod_level_resources_that_no_file_has_are_no_resize_if_the_kubelet_before_observed_them() {
    let (mut node, api) = joined().await;
    api.put(&path("web"), sized("web", 100, "64Mi"));
    node.start().await;
    wait_runs(&node, "web").await;
    wait_resized(&api, "web", "100m").await;
    node.stop().await;
    // As if the files were those of a kubelet that does not resize pod-level resources, and stores no pods.
    std::fs::remove_dir_all(node.path("root/api-pods")).unwrap();
    let mut pod = api.object(&path("web")).unwrap();
    assert_eq!(pod["status"]["observedGeneration"], 1);
    pod["spec"]["resources"] = json!({"requests": {"cpu": "300m", "memory": "128Mi"}});
    api.put(&path("web"), pod);
    node.start().await;
    wait_for("the pod is shown", WAIT_LIMIT, async || {
        let status = status(&api, "web");
        let shown = status["resources"]["requests"]["cpu"] == "300m";
        holds(shown, status.to_string())
    })
    .await;
    let events = node.events().await;
    assert!(!events.contains("Resize"), "{events}");
    // A request that the kubelet before has not observed is a resize.
    node.stop().await;
    let mut pod = api.object(&path("web")).unwrap();
    pod["metadata"]["generation"] = json!(2);
    pod["spec"]["resources"] = json!({"requests": {"cpu": "400m", "memory": "128Mi"}});
    api.put(&path("web"), pod);
    node.start().await;
    wait_event(&node, "ResizeCompleted").await;
}
