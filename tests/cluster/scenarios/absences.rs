//! An API server that is away, and a kubelet that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::inventory::{Instance, instances, nothing_is_leaked};
use crate::support::wait::{holds, wait_for};

/// How long each part of the control plane is away: a hung API server longer than the node lifecycle controller waits.
/// `CLUSTER_ABSENCE_SECONDS` is for all of them.
const ABSENCES: [(&str, &str, &str, u64); 3] = [
    ("after-stop", "kube-apiserver", "-STOP", 120),
    ("after-kill", "kube-apiserver", "-KILL", 8),
    ("after-etcd", "etcd", "-KILL", 8),
];

/// `CLUSTER_KILLS`: how often the kubelet is killed.
const KILLS: u64 = 4;

/// From here on the node lifecycle controller may call pods of a node that does not answer not ready.
const GRACE_OF_A_NODE: u64 = 40;

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

pub async fn an_api_server_that_is_away_and_a_killed_kubelet_restart_nothing() {
    let mut cluster = Cluster::start();
    cluster.create(PODS);
    cluster.rolled_out("web");
    let before = instances(&cluster, "app=web");
    cluster.signal("-STOP", "kube-apiserver");
    // Twice: with what it knows, and with what the one before knew.
    for _ in 0..2 {
        cluster.restart_kubelet();
        // Long enough for a kubelet to do what it must not.
        std::thread::sleep(Duration::from_secs(3));
        assert!(!cluster.kubelet.ended(), "{}", cluster.kubelet.last_lines());
    }
    cluster.signal("-CONT", "kube-apiserver");
    cluster.wait("condition=Ready", "node/node1");
    wait_for("new pods run", DEADLINE, || async {
        let scaled = cluster.try_kubectl(&["scale", "deployment", "web", "--replicas=3"]);
        holds(scaled.is_ok(), format!("{scaled:?}"))
    })
    .await;
    cluster.rolled_out("web");
    let after = instances(&cluster, "app=web");
    for instance in &before {
        assert!(after.contains(instance), "{before:#?} {after:#?}");
    }
}

/// A number from the environment: the scenarios can be made longer.
pub(super) fn variable(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |text| text.parse().expect(name))
}

/// Waits until the API server answers and the node is Ready, and a pod can be made and ends again.
async fn wait_recovered(cluster: &Cluster, pod: &str) {
    wait_for("the API server is ready", DEADLINE, || async {
        cluster.try_kubectl(&["get", "--raw", "/readyz"])
    })
    .await;
    cluster.wait("condition=Ready", &format!("node/{NODE}"));
    wait_for("a pod is created", DEADLINE, || async {
        let create = ["run", pod, "--image=localhost/busybox:dev", "--restart=Never"];
        let command = ["--command", "--", "true"];
        cluster.try_kubectl(&[&create[..], &command].concat())
    })
    .await;
    cluster.wait("jsonpath={.status.phase}=Succeeded", &format!("pod/{pod}"));
    cluster.kubectl(&["delete", "pod", pod]);
}

/// The pods, and whether the cluster itself has changed when they became ready. It may do that only to a node that it
/// has called not ready, too, and only when it has not heard of it for long: then the node became ready again later.
#[derive(Debug)]
struct Observed {
    pods: Vec<Instance>,
    node_ready: String,
}

impl Observed {
    fn now(cluster: &Cluster) -> Observed {
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].lastTransitionTime}"#;
        let node_ready = cluster.kubectl(&["get", "node", NODE, "-o", ready]);
        let pods = instances(cluster, "app=web");
        Observed { pods, node_ready }
    }

    /// Whether the kubelet has changed nothing since.
    fn is_kept_by(&self, later: &Observed, away: u64) -> bool {
        if away < GRACE_OF_A_NODE || self.node_ready == later.node_ready {
            return self.pods == later.pods;
        }
        let without_times = |pods: &[Instance]| {
            let mut pods = pods.to_vec();
            for [.., ready] in &mut pods {
                ready.truncate("\"True\"".len());
            }
            pods
        };
        without_times(&self.pods) == without_times(&later.pods)
    }
}

pub async fn a_control_plane_that_stops_dies_or_loses_its_storage_for_a_while_harms_nothing() {
    let cluster = Cluster::start();
    cluster.create(PODS);
    cluster.rolled_out("web");
    let before = Observed::now(&cluster);
    let running = running(&cluster);
    let mut longest = 0;
    for (pod, component, first, away) in ABSENCES {
        let away = variable("CLUSTER_ABSENCE_SECONDS", away);
        longest = longest.max(away);
        // Its grace is over while the API server is away.
        let leaving = format!("leaving-{pod}");
        cluster.create(&churned(&leaving, "sleep 1000", 4));
        cluster.wait("condition=Ready", &format!("pod/{leaving}"));
        cluster.kubectl(&["delete", "pod", &leaving, "--wait=false"]);
        cluster.signal(first, component);
        tokio::time::sleep(Duration::from_secs(away)).await;
        if first == "-STOP" {
            cluster.signal("-CONT", component);
        } else {
            cluster.start_again(component);
        }
        wait_recovered(&cluster, pod).await;
        cluster.wait("delete", &format!("pod/{leaving}"));
        wait_for("all pods are Ready", DEADLINE, || async {
            let now = Observed::now(&cluster);
            let kept = before.is_kept_by(&now, longest);
            holds(kept, format!("{now:#?}, before: {before:#?}"))
        })
        .await;
    }
    assert_eq!(self::running(&cluster), running);
    let deleted = deletions(&cluster, "leaving-");
    assert!(deleted.values().eq(&[1; 3]), "{deleted:?}");
    nothing_is_leaked(&cluster).await;
}

/// The containers in the runtime.
fn running(cluster: &Cluster) -> BTreeSet<String> {
    let list = cluster.crictl(&["ps"]);
    let containers = list["containers"].as_array().unwrap().iter();
    containers.map(|one| one["id"].to_string()).collect()
}

/// A pod that is made only to end.
fn churned(name: &str, script: &str, grace: u64) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: churn}}}}
spec:
  nodeName: node1
  restartPolicy: Never
  terminationGracePeriodSeconds: {grace}
  containers:
  - {{name: main, image: 'localhost/busybox:dev', command: [sh, -c, '{script}']}}
"
    )
}

/// How often the node deleted each pod that was there. A pod that has ended is deleted without it.
fn deletions(cluster: &Cluster, prefix: &str) -> BTreeMap<String, usize> {
    let mut deletions = BTreeMap::<String, usize>::new();
    for request in cluster.requests(Timestamp::MIN) {
        let deletes = request.verb == "delete" && request.resource == "pods";
        if deletes && request.code == 200 && request.name.starts_with(prefix) {
            *deletions.entry(request.name).or_default() += 1;
        }
    }
    deletions
}

pub async fn a_kubelet_that_is_killed_again_and_again_loses_and_repeats_nothing() {
    let kills = variable("CLUSTER_KILLS", KILLS);
    let mut cluster = Cluster::start();
    cluster.create(PODS);
    cluster.rolled_out("web");
    let before = instances(&cluster, "app=web");
    for round in 0..kills {
        // Some end by themselves, some are deleted, some stay until the end, some are deleted before they start.
        for (kind, script) in [("ends", "sleep 1"), ("goes", "sleep 1000"), ("stays", "sleep 1000")]
        {
            cluster.create(&churned(&format!("churn-{kind}-{round}"), script, 1));
        }
        pause().await;
        let goes = format!("churn-goes-{round}");
        cluster.kubectl(&["delete", "pod", &goes, "--wait=false"]);
        pause().await;
        cluster.restart_kubelet();
        pause().await;
        if let Some(former) = round.checked_sub(1) {
            let stays = format!("churn-stays-{former}");
            cluster.kubectl(&["delete", "pod", &stays, "--wait=false"]);
        }
    }
    for round in 0..kills {
        let pod = format!("pod/churn-ends-{round}");
        cluster.wait("jsonpath={.status.phase}=Succeeded", &pod);
    }
    let last = format!("pod/churn-stays-{}", kills - 1);
    cluster.wait("condition=Ready", &last);
    cluster.kubectl(&["delete", "pods", "-l", "app=churn", "--timeout=90s"]);
    assert_eq!(instances(&cluster, "app=web"), before);
    let deleted = deletions(&cluster, "churn-");
    let running_ones = usize::try_from(2 * kills).unwrap();
    assert_eq!(deleted.len(), running_ones, "{deleted:?}");
    assert!(deleted.values().all(|count| *count == 1), "{deleted:?}");
    nothing_is_leaked(&cluster).await;
}

/// Until any moment of what a kubelet does for a pod.
async fn pause() {
    let millis = fastrand::u64(..1500);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
