//! A node that runs short of what pods use up.

use serde_json::Value;

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};

/// The kubelet's own file system: small, and nobody else's.
const ROOT: &str = "/run/small";
const MEGABYTES: u32 = 64;

fn pod(name: &str, limit: &str, script: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, '{script}; trap exit TERM; while :; do sleep 1000 & wait; done']
    volumeMounts: [{{name: scratch, mountPath: /scratch}}]
  volumes: [{{name: scratch, emptyDir: {{{limit}}}}}]
"
    )
}

fn write(megabytes: u32) -> String {
    format!("dd if=/dev/zero of=/scratch/file bs=1M count={megabytes}")
}

async fn evicted(cluster: &Cluster, name: &str) -> Value {
    wait_for("the pod is evicted", DEADLINE, || async {
        let pod = cluster.get(&["pod", name]);
        let (phase, reason) = (&pod["status"]["phase"], &pod["status"]["reason"]);
        let is = phase == "Failed" && reason == "Evicted";
        if is {
            Ok(pod)
        } else {
            Err(format!("{}", pod["status"]))
        }
    })
    .await
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let mut all = object["status"]["conditions"].as_array().unwrap().iter();
    all.find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

async fn disk_pressure(cluster: &Cluster, expected: &str) {
    wait_for("DiskPressure", DEADLINE, || async {
        let node = cluster.get(&["node", "node1"]);
        let found = condition(&node, "DiskPressure");
        holds(found["status"] == expected, found.to_string())
    })
    .await;
}

pub async fn a_pod_that_fills_the_disk_goes_and_the_others_stay() {
    let mut cluster = Cluster::start();
    let size = format!("size={MEGABYTES}m");
    cluster.inside(&["mkdir", ROOT]);
    cluster.inside(&["mount", "-t", "tmpfs", "-o", &size, "tmpfs", ROOT]);
    let flags = [
        "--root-dir",
        ROOT,
        "--eviction-hard=nodefs.available<20%",
        "--eviction-pressure-transition-period=2s",
        "--volume-stats-agg-period=1s",
    ];
    cluster.restart_kubelet_with(&flags);
    cluster.create(&pod("modest", "", &write(1)));
    // A static pod uses most, and stays all the same.
    let static_pod = pod("static", "", &write(30));
    cluster.manifests().put("static.yaml", &static_pod);
    cluster.wait("condition=Ready", "pod/modest");
    cluster.wait("create", "pod/static-node1");
    cluster.wait("condition=Ready", "pod/static-node1");

    cluster.create(&pod("greedy", "", &write(25)));
    let greedy = evicted(&cluster, "greedy").await;
    let message = greedy["status"]["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: "),
        "{message}"
    );
    let disruption = condition(&greedy, "DisruptionTarget");
    assert_eq!(disruption["reason"], "TerminationByKubelet", "{greedy}");
    disk_pressure(&cluster, "True").await;
    // Its volume has gone with it.
    disk_pressure(&cluster, "False").await;

    // More than its own limit, on a disk with room.
    cluster.create(&pod("limited", "sizeLimit: 1Mi", &write(4)));
    let limited = evicted(&cluster, "limited").await;
    let message = &limited["status"]["message"];
    assert_eq!(
        message,
        "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". "
    );
    assert!(
        condition(&limited, "DisruptionTarget").is_null(),
        "{limited}"
    );

    for name in ["modest", "static-node1"] {
        let pod = cluster.get(&["pod", name]);
        let container = &pod["status"]["containerStatuses"][0];
        assert_eq!(container["ready"], true, "{pod}");
        assert_eq!(container["restartCount"], 0, "{pod}");
    }
    let node = cluster.get(&["node", "node1"]);
    assert_eq!(condition(&node, "MemoryPressure")["status"], "False");
}
