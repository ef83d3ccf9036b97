//! A node that changes from the Go kubelet to this one and back, while pods run.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::inventory::{instances, nothing_is_leaked};
use crate::kubelet::Flavour;
use crate::support::runner::Flavour as _;
use crate::support::wait::{holds, wait_for};

/// Each with something that a kubelet prepares and could prepare in another way than the one before.
const PODS: &str = "
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

const STATIC_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}]
";

/// The containers that run, with the attempt of each.
fn running(cluster: &Cluster) -> Vec<String> {
    let list = cluster.crictl(&["ps"]);
    let containers = list["containers"].as_array().unwrap().iter();
    let mut found: Vec<_> = containers
        .map(|one| format!("{} {}", one["id"], one["metadata"]))
        .collect();
    found.sort();
    found
}

/// That of the kubelet that reported the node last.
fn version(cluster: &Cluster) -> Value {
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

    Flavour::Rust.make_current();
    cluster.restart_kubelet();
    wait_for("this kubelet reports the node", DEADLINE, || async {
        holds(version(&cluster) != go, "the Go kubelet's report")
    })
    .await;
    // A change reaches a pod that the other kubelet prepared.
    cluster.kubectl(&[
        "patch",
        "configmap",
        "words",
        "-p",
        r#"{"data":{"mode":"second"}}"#,
    ]);
    wait_for("the changed object is in the volume", DEADLINE, || async {
        let read = [
            "exec",
            "deployment/web",
            "-c",
            "main",
            "--",
            "cat",
            "/words/mode",
        ];
        let shown = cluster.try_kubectl(&read)?;
        holds(shown == "second", shown)
    })
    .await;
    assert_eq!(running(&cluster), containers);
    assert_eq!(instances(&cluster, "part=all"), before);
    cluster.wait("condition=Ready", "pod/static-node1");
    assert_eq!(
        cluster.get(&["pod/static-node1"])["metadata"]["uid"],
        mirror
    );

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
