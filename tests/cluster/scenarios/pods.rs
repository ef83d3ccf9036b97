//! Pods that come from the API server.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::audit::counts;
use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::support::wait::{holds, wait_for};

/// Without a scheduler, as a DaemonSet's pod has one.
const BARE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'echo started; exec sleep 1000']
";

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
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

/// In which a node that rests renews its lease once, at least.
const REST: Duration = Duration::from_secs(15);

pub async fn a_bare_pod_runs_answers_and_goes() {
    let cluster = Cluster::start();
    cluster.create(BARE);
    cluster.wait("condition=Ready", "pod/bare");
    assert_eq!(cluster.kubectl(&["logs", "bare"]), "started\n");
    let printed = cluster.kubectl(&["exec", "bare", "--", "sh", "-c", "echo from $HOSTNAME"]);
    assert_eq!(printed, "from bare\n");
    let uid = cluster.get(&["pod", "bare"])["metadata"]["uid"].clone();
    cluster.kubectl(&["delete", "pod", "bare", "--wait=false"]);
    cluster.wait("delete", "pod/bare");
    // Only the kubelet may say that nothing runs any more.
    let sent = counts(&cluster.requests(Timestamp::MIN));
    let delete = ("delete".to_owned(), "pods".to_owned());
    assert_eq!(sent.get(&delete), Some(&1), "{sent:?}");
    let cgroups = format!("find /sys/fs/cgroup -name '*{}*'", uid.as_str().unwrap());
    wait_for("the pod's cgroups are gone", DEADLINE, || async {
        let left = cluster.inside(&["sh", "-c", &cgroups]);
        holds(left.is_empty(), left)
    })
    .await;
}

pub async fn a_deployment_becomes_ready_and_the_node_rests() {
    let cluster = Cluster::start();
    cluster.create(DEPLOYMENT);
    cluster.rolled_out("web");
    let pods = cluster.get(&["pods", "-l", "app=web"]);
    let nodes = pods["items"].as_array().unwrap().iter();
    let nodes: Vec<_> = nodes.map(|pod| pod["spec"]["nodeName"].as_str().unwrap()).collect();
    assert_eq!(nodes, [NODE; 3]);
    let lease = ("update".to_owned(), "leases".to_owned());
    wait_for("the node only renews its lease", DEADLINE, || async {
        let rest = SignedDuration::try_from(REST).unwrap();
        let sent = counts(&cluster.requests(Timestamp::now() - rest));
        holds(sent.keys().eq([&lease]), format!("{sent:?}"))
    })
    .await;
    let all = counts(&cluster.requests(Timestamp::MIN));
    let status = all[&("patch".to_owned(), "pods/status".to_owned())];
    assert!(status >= 3, "three pods became ready without a status: {all:?}");
    cluster.kubectl(&["delete", "deployment", "web"]);
    wait_for("its pods are gone", DEADLINE, || async {
        let pods = cluster.get(&["pods", "-l", "app=web"])["items"].clone();
        holds(pods == serde_json::json!([]), pods.to_string())
    })
    .await;
}
