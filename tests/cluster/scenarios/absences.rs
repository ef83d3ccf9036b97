//! An API server that is away, and a kubelet that is killed.

use std::time::Duration;

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};

const PODS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/busybox:dev
        command: [httpd, -f, -p, '8080', -h, /etc]
        readinessProbe: {httpGet: {path: /passwd, port: 8080}, periodSeconds: 1}
";

/// Names, container ids, restart counts, and since when they are ready.
fn instances(cluster: &Cluster) -> Vec<[String; 4]> {
    let pods = cluster.get(&["pods", "-l", "app=web"]);
    let pods = pods["items"].as_array().unwrap().iter();
    let mut found: Vec<_> = pods
        .map(|pod| {
            let container = &pod["status"]["containerStatuses"][0];
            let conditions = pod["status"]["conditions"].as_array().unwrap();
            let ready = conditions
                .iter()
                .find(|one| one["type"] == "Ready")
                .unwrap();
            [
                pod["metadata"]["name"].to_string(),
                container["containerID"].to_string(),
                container["restartCount"].to_string(),
                format!("{} {}", ready["status"], ready["lastTransitionTime"]),
            ]
        })
        .collect();
    found.sort();
    found
}

pub async fn an_api_server_that_is_away_and_a_killed_kubelet_restart_nothing() {
    let mut cluster = Cluster::start();
    cluster.create(PODS);
    cluster.rolled_out("web");
    let before = instances(&cluster);
    cluster.inside(&["pkill", "-STOP", "-x", "kube-apiserver"]);
    // Twice: with what it knows, and with what the one before knew.
    for _ in 0..2 {
        cluster.restart_kubelet();
        // Long enough for a kubelet to do what it must not.
        std::thread::sleep(Duration::from_secs(3));
        assert!(!cluster.kubelet.ended(), "{}", cluster.kubelet.last_lines());
    }
    cluster.inside(&["pkill", "-CONT", "-x", "kube-apiserver"]);
    cluster.wait("condition=Ready", "node/node1");
    wait_for("new pods run", DEADLINE, || async {
        let scaled = cluster.try_kubectl(&["scale", "deployment", "web", "--replicas=3"]);
        holds(scaled.is_ok(), format!("{scaled:?}"))
    })
    .await;
    cluster.rolled_out("web");
    let after = instances(&cluster);
    for instance in &before {
        assert!(after.contains(instance), "{before:#?} {after:#?}");
    }
}
