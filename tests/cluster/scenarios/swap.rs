//! A node that changes from the Go kubelet to this one and back, while pods run.

#[allow(dead_code, unreachable_pub)]
#[path = "../../../src/resources/devices/tests/plugin.rs"]
mod plugin;

use std::path::PathBuf;
use std::time::Duration;

use kubelet::resources::devices::proto;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::preflight::is_safe_and_changes_nothing;
use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::inventory::{instances, nothing_is_leaked};
use crate::kubelet::Flavour;
use crate::support::runner::Flavour as _;
use crate::support::wait::{holds, wait_for};
use plugin::{FakePlugin, VERSION};

/// Each with something that a kubelet prepares and could prepare in another way than the one before.
pub const PODS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {mode: first}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, part: all}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - {name: first, image: 'localhost/busybox:dev', command: ['true']}
      - {name: beside, image: 'localhost/busybox:dev', command: [sleep, '1000'], restartPolicy: Always}
      containers:
      - name: main
        image: localhost/busybox:dev
        command: [httpd, -f, -p, '8080', -h, /etc]
        readinessProbe: {httpGet: {path: /passwd, port: 8080}, periodSeconds: 1}
        livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {memory: 64Mi}}
        env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: MODE, valueFrom: {configMapKeyRef: {name: words, key: mode}}}
        volumeMounts: [{name: words, mountPath: /words}, {name: scratch, mountPath: /scratch}]
      volumes: [{name: words, configMap: {name: words}}, {name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: once, labels: {part: all}}
spec:
  restartPolicy: Never
  containers: [{name: main, image: 'localhost/busybox:dev', command: ['false']}]
";

pub const STATIC_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}]
";

/// The containers that run, with the attempt of each.
pub fn running(cluster: &Cluster) -> Vec<String> {
    let list = cluster.crictl(&["ps"]);
    let containers = list["containers"].as_array().unwrap().iter();
    let mut found: Vec<_> =
        containers.map(|one| format!("{} {}", one["id"], one["metadata"])).collect();
    found.sort();
    found
}

/// That of the kubelet that reported the node last.
pub fn version(cluster: &Cluster) -> Value {
    let node = cluster.get(&["node", NODE]);
    let version = node["status"]["nodeInfo"]["kubeletVersion"].clone();
    assert!(version.is_string(), "{node}");
    version
}

pub async fn a_node_changes_from_the_go_kubelet_and_back_and_no_container_restarts() {
    Flavour::Go.make_current();
    let mut cluster = Cluster::start();
    let go = version(&cluster);
    cluster.create(PODS);
    cluster.manifests().put("static.yaml", STATIC_POD);
    cluster.rolled_out("web");
    cluster.wait("create", "pod/static-node1");
    cluster.wait("condition=Ready", "pod/static-node1");
    let mirror = cluster.get(&["pod/static-node1"])["metadata"]["uid"].clone();
    cluster.wait("jsonpath={.status.phase}=Failed", "pod/once");
    let before = instances(&cluster, "part=all");
    let containers = running(&cluster);

    is_safe_and_changes_nothing(&cluster);
    Flavour::Rust.make_current();
    cluster.restart_kubelet();
    wait_for("this kubelet reports the node", DEADLINE, || async {
        holds(version(&cluster) != go, "the Go kubelet's report")
    })
    .await;
    // A change reaches a pod that the other kubelet prepared.
    cluster.kubectl(&["patch", "configmap", "words", "-p", r#"{"data":{"mode":"second"}}"#]);
    wait_for("the changed object is in the volume", DEADLINE, || async {
        let read = ["exec", "deployment/web", "-c", "main", "--", "cat", "/words/mode"];
        let shown = cluster.try_kubectl(&read)?;
        holds(shown == "second", shown)
    })
    .await;
    assert_eq!(running(&cluster), containers);
    assert_eq!(instances(&cluster, "part=all"), before);
    cluster.wait("condition=Ready", "pod/static-node1");
    assert_eq!(cluster.get(&["pod/static-node1"])["metadata"]["uid"], mirror);

    Flavour::Go.make_current();
    cluster.restart_kubelet();
    wait_for("the Go kubelet reports the node", DEADLINE, || async {
        holds(version(&cluster) == go, "this kubelet's report")
    })
    .await;
    // Long enough for its first sync of every pod.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(running(&cluster), containers);

    Flavour::Rust.make_current();
    cluster.restart_kubelet();
    cluster.manifests().remove("static.yaml");
    cluster.kubectl(&["delete", "deployment/web", "pod/once"]);
    cluster.wait("delete", "pod/static-node1");
    nothing_is_leaked(&cluster).await;
}

const GPU: &str = "example.com/gpu";
const DEVICES: [&str; 2] = ["one", "two"];
/// One of the CPUs is for everybody, and half of it for pods.
const FLAGS: [&str; 2] = ["--cpu-manager-policy=static", "--system-reserved=cpu=500m"];

/// A pod whose container has these resources.
fn with_resources(name: &str, resources: &Value) -> String {
    let container = json!({
        "name": "main", "image": "localhost/busybox:dev", "command": ["sleep", "1000"], "resources": resources,
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"part": "all"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    })
    .to_string()
}

/// What containers have of resources that a kubelet hands out.
#[derive(Debug, PartialEq)]
struct HandedOut {
    /// The device of each pod that has one.
    devices: Vec<(String, String)>,
    /// The CPUs of the pod with one of its own, and of another one.
    cpus: [String; 2],
    /// The limits of the pod that is resized, in its cgroup and in its status.
    limits: [String; 2],
}

fn handed_out(cluster: &Cluster, with_devices: &[&str]) -> HandedOut {
    let exec = |pod: &str, script: &str| {
        let shown = cluster.kubectl(&["exec", pod, "--", "sh", "-c", script]);
        shown.trim().to_owned()
    };
    let device = |pod: &&str| ((*pod).to_owned(), exec(pod, "echo $DEVICES"));
    let cpus = |pod: &str| exec(pod, "grep Cpus_allowed_list /proc/1/status | cut -f2");
    let sized = cluster.get(&["pod", "sized"]);
    let status = &sized["status"]["containerStatuses"][0];
    let id = status["containerID"].as_str().unwrap();
    let id = id.rsplit('/').next().unwrap();
    let script = format!(
        "for d in $(find /sys/fs/cgroup -type d -name '*{id}*'); do cd $d; \
         cat cpu.cfs_quota_us cpu.max memory.limit_in_bytes memory.max 2>/dev/null; done | sort -u | tr '\\n' ' '"
    );
    let limits = cluster.inside(&["sh", "-c", &script]).trim().to_owned();
    HandedOut {
        devices: with_devices.iter().map(device).collect(),
        cpus: [cpus("pinned"), cpus("sized")],
        limits: [limits, status["resources"]["limits"].to_string()],
    }
}

async fn resize(cluster: &Cluster, cpu: &str) {
    let limits = json!({"limits": {"cpu": cpu, "memory": "64Mi"}});
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": limits}]}});
    cluster.resize("sized", &patch.to_string());
    wait_for("the pod is resized", DEADLINE, || async {
        let status = cluster.get(&["pod", "sized"])["status"].clone();
        let has = status["containerStatuses"][0]["resources"]["limits"]["cpu"] == cpu;
        holds(has && !status.to_string().contains("PodResize"), status.to_string())
    })
    .await;
}

/// A plugin in a runtime of its own: scenarios block while kubectl runs, and kubelets wait for plugins.
struct Plugin {
    runtime: Option<Runtime>,
    _serving: FakePlugin,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A plugin that has registered with the kubelet that runs. Kubelets forget plugins when they end.
async fn registered(cluster: &Cluster) -> Plugin {
    let directory = || {
        let pid = cluster.kubelet.pid()?;
        let path = PathBuf::from(format!("/proc/{pid}/root/var/lib/kubelet/device-plugins"));
        path.join("kubelet.sock").exists().then_some(path)
    };
    let directory = wait_for("the kubelet listens for plugins", DEADLINE, || async {
        directory().ok_or("there is no socket".to_owned())
    })
    .await;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let plugin = {
        let _entered = runtime.enter();
        FakePlugin::listen(&directory, "gpu.sock")
    };
    plugin.send(&DEVICES);
    wait_for("the plugin is registered", DEADLINE, || async {
        let registered = plugin.register(GPU, VERSION).await;
        registered.map_err(|error| error.to_string())
    })
    .await;
    wait_for("the node has the devices", DEADLINE, || async {
        let node = cluster.get(&["node", NODE]);
        let amount = node["status"]["allocatable"][GPU].clone();
        holds(amount == "2", amount.to_string())
    })
    .await;
    Plugin { runtime: Some(runtime), _serving: plugin }
}

pub async fn devices_exclusive_cpus_and_resized_pods_stay_what_they_are_when_the_kubelet_changes() {
    Flavour::Go.make_current();
    let mut cluster = Cluster::start_with_flags(&FLAGS);
    let mut plugin = registered(&cluster).await;
    let gpu = json!({"limits": {GPU: "1"}});
    cluster.create(&with_resources("pinned", &json!({"limits": {"cpu": "1", "memory": "32Mi"}})));
    cluster.create(&with_resources(
        "sized",
        &json!({"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}}),
    ));
    cluster.create(&with_resources("gpu-0", &gpu));
    let mut pods = vec!["gpu-0".to_owned()];
    for pod in ["pinned", "sized", "gpu-0"] {
        cluster.wait("condition=Ready", &format!("pod/{pod}"));
    }
    resize(&cluster, "150m").await;
    for (turn, flavour) in [Flavour::Rust, Flavour::Go, Flavour::Rust].into_iter().enumerate() {
        let names: Vec<_> = pods.iter().map(String::as_str).collect();
        let (before, containers) = (handed_out(&cluster, &names), running(&cluster));
        assert_eq!(before.cpus[0], "1", "{before:?}");
        let reported = version(&cluster);
        if flavour == Flavour::Rust {
            is_safe_and_changes_nothing(&cluster);
        }
        drop(plugin);
        flavour.make_current();
        cluster.restart_kubelet_with(&FLAGS);
        wait_for("the other kubelet reports the node", DEADLINE, || async {
            holds(version(&cluster) != reported, "the last one's report")
        })
        .await;
        plugin = registered(&cluster).await;
        // Long enough for its first sync of every pod, and of the CPUs of all containers.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert_eq!(running(&cluster), containers, "{flavour:?}");
        assert_eq!(handed_out(&cluster, &names), before, "{flavour:?}");
        let status = cluster.get(&["pod", "sized"])["status"].to_string();
        assert!(!status.contains("PodResize"), "{flavour:?}: {status}");

        // It goes on from there: the other device, and another size.
        let next = format!("gpu-{}", turn + 1);
        cluster.create(&with_resources(&next, &gpu));
        cluster.wait("condition=Ready", &format!("pod/{next}"));
        pods.push(next);
        let names: Vec<_> = pods.iter().map(String::as_str).collect();
        let mut devices = handed_out(&cluster, &names).devices;
        devices.sort_by(|a, b| a.1.cmp(&b.1));
        let devices: Vec<_> = devices.into_iter().map(|(_, device)| device).collect();
        assert_eq!(devices, DEVICES, "{flavour:?}");
        resize(&cluster, &format!("{}m", 200 + 50 * turn)).await;
        let oldest = format!("pod/{}", pods.remove(0));
        cluster.kubectl(&["delete", &oldest]);
    }
    let all = [&["delete", "pod", "pinned", "sized"][..], &[&pods[0]]].concat();
    cluster.kubectl(&all);
    nothing_is_leaked(&cluster).await;
}
