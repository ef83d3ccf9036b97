//! Pods that request what does not exist, or that claim what only a kubelet may set.

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
  - {name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}
  volumes:
  - {name: share, nfs: {server: 10.88.0.9, path: /}}
";

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
    cluster.wait("jsonpath={.status.phase}=Failed", "pod/unsupported");
    let status = cluster.get(&["pod", "unsupported"])["status"].clone();
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("spec.volumes[0].nfs"), "{message}");
    wait_for("an event names the field", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/unsupported"]);
        holds(events.contains("spec.volumes[0].nfs"), events)
    })
    .await;

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
