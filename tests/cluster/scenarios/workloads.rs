//! Pods that controllers make, and nodes that pods have to leave.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::inventory::{items, nothing_is_leaked};
use crate::support::wait::{holds, wait_for};

const DEPLOYMENT: &str = "
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
        env: [{name: MODE, value: first}]
        readinessProbe: {httpGet: {path: /passwd, port: 8080}, periodSeconds: 1}
";

const JOBS: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: good}
spec:
  completions: 3
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: 'localhost/busybox:dev', command: [sh, -c, 'echo done']}
---
apiVersion: batch/v1
kind: Job
metadata: {name: bad}
spec:
  backoffLimit: 1
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: 'localhost/busybox:dev', command: [sh, -c, 'exit 3']}
";

const SETS: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/busybox:dev
        command: [sh, -c, 'sleep 1; touch /ready; exec sleep 1000']
        readinessProbe: {exec: {command: [cat, /ready]}, periodSeconds: 1}
";

/// A pod that sleeps, with more fields of its spec.
fn sleeper(name: &str, fields: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {fields}
  containers:
  - {{name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}}
"
    )
}

fn condition<'p>(object: &'p Value, kind: &str) -> &'p Value {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|one| one["type"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {conditions:?}"))
}

async fn wait_for_pods(cluster: &Cluster, label: &str, count: usize) {
    wait_for(&format!("{count} pods of {label}"), DEADLINE, || async {
        let pods = cluster.get(&["pods", "-l", label]);
        let names: Vec<_> = items(&pods).map(|pod| &pod["metadata"]["name"]).collect();
        holds(names.len() == count, format!("{names:?}"))
    })
    .await;
}

pub async fn a_deployment_rolls_out_scales_and_is_undone() {
    let cluster = Cluster::start();
    cluster.create(DEPLOYMENT);
    cluster.rolled_out("web");
    let mode = || {
        let command = ["exec", "deployment/web", "--", "sh", "-c", "echo $MODE"];
        cluster.kubectl(&command)
    };
    cluster.kubectl(&["set", "env", "deployment/web", "MODE=second"]);
    cluster.rolled_out("web");
    wait_for_pods(&cluster, "app=web", 2).await;
    assert_eq!(mode(), "second\n");
    cluster.kubectl(&["scale", "deployment/web", "--replicas=4"]);
    cluster.rolled_out("web");
    cluster.kubectl(&["scale", "deployment/web", "--replicas=1"]);
    wait_for_pods(&cluster, "app=web", 1).await;
    cluster.kubectl(&["rollout", "undo", "deployment/web"]);
    cluster.rolled_out("web");
    wait_for_pods(&cluster, "app=web", 1).await;
    assert_eq!(mode(), "first\n");
    nothing_is_leaked(&cluster).await;
}

pub async fn jobs_complete_or_fail_and_sets_keep_names_and_order() {
    let cluster = Cluster::start();
    cluster.create(JOBS);
    cluster.create(SETS);
    cluster.wait("condition=Complete", "job/good");
    cluster.wait("condition=Failed", "job/bad");
    let job = cluster.get(&["job", "good"]);
    assert_eq!(job["status"]["succeeded"], 3);
    let job = cluster.get(&["job", "bad"]);
    assert_eq!(condition(&job, "Failed")["reason"], "BackoffLimitExceeded");
    let failed = cluster.get(&["pods", "-l", "job-name=bad"]);
    let codes: Vec<_> = items(&failed)
        .map(|pod| &pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"])
        .collect();
    assert_eq!(codes, [&json!(3), &json!(3)], "one try and one retry");
    for set in ["daemonset/agent", "statefulset/db"] {
        cluster.kubectl(&["rollout", "status", set, "--timeout=90s"]);
    }
    let (first, second) = (cluster.get(&["pod", "db-0"]), cluster.get(&["pod", "db-1"]));
    let ready = condition(&first, "Ready")["lastTransitionTime"].as_str();
    let created = second["metadata"]["creationTimestamp"].as_str();
    assert!(ready <= created, "{ready:?} {created:?}");
    cluster.kubectl(&["delete", "pod", "db-0"]);
    cluster.wait("create", "pod/db-0");
    cluster.wait("condition=Ready", "pod/db-0");
    assert_ne!(cluster.get(&["pod", "db-0"])["metadata"]["uid"], first["metadata"]["uid"]);
    cluster.kubectl(&["delete", "job/good", "job/bad", "daemonset/agent"]);
    cluster.kubectl(&["delete", "statefulset/db"]);
    wait_for("their pods are gone", DEADLINE, || async {
        let pods = cluster.kubectl(&["get", "pods", "-o", "name"]);
        holds(pods.is_empty(), pods)
    })
    .await;
    nothing_is_leaked(&cluster).await;
}

pub async fn pods_leave_a_node_that_is_drained_or_tainted() {
    let cluster = Cluster::start();
    cluster.create(DEPLOYMENT);
    cluster.create(SETS);
    cluster.create(&sleeper("bare", "nodeName: node1"));
    cluster.rolled_out("web");
    cluster.kubectl(&["rollout", "status", "daemonset/agent", "--timeout=90s"]);
    let agent = || cluster.kubectl(&["get", "pods", "-l", "app=agent", "-o", "name"]);
    let before = agent();
    let drain = ["drain", NODE, "--force", "--ignore-daemonsets"];
    cluster.kubectl(&[&drain[..], &["--timeout=90s"]].concat());
    assert_eq!(agent(), before, "a DaemonSet's pod stays");
    assert!(cluster.try_kubectl(&["get", "pod", "bare"]).is_err());
    let running = "--field-selector=status.phase=Running";
    let left = cluster.kubectl(&["get", "pods", running, "-l", "app!=agent", "-o", "name"]);
    assert_eq!(left, "");
    cluster.kubectl(&["uncordon", NODE]);
    cluster.rolled_out("web");
    let tolerant = "tolerations: [{key: example.com/leave, operator: Exists, effect: NoExecute";
    for (name, end) in [("stays", "}]"), ("later", ", tolerationSeconds: 5}]")] {
        cluster.create(&sleeper(name, &format!("{tolerant}{end}")));
        cluster.wait("condition=Ready", &format!("pod/{name}"));
    }
    let tainted = std::time::Instant::now();
    cluster.kubectl(&["taint", "node", NODE, "example.com/leave=now:NoExecute"]);
    cluster.wait("delete", "pod/later");
    assert!(tainted.elapsed() >= Duration::from_secs(5));
    wait_for("who does not tolerate it is gone", DEADLINE, || async {
        let left = cluster.kubectl(&["get", "pods", running, "-o", "name"]);
        holds(left == "pod/stays\n", left)
    })
    .await;
    // Nothing schedules it, and nothing but the kubelet can refuse it.
    cluster.signal("-STOP", "kube-controller");
    cluster.create(&sleeper("uninvited", "nodeName: node1"));
    cluster.wait("jsonpath={.status.phase}=Failed", "pod/uninvited");
    let uninvited = cluster.get(&["pod", "uninvited"]);
    assert_eq!(uninvited["status"]["reason"], "TaintToleration");
    cluster.signal("-CONT", "kube-controller");
    cluster.kubectl(&["taint", "node", NODE, "example.com/leave-"]);
    cluster.rolled_out("web");
}
