//! Device plugins, which are real gRPC servers, and the pods that use their devices.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/resources/devices/tests/plugin.rs"]
mod plugin;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubelet::cri::v1::LinuxContainerResources;
use kubelet::resources::devices::proto::{
    self, CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount,
};
use kubelet::resources::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient;
use kubelet::resources::pod_resources::v1::{
    AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
};
use kubelet::resources::v1alpha1;
use kubelet::resources::v1alpha1::pod_resources_lister_client::PodResourcesListerClient as V1alpha1Client;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::api_source::{ForeignMount, bound, ids, joined, path, wait_event, wait_runs};
use crate::node::{Node, WAIT_LIMIT};
use crate::resize::{allocatable, sized};
use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{FakeRuntime, PodView};
use crate::support::http;
use crate::support::wait::{holds, wait_for};
use crate::sysfs;
use plugin::{FakePlugin, VERSION};

const GPU: &str = "example.com/gpu";

/// A pod of the API server that requests devices.
fn requesting(name: &str, resource: &str, amount: u32) -> Value {
    let mut pod = bound(name);
    let resources = json!({"limits": {resource: amount.to_string()}, "requests": {resource: amount.to_string()}});
    pod["spec"]["containers"][0]["resources"] = resources;
    pod
}

/// A node whose kubelet runs.
async fn started() -> (Node, FakeApiServer) {
    let (mut node, api) = joined().await;
    start(&mut node).await;
    (node, api)
}

/// Starts a kubelet that plugins can register with.
async fn start(node: &mut Node) {
    node.start().await;
    let socket = node.path("root/device-plugins/kubelet.sock");
    wait_for("the kubelet listens", WAIT_LIMIT, async || {
        holds(socket.exists(), "there is no socket")
    })
    .await;
}

fn listen(node: &Node, name: &str) -> FakePlugin {
    FakePlugin::listen(&node.path("root/device-plugins"), name)
}

/// Registers a plugin once the kubelet listens.
async fn register(plugin: &FakePlugin, resource: &str) {
    wait_for("the plugin is registered", WAIT_LIMIT, async || {
        let registered = plugin.register(resource, VERSION).await;
        registered.map_err(|error| error.to_string())
    })
    .await;
}

async fn wait_amounts(api: &FakeApiServer, resource: &str, capacity: &str, allocatable: &str) {
    wait_for("the node has the devices", WAIT_LIMIT, async || {
        let node = api.object("/api/v1/nodes/node1").unwrap_or_default();
        let status = &node["status"];
        let found = [&status["capacity"][resource], &status["allocatable"][resource]];
        holds(found == [capacity, allocatable], format!("{found:?}"))
    })
    .await;
}

async fn wait_failed(api: &FakeApiServer, name: &str) -> Value {
    wait_for("the pod has failed", WAIT_LIMIT, async || {
        let pod = api.object(&path(name)).unwrap_or_default();
        let failed = pod["status"]["phase"] == "Failed";
        failed.then(|| pod["status"].clone()).ok_or(pod.to_string())
    })
    .await
}

fn variable(pod: &PodView, name: &str) -> Option<String> {
    let mut envs = pod.containers.last()?.config.envs.iter();
    envs.find(|env| env.key == name).map(|env| String::from_utf8_lossy(&env.value).into_owned())
}

/// The devices of pods, by pod; no device is there twice.
fn shared_out(pods: &[PodView]) -> BTreeSet<String> {
    let devices: Vec<_> =
        pods.iter().map(|pod| variable(pod, "DEVICES").expect("devices")).collect();
    let different: BTreeSet<_> = devices.iter().cloned().collect();
    assert_eq!(different.len(), devices.len(), "{devices:?}");
    different
}

/// Everything that a container can get of a plugin.
fn everything(devices: &[String]) -> ContainerAllocateResponse {
    let id = devices.join(",");
    ContainerAllocateResponse {
        envs: BTreeMap::from([("DEVICES".to_owned(), id.clone())]),
        mounts: vec![Mount {
            container_path: "/usr/lib/gpu".into(),
            host_path: "/opt/gpu".into(),
            read_only: true,
        }],
        devices: vec![DeviceSpec {
            container_path: "/dev/gpu".into(),
            host_path: format!("/dev/gpu-{id}"),
            permissions: "rw".into(),
        }],
        annotations: BTreeMap::from([("gpu.example.com/id".to_owned(), id.clone())]),
        cdi_devices: vec![CdiDevice { name: format!("example.com/gpu={id}") }],
    }
}

#[tokio::test]
async fn a_pod_gets_what_its_devices_need_and_no_device_has_two_pods() {
    let (node, api) = started().await;
    let plugin = listen(&node, "gpu.sock");
    plugin.allocates(Arc::new(|devices| Some(everything(devices))));
    plugin.send(&["a", "b"]);
    register(&plugin, GPU).await;
    wait_amounts(&api, GPU, "2", "2").await;
    let mut pods = Vec::new();
    for name in ["first", "second"] {
        api.put(&path(name), requesting(name, GPU, 1));
        pods.push(wait_runs(&node, name).await);
    }
    assert_eq!(shared_out(&pods), ["a".to_owned(), "b".to_owned()].into());
    let id = variable(&pods[0], "DEVICES").unwrap();
    let config = &pods[0].containers[0].config;
    let [device] = config.devices.as_slice() else {
        panic!("{config:?}");
    };
    assert_eq!(device.host_path, format!("/dev/gpu-{id}"));
    assert_eq!((device.container_path.as_str(), device.permissions.as_str()), ("/dev/gpu", "rw"));
    assert_eq!(config.cdi_devices[0].name, format!("example.com/gpu={id}"));
    assert_eq!(config.annotations["gpu.example.com/id"], id);
    let mut mounts = config.mounts.iter();
    let mount = mounts.find(|mount| mount.container_path == "/usr/lib/gpu");
    let mount = mount.unwrap();
    assert_eq!((mount.host_path.as_str(), mount.readonly), ("/opt/gpu", true));

    api.put(&path("third"), requesting("third", GPU, 1));
    let status = wait_failed(&api, "third").await;
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    assert_eq!(
        status["message"],
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for \
         example.com/gpu. Requested: 1, Available: 0, which is unexpected"
    );
    // What a pod had is free once nothing of it runs.
    api.remove(&path("first"));
    api.put(&path("fourth"), requesting("fourth", GPU, 1));
    let pod = wait_runs(&node, "fourth").await;
    assert_eq!(variable(&pod, "DEVICES").as_deref(), Some(id.as_str()));
}

/// A pod whose devices are being prepared is going to run: no other pod gets what it requests.
#[tokio::test]
async fn the_requests_of_a_pod_that_waits_for_its_devices_count_for_other_pods() {
    let (node, api) = started().await;
    let all = allocatable(&api).await;
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a"]);
    register(&plugin, GPU).await;
    wait_amounts(&api, GPU, "1", "1").await;
    plugin.answer(false);
    let mut first = requesting("first", GPU, 1);
    for amounts in ["requests", "limits"] {
        let amounts = &mut first["spec"]["containers"][0]["resources"][amounts];
        amounts["cpu"] = json!(format!("{}m", all * 6 / 10));
    }
    api.put(&path("first"), first);
    wait_for("its devices are being prepared", WAIT_LIMIT, async || {
        holds(!plugin.calls().is_empty(), "no call")
    })
    .await;
    api.put(&path("second"), sized("second", all * 6 / 10, "64Mi"));
    wait_event(&node, "waiting for pods whose admission is pending").await;
    let begins = |fake: &FakeRuntime| fake.pod("second").is_some();
    assert!(node.never(Duration::from_millis(500), begins).await);
    plugin.answer(true);
    wait_runs(&node, "first").await;
    assert_eq!(wait_failed(&api, "second").await["reason"], "OutOfcpu");
    api.put(&path("third"), sized("third", all / 10, "64Mi"));
    wait_runs(&node, "third").await;
}

#[tokio::test]
async fn devices_of_an_ended_pod_are_free_while_its_volumes_cannot_be_torn_down() {
    let (node, api) = started().await;
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a"]);
    register(&plugin, GPU).await;
    let mut pod = requesting("first", GPU, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    api.put(&path("first"), pod);
    wait_runs(&node, "first").await;
    let volume = "root/pods/uid-of-first/volumes/kubernetes.io~csi/disk/mount";
    let Some(_mount) = ForeignMount::new(node.path(volume)) else {
        return;
    };
    assert!(node.fake.exit("first/main", 0));
    wait_event(&node, "kubernetes.io~csi/disk/mount is still mounted").await;
    api.put(&path("second"), requesting("second", GPU, 1));
    let second = wait_runs(&node, "second").await;
    assert_eq!(variable(&second, "DEVICES").as_deref(), Some("a"));
}

#[tokio::test]
async fn a_plugin_that_ends_and_comes_back_changes_no_pod() {
    let (node, api) = started().await;
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a", "b"]);
    register(&plugin, GPU).await;
    api.put(&path("first"), requesting("first", GPU, 1));
    let first = wait_runs(&node, "first").await;
    drop(plugin);
    wait_amounts(&api, GPU, "2", "0").await;
    // It waits for the plugin.
    api.put(&path("second"), requesting("second", GPU, 1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(node.fake.pod("second").is_none());
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a", "b", "c"]);
    register(&plugin, GPU).await;
    wait_amounts(&api, GPU, "3", "3").await;
    let second = wait_runs(&node, "second").await;
    shared_out(&[first.clone(), second]);
    assert_eq!(ids(&node.fake, "first"), [first.containers[0].id.clone()]);
}

#[tokio::test]
async fn containers_keep_their_devices_over_a_restart_of_the_kubelet() {
    let (mut node, api) = started().await;
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a", "b"]);
    register(&plugin, GPU).await;
    api.put(&path("first"), requesting("first", GPU, 1));
    let first = wait_runs(&node, "first").await;
    node.stop().await;
    let file = node.path("root/device-plugins/kubelet_internal_checkpoint");
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let entry = &saved["Data"]["PodDeviceEntries"][0];
    assert_eq!(entry["PodUID"], "uid-of-first");
    assert_eq!(entry["ContainerName"], "main");
    assert_eq!(entry["ResourceName"], GPU);
    assert_eq!(entry["DeviceIDs"]["-1"], json!(["a"]));
    assert_eq!(saved["Data"]["RegisteredDevices"][GPU], json!(["a", "b"]));

    node.start().await;
    wait_for("the kubelet removes the socket", WAIT_LIMIT, async || {
        holds(!plugin.socket.exists(), "it is there")
    })
    .await;
    wait_amounts(&api, GPU, "0", "0").await;
    api.put(&path("second"), requesting("second", GPU, 1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pod = api.object(&path("second")).unwrap();
    assert_ne!(pod["status"]["phase"], "Failed", "{pod}");
    assert!(node.fake.pod("second").is_none());
    drop(plugin);
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a", "b"]);
    register(&plugin, GPU).await;
    let second = wait_runs(&node, "second").await;
    shared_out(&[first.clone(), second]);
    assert_eq!(ids(&node.fake, "first"), [first.containers[0].id.clone()]);
    assert_eq!(plugin.calls(), [["b"]]);
}

#[tokio::test]
async fn hostile_plugins_harm_no_other_pod() {
    let (node, api) = started().await;
    let socket = node.path("root/device-plugins/kubelet.sock");
    let good = listen(&node, "good.sock");
    good.send(&["a"]);
    register(&good, GPU).await;

    let old = listen(&node, "old.sock");
    let refused = old.register("example.com/old", "v1alpha").await;
    let text = refused.unwrap_err().message().to_owned();
    assert!(text.contains("is not supported by kubelet"), "{text}");
    for name in ["../../etc.sock", "gpu", "kubernetes.io/gpu", ""] {
        assert!(old.register(name, VERSION).await.is_err(), "{name}");
    }

    let silent = listen(&node, "silent.sock");
    silent.send(&["x"]);
    silent.allocates(Arc::new(|_| None));
    register(&silent, "example.com/silent").await;

    let huge = listen(&node, "huge.sock");
    let ids: Vec<_> = (0..150_000).map(|n| plugin::device(&n.to_string())).collect();
    huge.send_devices(ids);
    register(&huge, "example.com/huge").await;

    let garbage = listen(&node, "garbage.sock");
    garbage.send(&["g"]);
    garbage.allocates(Arc::new(|_| {
        Some(ContainerAllocateResponse {
            envs: BTreeMap::from([("".to_owned(), "\u{0}=".to_owned())]),
            mounts: vec![Mount::default(); 3],
            devices: vec![DeviceSpec::default(); 3],
            ..ContainerAllocateResponse::default()
        })
    }));
    register(&garbage, "example.com/garbage").await;

    for _ in 0..100 {
        let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
        stream.write_all(&[0xff; 1000]).await.unwrap();
    }

    wait_amounts(&api, "example.com/silent", "1", "1").await;
    for (name, resource) in [
        ("of-silent", "example.com/silent"),
        ("of-garbage", "example.com/garbage"),
        ("of-good", GPU),
    ] {
        api.put(&path(name), requesting(name, resource, 1));
    }
    api.put(&path("plain"), bound("plain"));
    wait_runs(&node, "plain").await;
    let pod = wait_runs(&node, "of-good").await;
    assert_eq!(variable(&pod, "DEVICES").as_deref(), Some("a"));
    wait_amounts(&api, "example.com/huge", "0", "0").await;
    wait_amounts(&api, GPU, "1", "1").await;
    assert!(node.fake.pod("of-silent").is_none(), "it waits for its plugin");
}

#[tokio::test]
async fn the_health_of_devices_is_in_the_status_of_their_pod() {
    let (node, api) = started().await;
    let plugin = listen(&node, "gpu.sock");
    plugin.send(&["a"]);
    register(&plugin, GPU).await;
    api.put(&path("first"), requesting("first", GPU, 1));
    wait_runs(&node, "first").await;
    for health in ["Healthy", "Unhealthy"] {
        plugin.send_devices(vec![proto::Device { health: health.into(), ..plugin::device("a") }]);
        let expected = json!([{
            "name": GPU,
            "resources": [{"resourceID": "a", "health": health}],
        }]);
        wait_for("the status shows it", WAIT_LIMIT, async || {
            let pod = api.object(&path("first")).unwrap_or_default();
            let status = &pod["status"]["containerStatuses"][0];
            holds(status["allocatedResourcesStatus"] == expected, status.to_string())
        })
        .await;
    }
    let running = node.fake.pod("first").unwrap();
    assert!(running.containers[0].is_running());
}

/// The pods that agents see once Get finds a completed one no longer.
async fn listed_after_completion(config: &str) -> Vec<String> {
    let (mut node, api) = joined().await;
    node.configure(config);
    start(&mut node).await;
    let mut pod = bound("done");
    pod["spec"]["restartPolicy"] = json!("Never");
    api.put(&path("done"), pod);
    wait_runs(&node, "done").await;
    let agent = agent(&node.path("root")).await;
    let get = async || {
        let request =
            GetPodResourcesRequest { pod_name: "done".into(), pod_namespace: "default".into() };
        agent.clone().get(request).await
    };
    assert!(get().await.is_ok());
    assert!(node.fake.exit("done/main", 0));
    let error = wait_for("the pod has no resources", WAIT_LIMIT, async || {
        get().await.err().ok_or_else(|| "it has".to_owned())
    });
    let expected = "pod done in namespace default not found";
    assert_eq!(error.await.message(), expected);
    let list = agent.clone().list(ListPodResourcesRequest {}).await.unwrap();
    let pods = list.into_inner().pod_resources.into_iter();
    pods.map(|pod| pod.name).collect()
}

#[tokio::test]
async fn a_completed_pod_is_listed_only_if_the_feature_gate_is_off() {
    let gate = |on| format!("featureGates: {{KubeletPodResourcesListUseActivePods: {on}}}");
    let listed = listed_after_completion(&gate(true)).await;
    assert_eq!(listed, Vec::<String>::new());
    assert_eq!(listed_after_completion(&gate(false)).await, ["done"]);
}

pub(crate) async fn agent(root: &Path) -> PodResourcesListerClient<tonic::transport::Channel> {
    let socket = root.join("pod-resources/kubelet.sock");
    PodResourcesListerClient::new(plugin::dial(&socket).await)
}

#[tokio::test]
async fn agents_read_which_containers_have_which_devices_at_a_limited_rate() {
    let (node, api) = started().await;
    let plugin = listen(&node, "gpu.sock");
    let near = |id: &str, nodes: &[i64]| proto::Device {
        topology: Some(proto::TopologyInfo {
            nodes: nodes.iter().map(|id| proto::NumaNode { id: *id }).collect(),
        }),
        ..plugin::device(id)
    };
    plugin.send_devices(vec![near("a", &[1]), plugin::device("b")]);
    register(&plugin, GPU).await;
    wait_amounts(&api, GPU, "2", "2").await;
    api.put(&path("first"), requesting("first", GPU, 1));
    api.put(&path("plain"), bound("plain"));
    wait_runs(&node, "first").await;
    wait_runs(&node, "plain").await;
    let mut agent = agent(&node.path("root")).await;

    let list = agent.list(ListPodResourcesRequest {}).await.unwrap();
    let mut pods = list.into_inner().pod_resources;
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    let shown: Vec<_> = pods
        .iter()
        .map(|pod| (pod.name.as_str(), pod.namespace.as_str(), pod.containers.len()))
        .collect();
    assert_eq!(shown, [("first", "default", 1), ("plain", "default", 1)]);
    let [device] = pods[0].containers[0].devices.as_slice() else {
        panic!("{pods:?}");
    };
    assert_eq!(
        (device.resource_name.as_str(), device.device_ids.as_slice()),
        (GPU, &["a".to_owned()][..])
    );
    assert_eq!(device.topology.as_ref().unwrap().nodes[0].id, 1);
    assert!(pods[1].containers[0].devices.is_empty());

    let request = |name: &str| GetPodResourcesRequest {
        pod_name: name.into(),
        pod_namespace: "default".into(),
    };
    let one = agent.get(request("first")).await.unwrap().into_inner();
    assert_eq!(one.pod_resources.as_ref(), pods.first());
    let error = agent.get(request("none")).await.unwrap_err();
    assert_eq!(error.message(), "pod none in namespace default not found");

    // The first version of the API has the devices as well.
    let socket = node.path("root/pod-resources/kubelet.sock");
    let mut early = V1alpha1Client::new(plugin::dial(&socket).await);
    let list = early.list(v1alpha1::ListPodResourcesRequest {}).await.unwrap();
    let mut listed = list.into_inner().pod_resources;
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert_eq!(
        listed[0].containers[0].devices,
        [v1alpha1::ContainerDevices { resource_name: GPU.into(), device_ids: vec!["a".into()] }]
    );

    let all = agent.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap();
    let ids: Vec<_> =
        all.into_inner().devices.into_iter().flat_map(|device| device.device_ids).collect();
    assert_eq!(ids, ["a", "b"]);

    let burst = (0..200).map(|_| {
        let mut agent = agent.clone();
        async move { agent.list(ListPodResourcesRequest {}).await }
    });
    let results = futures::future::join_all(burst).await;
    let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(!refused.is_empty() && refused.len() < 200);
    for error in refused {
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert_eq!(error.message(), "rejected by rate limit");
    }
    let (_, text) = http::get(node.read_only_port(), "/metrics").await.unwrap();
    for line in [
        "kubelet_pod_resources_endpoint_errors_get{server_api_version=\"v1\"} 1",
        "kubelet_pod_resources_endpoint_requests_get{server_api_version=\"v1\"} 2",
        "kubelet_device_plugin_registration_total{resource_name=\"example.com/gpu\"} 1",
        "kubelet_device_plugin_alloc_duration_seconds_count{resource_name=\"example.com/gpu\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// A node with two CPUs near to each of two NUMA nodes; CPUs and devices of a container have to be near to one.
async fn node_with_two() -> (Node, FakeApiServer) {
    let (mut node, api) = joined().await;
    sysfs::four_cpus(&node.path("sys"), 2);
    node.configure("cpuManagerPolicy: static");
    node.configure("reservedSystemCPUs: \"0\"");
    node.configure("topologyManagerPolicy: single-numa-node");
    (node, api)
}

/// A plugin on [`node_with_two`], with devices near to these NUMA nodes.
async fn plugin_near(node: &Node, api: &FakeApiServer, devices: &[(&str, i64)]) -> FakePlugin {
    let plugin = listen(node, "gpu.sock");
    let near = |(id, numa): &(&str, i64)| proto::Device {
        topology: Some(proto::TopologyInfo { nodes: vec![proto::NumaNode { id: *numa }] }),
        ..plugin::device(id)
    };
    plugin.send_devices(devices.iter().map(near).collect());
    register(&plugin, GPU).await;
    let number = devices.len().to_string();
    wait_amounts(api, GPU, &number, &number).await;
    plugin
}

/// Puts a Guaranteed pod with devices on the API server.
fn put_guaranteed(api: &FakeApiServer, name: &str, (cpu, memory): (&str, &str), gpus: &str) {
    let mut pod = bound(name);
    let amounts = json!({"cpu": cpu, "memory": memory, GPU: gpus});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    api.put(&path(name), pod);
}

/// The resources with which the container of a pod was created.
async fn created_with(node: &Node, name: &str) -> LinuxContainerResources {
    let pod = wait_runs(node, name).await;
    let linux = pod.containers[0].config.linux.clone().unwrap();
    linux.resources.unwrap()
}

#[tokio::test]
async fn the_cpus_and_devices_of_a_container_are_near_to_one_numa_node() {
    let (mut node, api) = node_with_two().await;
    start(&mut node).await;
    let plugin = plugin_near(&node, &api, &[("a", 0), ("b", 1), ("c", 1)]).await;
    // Three devices are not near to one node.
    put_guaranteed(&api, "spread", ("1", "64Mi"), "3");
    let status = wait_failed(&api, "spread").await;
    assert_eq!(status["reason"], "TopologyAffinityError");
    // Two devices are near to the second node only, and so is its CPU then.
    put_guaranteed(&api, "near", ("1", "64Mi"), "2");
    assert_eq!(created_with(&node, "near").await.cpuset_cpus, "2");
    assert_eq!(plugin.calls(), [["b", "c"]]);
}

#[tokio::test]
async fn a_pod_is_aligned_beside_one_whose_devices_are_being_prepared() {
    let (mut node, api) = node_with_two().await;
    for numa in 0..2 {
        let meminfo = node.path(&format!("sys/devices/system/node/node{numa}/meminfo"));
        std::fs::write(meminfo, format!("Node {numa} MemTotal: 1048576 kB\n")).unwrap();
    }
    node.configure("memoryManagerPolicy: Static");
    node.configure("systemReserved: {memory: 128Mi}");
    node.configure("reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]");
    start(&mut node).await;
    let plugin = plugin_near(&node, &api, &[("a", 0), ("b", 0), ("c", 1)]).await;
    // The first node has two devices, and memory for one of the pods.
    plugin.answer(false);
    for (number, name) in [(1, "first"), (2, "second")] {
        put_guaranteed(&api, name, ("100m", "600Mi"), "1");
        wait_for("the plugin is called", WAIT_LIMIT, async || {
            let calls = plugin.calls();
            holds(calls.len() == number, format!("{calls:?}"))
        })
        .await;
    }
    plugin.answer(true);
    assert_eq!(created_with(&node, "first").await.cpuset_mems, "0");
    assert_eq!(created_with(&node, "second").await.cpuset_mems, "1");
    assert_eq!(plugin.calls(), [["a"], ["c"]]);
    let (_, text) = http::get(node.read_only_port(), "/metrics").await.unwrap();
    for line in [
        "kubelet_topology_manager_admission_requests_total 2",
        "kubelet_memory_manager_pinning_requests_total 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}
