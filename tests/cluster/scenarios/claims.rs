//! Devices that the scheduler allocates to claims, whose driver is a real gRPC server.

#[allow(dead_code, unreachable_pub)]
#[path = "../../../src/resources/dra/tests/driver.rs"]
mod driver;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet::resources::dra::{health_proto, proto};

use crate::cluster::Cluster;
use crate::{registrar, registration_proto};
use driver::{FakeDriver, V1, device};
use health_proto::HealthStatus;

const DRIVER: &str = "dra.example.com";
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
/// The node has one device. A driver makes this object, and makes it again when it is deleted.
const SLICE: &str = "
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node1-dra}
spec:
  driver: dra.example.com
  nodeName: node1
  pool: {name: pool, generation: 1, resourceSliceCount: 1}
  devices: [{name: one}]
";
const OBJECTS: &str = "
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: dra.example.com}
spec: {selectors: [{cel: {expression: device.driver == 'dra.example.com'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: dra.example.com}}]}}}
";
/// What the runtime does for a container with the device.
const CDI: &str = r#"{"cdiVersion": "0.6.0", "kind": "example.com/dra",
    "devices": [{"name": "one", "containerEdits": {"env": ["DEVICE=one"]}}]}"#;

fn claiming(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{{name: device, resourceClaimTemplateName: one}}]
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '1000']
    resources: {{claims: [{{name: device}}]}}
"
    )
}

/// The directory in which the kubelet finds plugins, from outside of its namespaces.
fn registry(cluster: &Cluster) -> PathBuf {
    let pid = cluster.kubelet.pid().expect("a running kubelet");
    PathBuf::from(format!("/proc/{pid}/root{REGISTRY}"))
}

pub async fn a_pod_has_the_device_that_was_allocated_to_it_and_gives_it_back() {
    let mut cluster = Cluster::start_on_containerd2();
    let directory = cluster.dir().join("private/containerd/cdi");
    let directory = directory.display();
    let script = format!("mkdir -p {directory} && echo '{CDI}' > {directory}/dra.json");
    cluster.inside(&["sh", "-c", &script]);
    let driver = FakeDriver::listen_as(&registry(&cluster), Path::new(REGISTRY), DRIVER, &[V1]);
    driver.prepares(Arc::new(|_| Ok(vec![device("one")])));
    let status = driver.registered().await;
    assert!(status.plugin_registered, "{status:?}");
    driver.reports(&[("one", HealthStatus::Healthy)], "");
    cluster.create(OBJECTS);
    cluster.create(SLICE);

    cluster.create(&claiming("first"));
    cluster.wait("condition=Ready", "pod/first");
    let has = |cluster: &Cluster, pod: &str| {
        let shown = cluster.kubectl(&["exec", pod, "--", "sh", "-c", "echo $DEVICE"]);
        assert_eq!(shown.trim(), "one");
    };
    has(&cluster, "first");
    cluster.wait(
        "jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].health}=Healthy",
        "pod/first",
    );
    let pod = cluster.get(&["pod", "first"]);
    let shown = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0];
    assert_eq!(shown["name"], "claim:device");
    assert_eq!(shown["resources"][0]["resourceID"], "example.com/dra=one");

    // The second pod waits for the device, which is free only after it was given back.
    cluster.create(&claiming("second"));
    cluster.restart_kubelet();
    cluster.wait("delete", "resourceslice/node1-dra");
    cluster.create(SLICE);
    cluster.kubectl(&["exec", "first", "--", "true"]);
    cluster.kubectl(&["delete", "pod", "first"]);
    cluster.wait("condition=Ready", "pod/second");
    has(&cluster, "second");
    let calls: Vec<_> = driver.calls();
    let kinds: Vec<_> = calls.iter().filter_map(|call| call.split(' ').next()).collect();
    assert_eq!(kinds, ["prepare", "unprepare", "prepare"], "{calls:?}");
    cluster.kubectl(&["delete", "pod", "second"]);
    assert_eq!(driver.calls().len(), 4);
}
