//! Claims of pods, whose driver is a real gRPC server.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/resources/dra/tests/driver.rs"]
mod driver;

use kubelet::resources::dra::{health_proto, proto};
use kubelet::resources::plugin_manager::registration_proto;
use kubelet::resources::pod_resources::v1::GetPodResourcesRequest;
use serde_json::{Value, json};

use crate::api_source::{bound, joined, path, wait_runs};
use crate::devices::agent;
use crate::node::{Node, WAIT_LIMIT};
use crate::registrar;
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::PodView;
use crate::support::wait::{holds, wait_for};
use driver::{FakeDriver, V1};
use health_proto::HealthStatus;

const DRIVER: &str = "dra.example.com";

/// A claim that is allocated to a pod, and the pod with it.
fn put(api: &FakeApiServer, name: &str) {
    let uid = format!("uid-of-{name}");
    let claim = json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("claim-{name}")},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [
                {"driver": DRIVER, "pool": "pool", "device": name, "request": "r"}]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
        },
    });
    let place = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
    api.put(&place, claim);
    let mut pod = bound(name);
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    api.put(&path(name), pod);
}

fn listen(node: &Node) -> FakeDriver {
    FakeDriver::listen(&node.path("root/plugins_registry"), DRIVER, &[V1])
}

/// The names by which the runtime knows the devices of the newest container.
fn devices(pod: &PodView) -> Vec<String> {
    let newest = pod.containers.last().expect("a container");
    let devices = newest.config.cdi_devices.iter();
    devices.map(|device| device.name.clone()).collect()
}

/// Deletes a pod as a user does.
fn delete(api: &FakeApiServer, name: &str) {
    let mut pod = api.object(&path(name)).expect("the pod");
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(1);
    api.put(&path(name), pod);
}

#[tokio::test]
async fn a_pod_gets_the_devices_of_its_claim_and_is_gone_only_after_they_were_given_back() {
    let (mut node, api) = joined().await;
    node.start().await;
    let driver = listen(&node);
    driver.registered().await;
    put(&api, "first");
    let pod = wait_runs(&node, "first").await;
    assert_eq!(devices(&pod), ["example.com/dra=first"]);
    assert_eq!(driver.calls(), ["prepare first"]);

    driver.reports(&[("first", HealthStatus::Unhealthy)], "too hot");
    let expected = json!([{
        "name": "claim:gpu",
        "resources": [{"resourceID": "example.com/dra=first", "health": "Unhealthy", "message": "too hot"}],
    }]);
    wait_for("the status shows its health", WAIT_LIMIT, async || {
        let pod = api.object(&path("first")).unwrap_or_default();
        let status = &pod["status"]["containerStatuses"][0];
        holds(status["allocatedResourcesStatus"] == expected, status.to_string())
    })
    .await;
    let request =
        GetPodResourcesRequest { pod_name: "first".into(), pod_namespace: "default".into() };
    let mut agent = agent(&node.path("root")).await;
    let shown = agent.get(request).await.unwrap().into_inner();
    let container = shown.pod_resources.unwrap().containers.remove(0);
    let claim = &container.dynamic_resources[0];
    let device = &claim.claim_resources[0];
    assert_eq!(
        (claim.claim_name.as_str(), device.driver_name.as_str(), device.device_name.as_str()),
        ("first", DRIVER, "first")
    );
    assert_eq!(device.cdi_devices[0].name, "example.com/dra=first");

    // The container after it has them as well, also with the next kubelet.
    node.stop().await;
    node.start().await;
    let name = &pod.containers[0].name;
    assert!(node.fake.exit(&format!("first/{name}"), 1));
    node.fake
        .wait_until("it was restarted", WAIT_LIMIT, |fake| {
            let pod = fake.pod("first");
            pod.is_some_and(|pod| {
                pod.containers.iter().any(|one| one.attempt == 1 && one.is_running())
            })
        })
        .await;
    assert_eq!(devices(&node.fake.pod("first").unwrap()), ["example.com/dra=first"]);

    driver.unprepares(Err("in use".into()));
    delete(&api, "first");
    wait_for("the driver is called", WAIT_LIMIT, async || {
        let calls = driver.calls();
        holds(calls.last().is_some_and(|call| call == "unprepare first"), format!("{calls:?}"))
    })
    .await;
    let object: Value = api.object(&path("first")).expect("the pod is not gone yet");
    assert_eq!(object["status"]["phase"], "Running", "{object}");
    driver.unprepares(Ok(()));
    wait_for("the pod is gone", WAIT_LIMIT, async || {
        holds(api.object(&path("first")).is_none(), "it is there")
    })
    .await;
}

#[tokio::test]
async fn a_pod_waits_for_its_driver_and_starts_as_soon_as_that_registers() {
    let (mut node, api) = joined().await;
    node.start().await;
    put(&api, "early");
    let expected = format!(
        "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver {DRIVER} is not registered"
    );
    wait_for("an event says so", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains(&expected), events)
    })
    .await;
    // One that never starts can be deleted.
    put(&api, "never");
    delete(&api, "never");
    wait_for("it is gone", WAIT_LIMIT, async || {
        holds(api.object(&path("never")).is_none(), "it is there")
    })
    .await;
    let driver = listen(&node);
    let pod = wait_runs(&node, "early").await;
    assert_eq!(devices(&pod), ["example.com/dra=early"]);
    assert_eq!(driver.calls(), ["prepare early"]);
    let deleted = api.seen().into_iter().filter(|seen| seen.method == "DELETE");
    let slices: Vec<_> = deleted.filter(|seen| seen.path.contains("resourceslices")).collect();
    assert_eq!(slices.len(), 1, "those of the time before the start: {slices:?}");
}
