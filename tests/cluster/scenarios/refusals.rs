//! Pods that request what does not exist, or that claim what only a kubelet may set.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};

const UNSUPPORTED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: unsupported}
spec:
  nodeName: node1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '1000']
    volumeMounts: [{name: share, mountPath: /share}]
  volumes:
  - {name: share, rbd: {monitors: [10.88.0.9], image: i}}
";

/// A Deployment of one pod for this node, whose volume cannot be mounted there.
fn deployment(name: &str, volume: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeName: node1
      containers:
      - name: main
        image: localhost/busybox:dev
        command: [sleep, '1000']
        volumeMounts: [{{name: data, mountPath: /data}}]
      volumes:
      - {{name: data, {volume}}}
"
    )
}

const CLAIM: &str = "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: none, \
    accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}";

/// How long the number of pods is watched: a controller replaces a failed pod several times in a second.
const STORM: Duration = Duration::from_secs(15);

const HOSTILE: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: hostile
  annotations:
    kubernetes.io/config.source: file
    kubernetes.io/config.hash: '0123456789abcdef'
    kubernetes.io/config.seen: '2001-01-01T00:00:00Z'
    kubelet.rs/manifest: /etc/passwd
    kubelet.rs/spec-digest: 'v1:0'
    kubelet.rs/max-container-restart-period: '-1s'
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}
";

/// Without an owner: there is no such static pod.
const FALSE_MIRROR: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: mirror
  annotations: {kubernetes.io/config.mirror: '0123456789abcdef', kubernetes.io/config.source: file}
spec:
  nodeName: node1
  enableServiceLinks: false
  automountServiceAccountToken: false
  containers:
  - {name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}
";

pub async fn what_is_not_supported_is_named_and_hostile_annotations_are_ignored() {
    let mut cluster = Cluster::start();
    for manifest in [UNSUPPORTED, HOSTILE, FALSE_MIRROR] {
        cluster.create(manifest);
    }
    wait_for("an event names the volume", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/unsupported"]);
        holds(events.contains("source rbd"), events)
    })
    .await;
    let status = cluster.get(&["pod", "unsupported"])["status"].clone();
    assert_eq!(status["phase"], "Pending", "{status}");

    cluster.wait("condition=Ready", "pod/hostile");
    cluster.wait("delete", "pod/mirror");
    let container = || {
        let pod = cluster.get(&["pod", "hostile"]);
        pod["status"]["containerStatuses"][0]["containerID"].clone()
    };
    let before = container();
    let running = |cluster: &Cluster| {
        let list = cluster.crictl(&["ps"]);
        let containers = list["containers"].as_array().unwrap().iter();
        let ids = containers.map(|one| one["id"].clone());
        ids.collect::<Vec<Value>>()
    };
    let runs = running(&cluster);
    assert_eq!(runs.len(), 1, "only the hostile pod runs");

    // A static pod without a manifest would be an orphan for a kubelet that has just started.
    cluster.restart_kubelet();
    cluster.create(&HOSTILE.replace("name: hostile", "name: after"));
    cluster.wait("condition=Ready", "pod/after");
    assert!(running(&cluster).contains(&runs[0]), "{runs:?}");
    let pod = cluster.get(&["pod", "hostile"]);
    assert_eq!(pod["status"]["containerStatuses"][0]["containerID"], before);
    cluster.kubectl(&["delete", "pod", "hostile", "after", "unsupported"]);
}

pub async fn a_deployment_whose_volume_cannot_be_mounted_has_one_waiting_pod() {
    let cluster = Cluster::start();
    let deployments = [
        ("rbd", "rbd: {monitors: [10.88.0.9], image: i}", true),
        ("csi", "csi: {driver: none.example.com}", true),
        // The Go kubelet waits for the claim for two minutes before it has an event.
        ("ephemeral", CLAIM, false),
    ];
    for (name, volume, _) in deployments {
        cluster.create(&deployment(name, volume));
    }
    let pods = |name: &str| {
        let list = cluster.get(&["pods", "-l", &format!("app={name}")]);
        list["items"].as_array().unwrap().clone()
    };
    for (name, _, has_event) in deployments {
        wait_for("its pod waits", DEADLINE, || async {
            let pods = pods(name);
            let status = pods.first().map(|pod| pod["status"].clone()).unwrap_or_default();
            let waiting = &status["containerStatuses"][0]["state"]["waiting"];
            holds(waiting["reason"] == "ContainerCreating", status.to_string())
        })
        .await;
        let pod = pods(name)[0]["metadata"]["name"].as_str().unwrap().to_owned();
        wait_for("an event says why", DEADLINE, || async {
            let events = cluster.kubectl(&["events", "--for", &format!("pod/{pod}")]);
            holds(!has_event || events.contains("FailedMount"), events)
        })
        .await;
    }
    let since = Instant::now();
    while since.elapsed() < STORM {
        for (name, ..) in deployments {
            let pods = pods(name);
            let phases: Vec<_> = pods.iter().map(|pod| &pod["status"]["phase"]).collect();
            assert_eq!(phases, ["Pending"], "{name}");
        }
    }
    for (name, ..) in deployments {
        cluster.kubectl(&["delete", "deployment", name]);
        wait_for("its pod is gone", DEADLINE, || async { holds(pods(name).is_empty(), name) })
            .await;
    }
}
