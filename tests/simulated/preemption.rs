//! Pods that make room for critical ones.

use std::time::Duration;

use serde_json::json;

use crate::api_source::{joined, path, wait_runs};
use crate::node::WAIT_LIMIT;
use crate::resize::{allocatable, request_resize, sized, wait_condition, wait_resized};
use crate::support::fake_runtime::{Behaviour, FakeRuntime};
use crate::support::wait::{holds, wait_for};

#[tokio::test]
async fn a_pod_ends_in_good_order_before_the_critical_one_that_needs_its_room_runs() {
    let (mut node, api) = joined().await;
    let fails = Behaviour::ends_slowly(Duration::ZERO, 143);
    node.fake.behave("main", fails);
    node.start().await;
    let all = allocatable(&api).await;
    api.put(&path("large"), sized("large", all * 6 / 10, "64Mi"));
    api.put(&path("small"), sized("small", all / 10, "64Mi"));
    for name in ["large", "small"] {
        wait_runs(&node, name).await;
    }
    let mut critical = sized("critical", all / 2, "64Mi");
    critical["spec"]["priority"] = json!(2_000_000_000);
    api.put(&path("critical"), critical);
    let together = |fake: &FakeRuntime| {
        let runs = |name: &str| {
            let pod = fake.pod(name);
            pod.is_some_and(|pod| pod.containers.iter().any(|one| one.is_running()))
        };
        runs("critical") && runs("large")
    };
    assert!(node.never(Duration::from_millis(300), together).await);
    wait_runs(&node, "critical").await;
    wait_for("the large pod has failed", WAIT_LIMIT, async || {
        let status = api.object(&path("large")).unwrap_or_default()["status"].clone();
        let says = status["phase"] == "Failed"
            && status["reason"] == "Preempting"
            && status["message"] == "Preempted in order to admit critical pod"
            && status["conditions"]
                .to_string()
                .contains("Pod was preempted by Kubelet to accommodate a critical pod.");
        holds(says, status.to_string())
    })
    .await;
    wait_runs(&node, "small").await;
    let (_, metrics) = node.get("/metrics").await;
    assert!(metrics.contains("kubelet_preemptions{preemption_signal=\"cpu\"} 1"), "{metrics}");
    // One that nothing can make room for is rejected, and nothing else happens.
    let mut greedy = sized("greedy", 2 * all, "64Mi");
    greedy["spec"]["priority"] = json!(2_000_000_000);
    api.put(&path("greedy"), greedy);
    wait_for("the greedy pod is rejected", WAIT_LIMIT, async || {
        let status = api.object(&path("greedy")).unwrap_or_default()["status"].clone();
        holds(status["reason"] == "UnexpectedAdmissionError", status.to_string())
    })
    .await;
    wait_runs(&node, "small").await;
}

#[tokio::test]
async fn a_critical_pod_that_is_resized_has_others_make_room() {
    let (mut node, api) = joined().await;
    let fails = Behaviour::ends_slowly(Duration::ZERO, 143);
    node.fake.behave("main", fails);
    node.start().await;
    let all = allocatable(&api).await;
    for (name, milli) in [("critical", all / 4), ("other-critical", all / 16)] {
        let mut critical = sized(name, milli, "64Mi");
        critical["spec"]["priority"] = json!(2_000_000_000);
        api.put(&path(name), critical);
    }
    api.put(&path("large"), sized("large", all / 2, "64Mi"));
    api.put(&path("small"), sized("small", all / 8, "64Mi"));
    for name in ["critical", "other-critical", "large", "small"] {
        wait_runs(&node, name).await;
    }
    // No whole CPUs, which are shown without a unit.
    let more = all / 2 / 100 * 100 + 10;
    request_resize(&api, "critical", more, "64Mi");
    wait_resized(&api, "critical", &format!("{more}m")).await;
    wait_for("the large pod has failed", WAIT_LIMIT, async || {
        let status = api.object(&path("large")).unwrap_or_default()["status"].clone();
        holds(status["reason"] == "Preempting", status.to_string())
    })
    .await;
    wait_runs(&node, "small").await;
    // More than pods of lesser priority could give.
    request_resize(&api, "critical", all, "64Mi");
    let refused = wait_condition(&api, "critical", "PodResizePending", "Deferred").await;
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("no set of running pods found"), "{refused}");
    wait_runs(&node, "small").await;
}
