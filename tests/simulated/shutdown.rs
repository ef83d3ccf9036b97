//! Shutdowns of the node that logind announces.

use crate::node::{Node, WAIT_LIMIT, full};
use crate::pods::simple;
use crate::support::fake_runtime::{FakeRuntime, Fault, Rpc};
use crate::support::wait::{holds, wait_for};
use crate::systemd::FakeSystemd;

/// Longer than the phases of any test.
const INHIBIT_DELAY_MICROS: u64 = 3_600_000_000;

/// A node whose static pod runs, and its logind.
async fn running() -> (Node, FakeSystemd) {
    let systemd = FakeSystemd::start().await;
    systemd.state.lock().inhibit_delay = INHIBIT_DELAY_MICROS;
    let mut node = Node::new().await;
    node.configure("shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s");
    node.system_bus_at(&systemd.address);
    node.start().await;
    node.put(&simple("web"));
    wait_runs(&node, 1).await;
    wait_for("logind waits", WAIT_LIMIT, async || {
        let locks = systemd.state.lock().locks.len();
        holds(locks == 1, format!("{locks} locks"))
    })
    .await;
    (node, systemd)
}

/// Waits until the pod runs in the sandbox of this number.
async fn wait_runs(node: &Node, sandboxes: usize) {
    let runs = |fake: &FakeRuntime| {
        let main = fake.container(&format!("{}/main", full("web")));
        let of_web = fake.pods().into_iter().filter(|pod| pod.name == "web-node1");
        main.is_some_and(|main| main.is_running()) && of_web.count() == sandboxes
    };
    node.fake.wait_until("the pod runs", WAIT_LIMIT, runs).await;
}

async fn wait_phase(node: &Node, expected: &str, reason: Option<&str>) {
    let what = format!("the pod is {expected}");
    wait_for(&what, WAIT_LIMIT, async || {
        let pods = node.pods().await;
        let status = pods.iter().find_map(|pod| pod.status.as_ref());
        let is = status.is_some_and(|status| {
            status.phase.as_deref() == Some(expected) && status.reason.as_deref() == reason
        });
        holds(is, format!("{status:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_static_pod_that_a_shutdown_stopped_runs_again_after_it() {
    let (mut node, systemd) = running().await;
    systemd.prepare_for_shutdown(true).await;
    wait_phase(&node, "Failed", Some("Terminated")).await;
    node.stop().await;
    // The machine is up again.
    systemd.prepare_for_shutdown(false).await;
    node.start().await;
    wait_runs(&node, 2).await;
    wait_phase(&node, "Running", None).await;
}

#[tokio::test]
async fn a_cancelled_shutdown_brings_static_pods_back_and_those_that_came_meanwhile() {
    let (node, systemd) = running().await;
    systemd.prepare_for_shutdown(true).await;
    wait_phase(&node, "Failed", Some("Terminated")).await;
    node.put(&simple("late"));
    wait_for("the late pod is rejected", WAIT_LIMIT, async || {
        let pods = node.pods().await;
        let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
        let mut reasons = statuses.filter_map(|status| status.reason.as_deref());
        holds(reasons.any(|reason| reason == "NodeShutdown"), "no reason")
    })
    .await;
    systemd.prepare_for_shutdown(false).await;
    let both = |fake: &FakeRuntime| {
        ["web", "late"].iter().all(|name| {
            let main = fake.container(&format!("{}/main", full(name)));
            main.is_some_and(|main| main.is_running())
        })
    };
    node.fake.wait_until("both pods run", WAIT_LIMIT, both).await;
    wait_for("nothing of the shutdown is left", WAIT_LIMIT, async || {
        let pods = node.pods().await;
        let is_running = |pod: &k8s_openapi::api::core::v1::Pod| {
            let status = pod.status.as_ref();
            status.is_some_and(|status| {
                status.phase.as_deref() == Some("Running") && status.reason.is_none()
            })
        };
        holds(pods.len() == 2 && pods.iter().all(is_running), format!("{pods:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_kubelet_that_starts_during_a_shutdown_stops_the_pods_that_run_in_order() {
    let (mut node, systemd) = running().await;
    wait_phase(&node, "Running", None).await;
    node.stop().await;
    systemd.prepare_for_shutdown(true).await;
    let lists = [Rpc::ListPodSandbox, Rpc::StreamPodSandboxes];
    for rpc in lists {
        node.fake.inject(Fault::hang(rpc));
    }
    node.start().await;
    wait_for("it knows of the shutdown", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains("detected shutdown event"), events)
    })
    .await;
    // Its pods are admitted only now.
    node.fake.clear_faults();
    wait_phase(&node, "Failed", Some("Terminated")).await;
    let main = node.fake.container(&format!("{}/main", full("web")));
    assert!(main.is_none_or(|main| !main.is_running()));
}
